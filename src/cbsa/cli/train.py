"""``cbsa train``, ``finetune``, ``eval`` and ``plot``: runs from the command line."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cbsa.cli.running import (
    Checkpoint,
    Listing,
    Numbers,
    Out,
    Recipe,
    Settings,
    Show,
    draw_run,
    friendly,
    is_main,
    list_recipes,
    look_at,
    print_classes,
    run_to_end,
    show_recipe,
)

if TYPE_CHECKING:
    from cbsa.train import TrainConfig


def train(
    recipe: Recipe = None,
    settings: Settings = None,
    out: Out = None,
    list_all: Listing = False,
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
    checkpoint: Checkpoint = "last",
    out: Numbers = None,
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
        print_classes(console, accuracy)
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
    look_at(console, folder, "curves.png, confusion.png, model/, summary.json")


def configure(recipe_name: str, settings: list[str] | None) -> "TrainConfig":
    """Settings of a recipe, changed by name=value."""
    from cbsa.train import override, recipe

    with friendly():
        return override(recipe(recipe_name), settings or [])
