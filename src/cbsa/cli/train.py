"""``cbsa train``, ``finetune``, ``eval`` and ``plot``: runs from the command line."""

import inspect
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from cbsa.train import Result, TrainConfig
    from cbsa.train.config import RunConfig

_MOST_CLASSES_LISTED = 20

Settings = Annotated[
    list[str] | None,
    typer.Argument(help="Settings to change, as name=value, e.g. data.root=/data optimizer.lr=1e-3."),
]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="Folder of the run.")]
Show = Annotated[bool, typer.Option("--show", help="Show the recipe and its settings, and do nothing.")]


def train(
    recipe: Annotated[str | None, typer.Argument(help="Name of a recipe; see --list.")] = None,
    settings: Settings = None,
    out: Out = None,
    list_all: Annotated[bool, typer.Option("--list", help="List the recipes.")] = False,
    show: Show = False,
) -> None:
    """Train a classifier, or go on with a run that was interrupted: the same command resumes it.

    Under torchrun it runs in several processes: torchrun --nproc-per-node 8 -m cbsa train RECIPE …
    """
    from cbsa.train import RECIPES

    if list_all or recipe is None:
        list_recipes(RECIPES, "cbsa train")
        return
    config = configure(recipe, settings)
    if show:
        show_recipe(RECIPES[recipe], config)
        return
    _run(config, out or Path("outputs") / "train" / f"{config.recipe}-seed{config.seed}")


def finetune(
    recipe: Annotated[str, typer.Argument(help="Name of a recipe, e.g. finetune_pets.")],
    settings: Settings = None,
    out: Out = None,
    weights: Annotated[
        str | None,
        typer.Option(help="Weights to start from: a run's folder, .safetensors, or an authors' checkpoint."),
    ] = None,
    show: Show = False,
) -> None:
    """Fine-tune trained weights on another data set; the classifier is made anew for its classes."""
    from cbsa.train import RECIPES

    config = configure(recipe, settings)
    if weights is not None:
        config = replace(config, model=replace(config.model, weights=weights))
    if show:
        show_recipe(RECIPES[recipe], config)
        return
    if config.model.weights is None and not config.model.kwargs.get("pretrained"):
        raise typer.BadParameter("fine-tuning needs weights to start from: give --weights FILE_OR_FOLDER")
    _run(config, out or Path("outputs") / "finetune" / f"{config.recipe}-seed{config.seed}")


def evaluate(
    target: Annotated[str, typer.Argument(help="Folder of a run, or a recipe with model.weights=FILE.")],
    settings: Settings = None,
    checkpoint: Annotated[str, typer.Option(help="Of a run: 'last' or 'best'.")] = "last",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="JSON file for the numbers.")] = None,
) -> None:
    """Evaluate weights on the evaluation split: accuracy, loss, and the accuracy of each class."""
    from cbsa._checks import check_choice
    from cbsa._files import prepare_file
    from cbsa.report import per_class_accuracy
    from cbsa.train import RECIPES
    from cbsa.train.assess import CHOICES, assess, config_of_run
    from cbsa.train.fields import override

    console = Console(quiet=not is_main())
    with friendly():
        check_choice("--checkpoint", checkpoint, CHOICES)
        if out is not None and is_main():
            prepare_file(out)
        folder = Path(target)
        if folder.is_dir():
            config = override(config_of_run(folder, checkpoint), settings or [])
        elif target in RECIPES:
            config = configure(target, settings)
        else:
            raise ValueError(f"{target!r} is neither the folder of a run nor a recipe; see train --list")
        result = assess(config, console)
    metrics = result.metrics
    table = Table(title=f"{config.model.name} on {metrics.count:,} images of {config.data.dataset}")
    for name in ("top-1 %", "top-5 %", "loss", "unreadable"):
        table.add_column(name, justify="right")
    table.add_row(f"{metrics.top1:.2f}", f"{metrics.top5:.2f}", f"{metrics.loss:.4f}", str(result.unreadable))
    console.print(table)
    numbers: dict[str, Any] = {k: getattr(metrics, k) for k in ("top1", "top5", "loss", "count")}
    if metrics.confusion is not None:
        accuracy = dict(zip(result.classes, per_class_accuracy(metrics.confusion).tolist(), strict=True))
        numbers["per_class"] = {k: None if math.isnan(v) else v for k, v in accuracy.items()}
        _print_classes(console, accuracy)
    if out is not None and is_main():
        out.write_text(json.dumps(numbers, indent=2) + "\n")
        console.print(f"Written: {escape(str(out))}", soft_wrap=True)


