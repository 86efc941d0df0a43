"""What the commands that train share: options, recipes, a run from start to end, errors and pictures."""

import inspect
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from cbsa.train import Result
    from cbsa.train.config import RunConfig

_MOST_CLASSES_LISTED = 20

Recipe = Annotated[str | None, typer.Argument(help="Name of a recipe; see --list.")]
Settings = Annotated[
    list[str] | None,
    typer.Argument(help="Settings to change, as name=value, e.g. data.root=/data optimizer.lr=1e-3."),
]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="Folder of the run.")]
Numbers = Annotated[Path | None, typer.Option("--out", "-o", help="JSON file for the numbers.")]
Checkpoint = Annotated[str, typer.Option(help="Of a run: 'last' or 'best'.")]
Listing = Annotated[bool, typer.Option("--list", help="List the recipes.")]
Show = Annotated[bool, typer.Option("--show", help="Show the recipe and its settings, and do nothing.")]


@contextmanager
def friendly() -> Iterator[None]:
    """Turn errors of the user into messages."""
    from cbsa.models import CheckpointError
    from cbsa.train.run_folder import FolderInUseError

    try:
        yield
    except (ValueError, TypeError, FileNotFoundError, CheckpointError, FolderInUseError) as error:
        raise typer.BadParameter(str(error)) from error


def is_main() -> bool:
    """Whether this is the process that talks and writes: the only one, or torchrun's first."""
    return os.environ.get("RANK", "0") == "0"


def list_recipes(recipes: Mapping[str, Any], command: str) -> None:
    """List recipes with the first line of their descriptions."""
    table = Table("recipe", "what it trains", title=f"Recipes: {command} RECIPE --show says more")
    for name, function in recipes.items():
        table.add_row(name, (inspect.getdoc(function) or "").splitlines()[0].replace("``", ""))
    Console().print(table)


def show_recipe(function: Any, config: "RunConfig") -> None:
    """Show the description of a recipe and its settings."""
    from cbsa.train import to_dict

    console = Console()
    console.print(inspect.getdoc(function) or "", highlight=False, markup=False)
    console.print_json(json.dumps(to_dict(config)))


def run_to_end(config: "RunConfig", folder: Path, console: Console) -> "Result":
    """Train with progress on the console; a stop or a failure ends the program with its message."""
    from cbsa.data import TooManyCorruptImages
    from cbsa.train import NonFiniteError, StoppedError
    from cbsa.train import train as run

    try:
        with friendly():
            return run(config, folder, console=console)
    except StoppedError as stop:
        console.print(f"[yellow]{escape(str(stop))}[/yellow]", soft_wrap=True, highlight=False)
        raise typer.Exit(128 + stop.signum) from stop
    except (NonFiniteError, TooManyCorruptImages, OSError) as error:
        # Another process than the one that talks may be the one that failed.
        Console().print(f"[red]Stopped:[/red] {escape(str(error))}", soft_wrap=True, highlight=False)
        raise typer.Exit(1) from error


def save_pictures(result: "Result") -> None:
    """Draw curves, and a confusion matrix if there is one, into the run's folder."""
    from cbsa.experiments.report import save_figure
    from cbsa.report import plot_confusion, plot_curves
    from cbsa.train.log import read_epochs

    save_figure(plot_curves({result.folder.name: read_epochs(result.folder)}), result.folder / "curves")
    if result.metrics is not None and result.metrics.confusion is not None:
        figure = plot_confusion(result.metrics.confusion, result.summary["classes"])
        save_figure(figure, result.folder / "confusion")


def draw_run(result: "Result", console: Console) -> None:
    """Draw curves and confusion matrix into the run's folder, and list the classes that are hardest."""
    from cbsa.report import per_class_accuracy

    save_pictures(result)
    if result.metrics is not None and result.metrics.confusion is not None:
        accuracy = per_class_accuracy(result.metrics.confusion).tolist()
        print_classes(console, dict(zip(result.summary["classes"], accuracy, strict=True)))


def print_classes(console: Console, accuracy: dict[str, float]) -> None:
    """The accuracy of each class that has images, or of the worst ones if there are many."""
    known = {name: value for name, value in accuracy.items() if not math.isnan(value)}
    rows = sorted(known.items(), key=lambda item: item[1])
    shown = rows[:_MOST_CLASSES_LISTED]
    title = (
        "Accuracy by class" if len(shown) == len(rows) else f"The {len(shown)} worst of {len(rows)} classes"
    )
    table = Table("class", "top-1 %", title=title)
    for name, value in shown:
        table.add_row(name, f"{100 * value:.1f}")
    console.print(table)


def look_at(console: Console, folder: Path, what: str) -> None:
    """Tell where a run is, and what to look at there."""
    console.print(f"[bold]Look at {escape(str(folder))}[/bold]: {what}", soft_wrap=True)
