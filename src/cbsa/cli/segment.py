"""``cbsa segment``: training, evaluating and using segmenters."""

import json
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
    friendly,
    is_main,
    list_recipes,
    look_at,
    run_to_end,
    save_pictures,
    show_recipe,
)

if TYPE_CHECKING:
    from cbsa.train.segmentation.config import SegmentConfig

_MOST_CLASSES_LISTED = 30

app = typer.Typer(no_args_is_help=True, help="Train, evaluate and use models that segment images.")
Target = Annotated[
    str,
    typer.Argument(
        help="Folder of a run or of a saved segmenter, or a recipe with model.weights=FILE_OR_FOLDER."
    ),
]


@app.command()
def train(
    recipe: Recipe = None,
    settings: Settings = None,
    out: Out = None,
    list_all: Listing = False,
    show: Show = False,
) -> None:
    """Train a segmenter, or go on with a run that was interrupted: the same command resumes it.

    Under torchrun it runs in several processes: torchrun --nproc-per-node 8 -m cbsa segment train RECIPE …
    """
    from cbsa.train.segmentation.recipes import SEGMENT_RECIPES

    if list_all or recipe is None:
        list_recipes(SEGMENT_RECIPES, "cbsa segment train")
        return
    config = _configure(recipe, settings)
    if show:
        show_recipe(SEGMENT_RECIPES[recipe], config)
        return
    folder = out or Path("outputs") / "segment" / f"{config.recipe}-seed{config.seed}"
    console = Console(quiet=not is_main())
    result = run_to_end(config, folder, console)
    _print_scores(console, result.summary, f"{result.summary['model']} on {config.data.dataset}")
    console.print(
        f"best mIoU {result.summary['best_miou']:.2f} % in epoch {result.summary['best_epoch']}; "
        f"{result.summary['seconds']:.0f} s",
        highlight=False,
    )
    if result.metrics is not None and is_main():
        save_pictures(result)
    look_at(console, folder, "curves.png, confusion.png, model/, summary.json")


@app.command("eval")
def evaluate(
    target: Target,
    settings: Settings = None,
    checkpoint: Checkpoint = "last",
    out: Numbers = None,
) -> None:
    """Evaluate a segmenter: mIoU, IoU of each class, pixel accuracy, boundary IoU.

    A run knows its data; a saved segmenter is told of them: data.dataset=camvid data.root=/data/camvid.
    Several scales: windows.scales=0.5,0.75,1,1.25,1.5,1.75 windows.flip=true
    """
    from cbsa._files import prepare_file
    from cbsa.data.segmentation_source import split_of
    from cbsa.train.segmentation.assess import assess_segmenter
    from cbsa.train.segmentation.task import numbers

    console = Console(quiet=not is_main())
    with friendly():
        if out is not None and is_main():
            prepare_file(out)
        config, model = _open(target, settings, checkpoint)
        result = assess_segmenter(config, model, console)
    content = {
        **numbers(result.metrics, result.classes),
        "unreadable_images": result.unreadable,
        "split": split_of(config.data, train=False),
        "windows": {"scales": config.windows.scales, "flip": config.windows.flip},
    }
    _print_scores(console, content, f"{escape(target)} on {config.data.dataset}")
    if out is not None and is_main():
        out.write_text(json.dumps(content, indent=2) + "\n")
        console.print(f"Written: {escape(str(out))}", soft_wrap=True)


