"""``cbsa reproduce fig-seg-noise``: segmenters under noise on their decoders."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from cbsa.cli.looks import PARTS, SIGMAS, Parts, Seeds, Sigmas
from cbsa.cli.options import numbers, split
from cbsa.cli.reproduce import prepare, say_where
from cbsa.cli.running import friendly

_NAME = "fig-seg-noise"


def fig_seg_noise(
    model: Annotated[
        list[str],
        typer.Option(
            "--model", "-m", help="Run of cbsa segment train, or saved segmenter; LABEL=FOLDER names it."
        ),
    ],
    sigmas: Sigmas = SIGMAS,
    seeds: Seeds = 3,
    parts: Parts = PARTS,
    images: Annotated[int, typer.Option(min=0, help="How many images, evenly spaced; 0 for all.")] = 0,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", help="Settings of the runs to change, e.g. data.val_split=test."),
    ] = None,
    checkpoint: Annotated[str, typer.Option(help="Of each run: 'last' or 'best'.")] = "last",
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for picture and numbers.")] = Path(
        f"outputs/{_NAME}"
    ),
) -> None:
    """Draw mIoU under noise on the decoder's attention layers (figure segmentation, middle and right)."""
    from cbsa.experiments import seg_noise as experiment
    from cbsa.train import to_dict
    from cbsa.train.display import Display
    from cbsa.train.segmentation.trained import open_segmenter

    prepare(out)
    console = Console()
    found, runs, perturbed = {}, {}, split(parts)
    with friendly():
        values = numbers("--sigmas", sigmas)
        for label, folder in _name(model).items():
            config, segmenter = open_segmenter(folder, setting or [], checkpoint)
            with Display(console) as display, display.task(label) as update:
                found[label] = experiment.noise_sweep(
                    config,
                    segmenter,
                    sigmas=values,
                    seeds=seeds,
                    parts=perturbed,
                    images=images,
                    progress=update,
                )
            runs[label] = {"run": str(folder), "data": to_dict(config)["data"]}
    console.print(experiment.grid(found).rich())
    console.print(experiment.CAPTION, highlight=False, markup=False)
    say_where(console, experiment.save(found, runs, perturbed, out))


def _name(models: list[str]) -> dict[str, Path]:
    """Folders of runs by their labels, which are the folders' names unless others are given."""
    named: dict[str, Path] = {}
    for given in models:
        label, equals, path = given.partition("=")
        folder = Path(path if equals else given)
        label = label if equals else folder.name
        if label in named:
            raise ValueError(f"two models are called {label!r}: name them by --model LABEL=FOLDER")
        named[label] = folder
    return named


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(_NAME)(fig_seg_noise)
