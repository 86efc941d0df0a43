"""``cbsa weights``: the trained weights that ship with the package, and making more of them."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from cbsa.cli.looking import narrow_table
from cbsa.cli.running import friendly

if TYPE_CHECKING:
    from cbsa.bench.tables import Grid
    from cbsa.models import Shipped

app = typer.Typer(help="The trained weights that ship with the package.", invoke_without_command=True)


@app.callback()
def weights(
    context: typer.Context,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table of docs/weights.md.")] = False,
) -> None:
    """List the trained weights that ship with the package."""
    if context.invoked_subcommand is not None:
        return
    from cbsa.models import SHIPPED

    grid = weights_grid(SHIPPED.values())
    if markdown:
        typer.echo(grid.markdown())
        return
    console = Console()
    console.print(narrow_table(grid))
    console.print('Load one with cbsa.create_model("NAME", pretrained=True).', highlight=False)


def weights_grid(entries: "Iterable[Shipped]") -> "Grid":
    """A row for each entry."""
    from cbsa.bench.tables import Grid

    cells: list[tuple[str, ...]] = []
    for entry in entries:
        training = entry.training
        accuracy, run = training["accuracy"], training["run"]
        top1 = accuracy["run"] if accuracy["shipped"] is None else accuracy["shipped"]
        cells.append(
            (
                entry.name,
                training["data"]["title"].partition(" (")[0],
                str(entry.config["pretrained_cfg"]["input_size"][1]),
                f"{training['parameters']:,}",
                f"{run['epochs']} on {run['processes']} × {training['environment']['device']}",
                f"{top1:.2f} %",
                f"{entry.file.stat().st_size / 1e6:.1f}",
            )
        )
    columns = ("weights", "data", "px", "parameters", "epochs", "top-1", "MB")
    return Grid("Weights that ship with cbsa", columns, cells)


@app.command()
def add(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run of `cbsa train` or `cbsa study`.")],
    tag: Annotated[str, typer.Option(help="What to call the weights: MODEL.TAG, e.g. cifar10.")],
    dataset: Annotated[
        str | None, typer.Option(help="Data set whose terms the card states; by default the run's own.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Folder of the data set, to evaluate the rounded weights on.")
    ] = None,
    note: Annotated[str, typer.Option(help="A sentence for the card: what the weights are for.")] = "",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder to add to; by default the package's own.")
    ] = None,
) -> None:
    """Make weights that ship out of a finished run: bfloat16 safetensors, configuration, model card."""
    from cbsa.models.shipped import FOLDER
    from cbsa.train.shipping import ship_run

    console = Console()
    with friendly():
        made = ship_run(run, tag, dataset=dataset, root=data, note=note, out=out or FOLDER, console=console)
    accuracy = made.training["accuracy"]
    if accuracy["shipped"] is None:
        console.print("[yellow]Not evaluated after rounding: give --data FOLDER.[/yellow]")
    else:
        console.print(
            f"top-1 {accuracy['float32']:.2f} %, rounded to bfloat16 {accuracy['shipped']:.2f} %",
            highlight=False,
        )
    console.print(f"[bold]Written: {escape(str(made.folder))}[/bold]", soft_wrap=True)