def plot(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Picture to write; also as SVG.")] = Path(
        "outputs/curves.png"
    ),
) -> None:
    """Draw loss, accuracy and learning rate of one or many runs."""
    from cbsa._files import prepare_folder
    from cbsa.experiments.report import save_figure
    from cbsa.report import plot_curves
    from cbsa.train.log import read_epochs

    with friendly():
        names = [folder.name for folder in runs]
        curves = {}
        for folder in runs:
            records = read_epochs(folder)
            if not records:
                raise ValueError(f"{folder} has no finished epoch yet")
            curves[folder.name if names.count(folder.name) == 1 else str(folder)] = records
        prepare_folder(out.parent)
    paths = save_figure(plot_curves(curves), out.with_suffix(""))
    Console().print(
        f"[bold]Look at {escape(str(paths[0]))}[/bold] (also {escape(str(paths[1]))})", soft_wrap=True
    )


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


def _run(config: "TrainConfig", folder: Path) -> None:
    console = Console(quiet=not is_main())
    result = run_to_end(config, folder, console)
    summary = result.summary
    console.print(
        f"[bold]top-1 {summary['top1']:.2f} %[/bold], top-5 {summary['top5']:.2f} % on "
        f"{summary['evaluated_images']:,} images; best {summary['best_top1']:.2f} % in epoch "
        f"{summary['best_epoch']}; {summary['seconds']:.0f} s",
        highlight=False,
    )
    if result.metrics is not None and is_main():
        draw_run(result, console)
    console.print(
        f"[bold]Look at {escape(str(folder))}[/bold]: curves.png, confusion.png, model/, summary.json",
        soft_wrap=True,
    )


def draw_run(result: "Result", console: Console) -> None:
    """Draw curves and confusion matrix into the run's folder, and list the classes that are hardest."""
    from cbsa.experiments.report import save_figure
    from cbsa.report import per_class_accuracy, plot_confusion, plot_curves
    from cbsa.train.log import read_epochs

    save_figure(plot_curves({result.folder.name: read_epochs(result.folder)}), result.folder / "curves")
    if result.metrics is not None and result.metrics.confusion is not None:
        confusion, classes = result.metrics.confusion, result.summary["classes"]
        save_figure(plot_confusion(confusion, classes), result.folder / "confusion")
        _print_classes(console, dict(zip(classes, per_class_accuracy(confusion).tolist(), strict=True)))


def is_main() -> bool:
    """Whether this is the process that talks and writes: the only one, or torchrun's first."""
    return os.environ.get("RANK", "0") == "0"


def configure(recipe_name: str, settings: list[str] | None) -> "TrainConfig":
    """Settings of a recipe, changed by name=value."""
    from cbsa.train import override, recipe

    with friendly():
        return override(recipe(recipe_name), settings or [])


@contextmanager
def friendly() -> Iterator[None]:
    """Turn errors of the user into messages."""
    from cbsa.models import CheckpointError
    from cbsa.train.run_folder import FolderInUseError

    try:
        yield
    except (ValueError, TypeError, FileNotFoundError, CheckpointError, FolderInUseError) as error:
        raise typer.BadParameter(str(error)) from error


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


def _print_classes(console: Console, accuracy: dict[str, float]) -> None:
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
