"""``cbsa reproduce fig-vit-adapt``: adapted ViTs against the original."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from cbsa.cli.options import split
from cbsa.cli.reproduce import prepare, say_where
from cbsa.cli.running import friendly


def fig_vit_adapt(
    runs: Annotated[
        list[Path] | None,
        typer.Option("--runs", "-r", help="Folder of a run of cbsa adapt; may be repeated."),
    ] = None,
    results: Annotated[
        list[Path] | None,
        typer.Option(help="Results of a study (benchmarks/adapt_study.py); may be repeated."),
    ] = None,
    widths: Annotated[
        str, typer.Option(help="Sizes whose FLOPs are counted: tiny, small, base, large.")
    ] = "tiny,small",
    size: Annotated[int, typer.Option(min=16, help="Resolution in pixels; the paper's is 224.")] = 224,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for picture and numbers.")] = Path(
        "outputs/fig-vit-adapt"
    ),
) -> None:
    """Show accuracy and FLOPs of ViTs whose attention was swapped (figure vit-adapt)."""
    from cbsa.experiments import vit_adapt as experiment

    prepare(out)
    console = Console()
    with friendly():
        if size % experiment.PATCH:
            raise ValueError(f"--size {size}: expected a multiple of the patch of {experiment.PATCH} px")
        reports = experiment.read_reports(runs or [], results or [])
        sizes = split(widths)
        with console.status("Counting"):
            found, curves = experiment.costs(sizes, size), experiment.curves(sizes)
    console.print(experiment.cost_grid(found).rich())
    if reports:
        console.print(experiment.accuracy_grid(reports).rich())
    else:
        console.print("No accuracies: give --runs FOLDER of cbsa adapt, or --results FILE of a study.")
    console.print(experiment.CAPTION, highlight=False, markup=False)
    say_where(console, experiment.save(found, curves, reports, out))


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("fig-vit-adapt")(fig_vit_adapt)