@app.command()
def predict(
    target: Target,
    images: Annotated[list[Path], typer.Argument(help="Image files, and folders of them.")],
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", help="Settings to change, as name=value, e.g. windows.flip=true."),
    ] = None,
    checkpoint: Checkpoint = "last",
    opacity: Annotated[float, typer.Option(help="Of the colours in overlays, 0 to 1.")] = 0.5,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the results.")] = Path(
        "outputs/segment/predictions"
    ),
) -> None:
    """Segment images: class indices as PNG files with a palette, and colours laid over the images."""
    from cbsa.train.display import Display
    from cbsa.train.distributed import choose_device
    from cbsa.train.segmentation.pictures import names_of
    from cbsa.train.segmentation.prediction import predict as run

    console = Console()
    with friendly():
        config, model = _open(target, setting, checkpoint)
        device = choose_device(config.runtime.device)
        with Display(console) as display, display.task("Segmenting") as update:
            result = run(
                model, config, images, out, device, opacity=opacity, report=display.warn, progress=update
            )
    total = max(1, int(result.pixels.sum()))
    table = Table("class", "% of all pixels", title=f"{len(result.written):,} images")
    names = model.about.classes or names_of(config.data, model.num_classes)
    shares = sorted(zip(result.pixels.tolist(), names, strict=True))
    for count, name in shares[::-1][:_MOST_CLASSES_LISTED]:
        table.add_row(escape(name), f"{100 * count / total:.1f}")
    console.print(table)
    if not result.written:
        console.print(f"[red]None of the {len(result.unreadable)} images could be read.[/red]")
        raise typer.Exit(1)
    look_at(console, out, "overlays/, labels/")


@app.command("pascal-context")
def pascal_context(
    labels: Annotated[Path, typer.Argument(help="Folder that trainval.tar.gz of Pascal-Context unpacks to.")],
    voc: Annotated[Path, typer.Argument(help="Folder of VOC2010; masks and lists are written into it.")],
) -> None:
    """Make the masks of data.dataset=pascal_context from its own label files, a MATLAB file an image."""
    from cbsa.data.pascal_context import convert_pascal_context
    from cbsa.train.display import Display

    console = Console()
    with friendly(), Display(console) as display, display.task("Converting") as update:
        counts = convert_pascal_context(labels, voc, update)
    said = " and ".join(f"{count:,} for {split}" for split, count in counts.items())
    look_at(console, voc, f"masks of {said}")


def _configure(recipe: str, settings: list[str] | None) -> "SegmentConfig":
    from cbsa.train import override
    from cbsa.train.segmentation.recipes import segment_recipe

    with friendly():
        return override(segment_recipe(recipe), settings or [])


def _open(target: str, settings: list[str] | None, checkpoint: str) -> tuple["SegmentConfig", Any]:
    """Settings and segmenter of a run's folder, of a saved segmenter, or of a recipe with weights."""
    from cbsa.train.segmentation.recipes import SEGMENT_RECIPES
    from cbsa.train.segmentation.trained import open_segmenter, read_segmenter

    folder = Path(target)
    if folder.is_dir():
        return open_segmenter(folder, settings or [], checkpoint)
    if target not in SEGMENT_RECIPES:
        raise ValueError(
            f"{target!r} is neither the folder of a run or of a saved segmenter nor a recipe; see segment "
            "train --list"
        )
    config = _configure(target, settings)
    if config.model.weights is None:
        raise ValueError("there are no weights to use: give model.weights=FILE_OR_FOLDER")
    return config, read_segmenter(Path(config.model.weights), checkpoint)


def _print_scores(console: Console, scores: dict[str, Any], title: str) -> None:
    """The scores, and the IoU of each class, the worst first; absent classes are named apart."""
    table = Table(title=f"{title}: {scores['evaluated_images']:,} images")
    for name in ("mIoU %", "pixel accuracy %", "mean accuracy %", "boundary IoU %", "loss"):
        table.add_column(name, justify="right")
    keys = ("miou", "pixel_accuracy", "mean_accuracy", "boundary_iou")
    table.add_row(*(f"{scores[key]:.2f}" for key in keys), f"{scores['loss']:.4f}")
    console.print(table)
    present = sorted((value, name) for name, value in scores["iou"].items() if value is not None)
    shown = present[:_MOST_CLASSES_LISTED]
    classes = Table(
        "class",
        "IoU %",
        title="IoU by class" if len(shown) == len(present) else f"The {len(shown)} worst of {len(present)}",
    )
    for value, name in shown:
        classes.add_row(escape(name), f"{value:.1f}")
    console.print(classes)
    if scores["absent_classes"]:
        names = ", ".join(scores["absent_classes"])
        console.print(
            f"Without a pixel in this split, and so without a score: {escape(names)}", soft_wrap=True
        )
