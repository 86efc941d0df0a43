"""The options that commands share which look into models, and what makes such a command of a function."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from cbsa.cli.looking import looking
from cbsa.cli.options import Device, Options, declare, options_of

PANEL = "What to look at"
Models = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        "-m",
        help="Folder of a run, folder or file of weights, registered name, or digits:NAME; several may be "
        "given, LABEL=MODEL names one. By default a small CBT that learns digits on first use.",
        rich_help_panel=PANEL,
    ),
]
Weights = Annotated[
    list[str] | None,
    typer.Option(help="Weights for each registered name, in order.", rich_help_panel=PANEL),
]
Untrained = Annotated[
    bool,
    typer.Option(
        "--untrained",
        help="Also look at each model with random weights: what training has to do with it.",
        rich_help_panel=PANEL,
    ),
]
Data = Annotated[
    str | None,
    typer.Option(
        help="NAME, NAME:FOLDER or FOLDER, e.g. digits, parquet:/data/tiny-imagenet; by default what the "
        "first model was trained on.",
        rich_help_panel=PANEL,
    ),
]
Masks = Annotated[
    str | None,
    typer.Option(
        help="pets:FOLDER (Oxford-IIIT Pets with trimaps), voc:FOLDER (PASCAL VOC12), or digits (masks "
        "derived from their ink; the default for models of the digits).",
        rich_help_panel=PANEL,
    ),
]
Split = Annotated[
    str, typer.Option(help="Split of the data; by default the one to evaluate on.", rich_help_panel=PANEL)
]
Images = Annotated[
    int,
    typer.Option(
        min=0, help="How many images, evenly spaced over the split; 0 for all.", rich_help_panel=PANEL
    ),
]
Batch = Annotated[int, typer.Option(min=1, help="Images at a time.")]
Out = Annotated[
    Path | None, typer.Option("--out", "-o", help="Folder for pictures and numbers [outputs/COMMAND].")
]
Eps = Annotated[float, typer.Option(help="Quantisation precision ε of the coding rate.")]
Mass = Annotated[float, typer.Option(help="Share of the attention that the thresholded map keeps.")]
Resize = Annotated[str, typer.Option(help="How maps are enlarged: nearest (as in DINO) or bilinear.")]
CountBoundary = Annotated[
    bool, typer.Option("--count-boundary", help="Count boundary pixels for foreground and background too.")
]
Sigmas = Annotated[str, typer.Option(help="Standard deviations of the noise, separated by commas.")]
SIGMAS = "0,0.01,0.02,0.05,0.1,0.2,0.5"
Seeds = Annotated[int, typer.Option(min=1, help="How many draws of the noise for each σ.")]
Parts = Annotated[
    str, typer.Option(help="Parameters to perturb: some of bases, output, own, separated by commas.")
]
PARTS = "bases,output,own"


def looks(
    *, images: int | None, masks: bool = False, models: Sequence[str] = ("digits",)
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function that looks into models.

    The function is called with a :class:`cbsa.cli.looking.Looking`, the images chosen, and the options of its
    own. Models, images, device and folder are options of every command.

    Args:
        images: how many images by default, 0 for all; None for a function that chooses them by itself.
        masks: whether the images come with masks.
        models: the models by default.
    """

    def make(function: Callable[..., None]) -> Callable[..., None]:
        first: Options = {
            "model": (Models, None),
            "weights": (Weights, None),
            "untrained": (Untrained, False),
        }
        if images is not None:
            first |= {
                "data": (Masks if masks else Data, None),
                "split": (Split, ""),
                "images": (Images, images),
            }
        given = 1 if images is None else 2  # what the function is given beside its own options
        own = options_of(function, given)
        options = first | own | {"device": (Device, "auto"), "out": (Out, None)}

        @functools.wraps(function)
        def command(**values: Any) -> None:
            shared = {name: values.pop(name) for name in values.keys() - own.keys()}
            name, where = function.__name__.replace("_", "-"), (shared["out"], shared["model"])
            with looking(
                name, *where, shared["weights"], shared["untrained"], shared["device"], models
            ) as look:
                if images is None:
                    function(look, **values)
                else:
                    choose = look.masks if masks else look.images
                    function(look, choose(shared["data"], shared["split"], shared["images"]), **values)

        declare(command, options)
        return command

    return make
