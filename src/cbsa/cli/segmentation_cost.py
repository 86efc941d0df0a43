"""``cbsa reproduce table-seg-cost``: what the segmentation decoders cost."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from cbsa.cli.reproduce import prepare


def table_seg_cost(
    classes: Annotated[int, typer.Option(min=2, help="Number of classes; the paper's ADE20K has 150.")] = 150,
    out: Annotated[Path, typer.Option(help="Folder for the numbers.")] = Path("outputs/table-seg-cost"),
) -> None:
    """Count parameters, FLOPs and similarities of the segmentation decoders (section 4.2)."""
    from cbsa.experiments import seg_cost as experiment

    prepare(out)
    console = Console()
    with console.status("Counting"):
        rows = experiment.run(classes)
    console.print(experiment.grid(rows, classes).rich())
    if classes == 150:
        console.print(experiment.verdict(rows), highlight=False, markup=False)
    console.print(f"Written: {experiment.save(rows, classes, out)}", soft_wrap=True)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("table-seg-cost")(table_seg_cost)
