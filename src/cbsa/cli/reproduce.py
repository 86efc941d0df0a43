"""``cbsa reproduce``: the tables and figures of the paper, one command each."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from cbsa.cli.measuring import Compiled, Jobs, Precision, good_errors, positive, with_progress
from cbsa.cli.options import Device, choose_device, split

app = typer.Typer(help="Reproduce a table or figure of the paper.", no_args_is_help=True)


@app.command("fig-3d")
def fig_3d(
    out: Annotated[Path, typer.Option(help="Folder for the picture and the numbers.")] = Path(
        "outputs/fig-3d"
    ),
    classes: Annotated[int, typer.Option(help="Number of classes, each near one line.")] = 10,
    points: Annotated[int, typer.Option(help="Points per class.")] = 200,
    noise: Annotated[float, typer.Option(help="Standard deviation of the noise around the lines.")] = 0.1,
    eps: Annotated[float, typer.Option(help="Quantisation precision ε of the coding rate.")] = 0.1,
    step_size: Annotated[float, typer.Option(help="Step size κ of the descent.")] = 1.25e-3,
    iterations: Annotated[int, typer.Option(help="Number of iterations.")] = 1024,
    seed: Annotated[int, typer.Option(help="Seed of the synthetic data.")] = 0,
) -> None:
    """Compress noisy classes onto lines by iterating the operator, without parameters (figure 3d)."""
    from cbsa.experiments import fig_3d as experiment

    console = Console()
    ticks = iter(track(range(iterations), description="Compressing", console=console, transient=True))
    try:
        config = experiment.Config(classes, points, noise, eps, step_size, iterations, seed)
        prepare(out)
        result = experiment.run(config, progress=lambda: next(ticks, None))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error

    table = Table(title="Figure 3d: how close each class is to a line, and how far apart the lines are")
    table.add_column("iteration", justify="right")
    table.add_column("energy off the line, mean", justify="right")
    table.add_column("worst class", justify="right")
    table.add_column("closest two lines", justify="right")
    table.add_column("points nearest their own line", justify="right")
    for s in result.snapshots:
        table.add_row(
            "raw" if s.iteration == 0 else str(s.iteration),
            f"{sum(s.off_line) / len(s.off_line):.2e}",
            f"{s.worst_off_line:.2e}",
            f"{s.closest_lines:.1f}°",
            f"{s.nearest_line_accuracy:.1%}",
        )
    console.print(table)
    console.print(
        "The paper gives a picture and no number here: «a union of well-separated one-dimensional "
        "subspaces after 1024 iterations»."
    )
    say_where(console, experiment.save(result, out))


@app.command("table-complexity")
def table_complexity(
    out: Annotated[Path, typer.Option(help="Folder for the numbers.")] = Path("outputs/complexity"),
) -> None:
    """Count parameters, FLOPs and similarities of the models at 224 px (tables CBT_tab, fair_comp)."""
    from cbsa.cli.models import cost_table, measure
    from cbsa.experiments import complexity
    from cbsa.models import MODELS

    prepare(out)
    costs = measure([name for name in MODELS if name.endswith("patch16_224")])
    console = Console()
    console.print(cost_table(costs, console.width))
    console.print(
        "Where they differ: the paper cites ViT-S from its own paper, which has another stem; and it counts "
        "0.52M and 1.0M similarities for Agent, where m·N per layer and head give 0.454M and 0.908M."
    )
    console.print(f"Written: {complexity.save_table(costs, out)}", soft_wrap=True)


@app.command("fig-complexity")
def fig_complexity(
    out: Annotated[Path, typer.Option(help="Folder for picture and numbers.")] = Path("outputs/complexity"),
) -> None:
    """Draw the FLOPs of one attention layer against the resolution (figure complexity)."""
    from cbsa.experiments import complexity

    prepare(out)
    console = Console()
    with console.status("Counting"):
        curves = complexity.resolution_curves()
    table = Table("resolution", *complexity.ATTENTIONS.values(), title="GFLOPs of one layer, counted")
    for place, resolution in enumerate(complexity.RESOLUTIONS):
        table.add_row(str(resolution), *(f"{curves[name][place]:.3f}" for name in complexity.ATTENTIONS))
    console.print(table)
    say_where(console, complexity.save_curves(curves, out))


@app.command("table-throughput")
def table_throughput(
    out: Annotated[Path, typer.Option(help="Folder for the numbers.")] = Path("outputs/throughput"),
    device: Device = "auto",
    models: Annotated[str, typer.Option(help="Some of the table's models, separated by commas.")] = "",
    size: Annotated[int, typer.Option(help="Resolution in pixels; the paper's is 512.")] = 512,
    batch: Annotated[int, typer.Option(help="Images at a time; 0 for a batch of 65,536 tokens.")] = 0,
    precision: Precision = "bf16",
    compiled: Compiled = True,
    seconds: Annotated[float, typer.Option(help="Time spent on each number.")] = 0.5,
    jobs: Jobs = 0,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure everything anew.")] = False,
) -> None:
    """Measure images per second of CBT, ViT, CRATE and ToST at 512 px (table wall-clock)."""
    from cbsa import paper
    from cbsa.experiments import throughput

    console = Console()
    with good_errors():
        config = throughput.configure(
            choose_device(device),
            models=tuple(split(models) or paper.THROUGHPUT),
            img_size=size,
            batch=batch,
            precision=precision,
            compilation="blocks" if compiled else "none",
            seconds=positive(seconds),
        )
        prepare(out)
        count = len(list(config.forms()))
        results = with_progress(throughput.run, config, "Models", count, out, fresh, jobs, console)
    for grid in throughput.tables(results, config):
        console.print(grid.rich())
    console.print(throughput.CAPTION, highlight=False)
    console.print(f"Written: {', '.join(map(str, throughput.save(results, config, out)))}", soft_wrap=True)


def prepare(out: Path) -> None:
    """Create the output folder, or say why not."""
    from cbsa._files import prepare_folder

    try:
        prepare_folder(out)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--out") from error


def say_where(console: Console, paths: list[Path]) -> None:
    """Tell which file to look at first."""
    picture, *others = paths
    console.print(f"[bold]Look at {picture}[/bold]", soft_wrap=True)
    console.print(f"Also written: {', '.join(map(str, others))}", soft_wrap=True)
