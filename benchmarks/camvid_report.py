"""What the CamVid study shows: a table of decoders, IoU by class, sheets of pictures; and what it times."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cbsa.bench.model_forms import MODES, Form
from cbsa.bench.tables import Grid
from cbsa.report.style import bare, new_figure
from cbsa.train.segmentation.config import SegmentConfig
from cbsa.train.segmentation.trained import read_segmenter


@dataclass(frozen=True)
class SegmenterForm(Form):
    """A trained segmenter, encoder and decoder, as ``cbsa bench`` times models; its name is its folder."""

    size: tuple[int, int] = (0, 0)

    @classmethod
    def of(cls, folder: Path, config: SegmentConfig, classes: int, mode: str) -> "SegmenterForm":
        """In the precision, compiled or not, and with the images of its run."""
        runtime, size = config.runtime, config.data.crop
        how = (mode, runtime.precision, "blocks" if runtime.compile else "none", classes)
        return cls(str(folder), max(size), config.batch_size, *how, size)

    def create(self) -> nn.Module:
        """The segmenter of the run."""
        return read_segmenter(Path(self.name))

    def draw(self, device: torch.device, generator: torch.Generator) -> Tensor:
        """Random images of the training crops' size."""
        images = torch.randn((self.batch, 3, *self.size), device=device, generator=generator)
        return images.to(memory_format=torch.channels_last)

    def targets(self) -> tuple[int, ...]:
        """One class for each pixel."""
        return (self.batch, *self.size)


def score_grid(found: dict[str, Any]) -> Grid:
    """Scores, costs and speeds of the decoders."""
    columns = ("decoder", "mIoU %", "val mIoU %", "pixels %", "boundary IoU %", "parameters", "GFLOPs")
    columns += ("images/s", "training images/s", "run's images/s", "training GB")
    cells = []
    for part in found.values():
        test, speed = part["test"], part["speed"]
        peak = speed["training"].get("peak_bytes")
        cells.append(
            (
                part["label"],
                *(f"{value:.2f}" for value in (test["miou"], part["val_miou"], test["pixel_accuracy"])),
                f"{test['boundary_iou']:.2f}",
                f"{speed['decoder_parameters'] / 1e6:.3f} M",
                f"{speed['decoder_gflops']:.2f}",
                *(
                    f"{speed[m]['images_s']:,.0f}" if "images_s" in speed[m] else speed[m]["status"]
                    for m in MODES
                ),
                f"{part['training_images_s']:,.0f}",
                f"{peak / 1e9:.2f}" if peak else "",
            )
        )
    notes = (
        "mIoU, pixel accuracy and boundary IoU on the test split, final weights.",
        "parameters and GFLOPs: the decoder alone, for one image; everything counted.",
        "images/s: the whole segmenter, as cbsa bench models takes them (training: forward and backward).",
        "run's images/s: with reading, augmentation and the optimiser, median over epochs.",
    )
    return Grid("Decoders on CamVid", columns, cells, notes)


def class_grid(found: dict[str, Any]) -> Grid:
    """IoU of each class, by decoder."""
    classes = next(iter(found.values()))["test"]["iou"]
    cells = []
    for name in classes:
        values = (part["test"]["iou"][name] for part in found.values())
        cells.append((name, *("—" if value is None else f"{value:.1f}" for value in values)))
    return Grid("IoU by class, %", ("class", *(part["label"] for part in found.values())), cells)


def noise_grid(by_sigma: dict[str, list[dict[str, float]]]) -> Grid:
    """mIoU under noise on the decoder, by σ, as ``fig-seg-noise.json`` has it."""
    rows = zip(*by_sigma.values(), strict=True)
    cells = [
        (f"{draws[0]['sigma']:g}", *(_spread(draw["mean"], draw["std"]) for draw in draws)) for draws in rows
    ]
    seeds = next(iter(by_sigma.values()))[0]["seeds"]
    title = f"mIoU in % under noise on the decoder, {seeds} draws"
    return Grid(title, ("σ", *by_sigma), cells, ("noise: mean ± standard deviation over the draws.",))


def _spread(mean: float, std: float | None) -> str:
    return f"{mean:.1f}" if std is None else f"{mean:.1f} ± {std:.1f}"


def write_tables(out: Path, found: dict[str, Any]) -> list[Grid]:
    """Write ``results.md`` from the decoders' numbers and, if it is there, ``fig-seg-noise.json``."""
    grids, noise = [score_grid(found), class_grid(found)], out / "fig-seg-noise.json"
    if noise.is_file():
        grids.append(noise_grid(json.loads(noise.read_text())["by_sigma"]))
    (out / "results.md").write_text("\n".join(grid.markdown() for grid in grids))
    return grids


def sheet_of(columns: dict[str, list[Any]]) -> Any:
    """A figure of images, a column for each label."""
    rows = len(next(iter(columns.values())))
    figure = new_figure(2.6 * len(columns), 2.0 * rows + 0.3)
    panels = figure.subplots(rows, len(columns), squeeze=False)
    for column, (label, images) in enumerate(columns.items()):
        panels[0, column].set_title(label, fontsize=10)
        for axes, image in zip(panels[:, column], images, strict=True):
            axes.imshow(image, interpolation="nearest")
            bare(axes)
    return figure
