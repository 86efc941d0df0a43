"""``cbsa adapt``: another attention in a trained ViT, and fine-tuning."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from cbsa.cli.running import (
    Listing,
    Out,
    Settings,
    Show,
    draw_run,
    friendly,
    is_main,
    list_recipes,
    look_at,
    run_to_end,
    show_recipe,
)

if TYPE_CHECKING:
    from cbsa.train.adaptation.config import AdaptConfig


def adapt(
    settings: Settings = None,
    model: Annotated[
        str,
        typer.Option(
            "--model",
            "-m",
            help="What to adapt: the folder of a run, weights with their config.json, a run's checkpoint, or "
            "a name of timm's, whose weights are then downloaded.",
        ),
    ] = "",
    style: Annotated[
        str, typer.Option(help="cbsa (CBSA*), agent, linear, or softmax: fine-tune only.")
    ] = "cbsa",
    recipe: Annotated[str, typer.Option(help="Name of a recipe; see --list.")] = "vit_adapt",
    data: Annotated[str | None, typer.Option(help="Folder of the data set (data.root).")] = None,
    distill: Annotated[
        str, typer.Option(help="What to learn from the original: none, logits, features or both.")
    ] = "none",
    groups: Annotated[int, typer.Option(help="Replace the layers in so many groups, one after another.")] = 1,
    weights: Annotated[
        str | None, typer.Option(help="With a name of timm's: a file or folder of weights instead.")
    ] = None,
    out: Out = None,
    list_all: Listing = False,
    show: Show = False,
) -> None:
    """Swap the attention of a trained ViT and fine-tune it; the same command goes on with a run.

    Reports the accuracy before, right after the swap, and after fine-tuning. More settings: swap.layers=6,7,8
    swap.representatives=7,7 swap.over=0.5 swap.order=first distill.features=2 distill.temperature=2 epochs=5

    Under torchrun it runs in several processes: torchrun --nproc-per-node 8 -m cbsa adapt …
    """
    from cbsa.train.adaptation.recipes import ADAPT_RECIPES

    if list_all:
        list_recipes(ADAPT_RECIPES, "cbsa adapt --recipe")
        return
    chosen = [f"swap.style={style}", f"distill.what={distill}", f"swap.groups={groups}"]
    chosen += [f"data.root={data}"] if data is not None else []
    config = _configure(recipe, model, weights, [*chosen, *(settings or [])], show)
    if show:
        show_recipe(ADAPT_RECIPES[recipe], config)
        return
    _run(config, out or _folder(config))


def _run(config: "AdaptConfig", folder: Path) -> None:
    """Adapt and fine-tune, and show what came of it."""
    from cbsa.bench.tables import Grid
    from cbsa.train.adaptation.report import read_report, stage_rows

    console = Console(quiet=not is_main())
    result = run_to_end(config, folder, console)
    if is_main():
        columns = ("", "top-1 %", "top-5 %", "loss", "GFLOPs")
        distilled = f"distillation {config.distill.what}, {config.epochs} epochs"
        title = f"{config.model.name} → {config.swap.style}: {distilled}"
        console.print(Grid(title, columns, stage_rows(read_report(folder))).rich())
        if result.metrics is not None:
            draw_run(result, console)
    look_at(console, folder, "adaptation.md, adaptation.json, curves.png, model/")


def _configure(
    recipe: str, model: str, weights: str | None, settings: list[str], show: bool
) -> "AdaptConfig":
    from cbsa.train import override
    from cbsa.train.adaptation.original import configure
    from cbsa.train.adaptation.recipes import adapt_recipe

    with friendly():
        config = adapt_recipe(recipe)
        if model:
            config = configure(config, model, weights)
        elif not show:
            raise ValueError(
                "--model is missing: the folder of a run, a file of weights, or a name of timm's"
            )
        return override(config, settings)


def _folder(config: "AdaptConfig") -> Path:
    """Where a run goes unless it is said: one folder for each kind of run."""
    swap = config.swap
    parts = [config.model.name, swap.style, config.distill.what, f"groups{swap.groups}", f"seed{config.seed}"]
    return Path("outputs") / "adapt" / "-".join(parts)
