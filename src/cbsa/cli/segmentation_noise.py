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
_CAPTION = (
    "Noise N(0, σ²) on the parameters of the decoder's attention layers, σ absolute; mean over the seeds. "
    "The paper draws mIoU on ADE20K, without numbers: CBSA is «extremely robust», the black box "
    "«collapses»."
)


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
    from cbsa.analysis import NoiseSweep
    from cbsa.bench.tables import Grid
    from cbsa.experiments.report import save_analysis
    from cbsa.experiments.seg_noise import noise_sweep
    from cbsa.experiments.study_table import spread
    from cbsa.report import plot_noise
    from cbsa.train import to_dict
    from cbsa.train.display import Display
    from cbsa.train.segmentation.trained import open_segmenter

    prepare(out)
    console = Console()
    found: dict[str, NoiseSweep] = {}
    runs = {}
    with friendly():
        values = numbers("--sigmas", sigmas)
        for label, folder in _name(model).items():
            config, segmenter = open_segmenter(folder, setting or [], checkpoint)
            with Display(console) as display, display.task(label) as update:
                found[label] = noise_sweep(
                    config,
                    segmenter,
                    sigmas=values,
                    seeds=seeds,
                    parts=split(parts),
                    images=images,
                    progress=update,
                )
            runs[label] = {"run": str(folder), "data": to_dict(config)["data"]}
    cells = [
        (f"{sigma:g}", *(spread(result.scores[i].tolist(), 1) for result in found.values()))
        for i, sigma in enumerate(values)
    ]
    columns = ("σ", *found)
    title = "Figure segmentation (middle, right): mIoU in % under noise on the decoder"
    if seeds > 1:
        title += f", mean ± standard deviation over {seeds} draws"
    console.print(Grid(title, columns, cells).rich())
    console.print(_CAPTION, highlight=False, markup=False)
    rows = [
        {"model": label, "sigma": sigma, "seed": seed, "miou": result.scores[i, j].item()}
        for label, result in found.items()
        for i, sigma in enumerate(result.sigmas)
        for j, seed in enumerate(result.seeds)
    ]
    results = {
        "runs": runs,
        "parts": split(parts),
        "by_sigma": {label: result.table() for label, result in found.items()},
    }
    say_where(console, save_analysis(out, _NAME, {"": plot_noise(found, "Mean IoU, %")}, rows, results))


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
