"""Paper tables qual-seg and qual-seg-layers: zero-shot segmentation by the maps of the class token."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cbsa import paper
from cbsa.analysis import ZeroShotSegmentation, zero_shot_segmentation
from cbsa.analysis.segmentation import TARGETS, canonical
from cbsa.bench.tables import Grid
from cbsa.data import SegmentationLoader, segmentation_loader
from cbsa.experiments.images import ImageChoice
from cbsa.experiments.masks import DIGITS_NOTE, open_masks
from cbsa.experiments.report import save_analysis
from cbsa.experiments.subjects import Start, Subject, naming, silent, ticking
from cbsa.report import plot_zero_shot, plot_zero_shot_layers

NAME, LAYERS_NAME = "table-zero-shot", "table-zero-shot-layers"
_MOST_READ_ALONE = 500  # images up to which starting worker processes does not pay
_BEST_LAYERS = 3  # of each model that are marked, as in the paper
CAPTION = (
    "Jaccard similarity of thresholded maps of CLS with masks; nothing was trained for it. Best: of all "
    "heads (and layers), chosen for each image by the answer, as in the paper («best-performing»). All "
    "pixels: the score of calling every pixel foreground (background, boundary). The paper's models were "
    "pretrained on ImageNet-1k and measured on PASCAL VOC12: on other data compare the order of the models, "
    "not the numbers."
)


@dataclass(frozen=True)
class Scores:
    """Similarities of every model on the same images."""

    by_model: dict[str, ZeroShotSegmentation]
    trivial: list[float]  # of a map that covers all pixels, by target; mean over images
    images: int


def run(
    subjects: Sequence[Subject],
    choice: ImageChoice,
    *,
    mass: float = 0.6,
    resize: str = "nearest",
    count_boundary: bool = False,
    batch_size: int = 32,
    start: Start = silent,
) -> Scores:
    """Measure every model; see :func:`cbsa.analysis.zero_shot_segmentation`."""
    source = open_masks(choice)
    found: dict[str, ZeroShotSegmentation] = {}
    shares: list[list[Tensor]] = []
    for subject in subjects:
        data = replace(subject.trained.data, resize="squash")
        if len(source) <= _MOST_READ_ALONE:
            data = replace(data, workers=0)
        loader = segmentation_loader(source, data, batch_size)
        shares.append([])
        with naming(subject):
            found[subject.label] = zero_shot_segmentation(
                subject.model,
                _noting_shares(loader, source.labels, count_boundary, shares[-1], subject.label, start),
                labels=source.labels,
                mass=mass,
                resize=resize,
                count_boundary=count_boundary,
            )
    trivial = torch.stack(shares[0]).nanmean(0).tolist()
    return Scores(found, trivial, next(iter(found.values())).jaccard.shape[1])


def _noting_shares(
    loader: SegmentationLoader,
    labels: str,
    count_boundary: bool,
    shares: list[Tensor],
    title: str,
    start: Start,
) -> Iterator[tuple[Tensor, list[Tensor]]]:
    """Pass batches on, and note what maps that cover everything would get for each image."""
    for pixels, masks in ticking(loader, loader, title, start):
        shares.extend(cover_all(canonical(mask, labels), count_boundary) for mask in masks)
        yield pixels, masks


def cover_all(mask: Tensor, count_boundary: bool) -> Tensor:
    """Jaccard similarity of all pixels with each target of a canonical mask, (3,); NaN where it is absent."""
    background, foreground, boundary = (float((mask == label).sum()) for label in range(3))
    counted = background + foreground + (boundary if count_boundary else 0.0)
    shares = [(foreground, counted), (background, counted), (boundary, float(mask.numel()))]
    return torch.tensor([part / whole if part else math.nan for part, whole in shares], dtype=torch.float64)


def grid(results: Scores) -> Grid:
    """Best maps of each model by target, and the paper's."""
    cells = [
        (label, *(_number(value) for value in scores.best.tolist()))
        for label, scores in results.by_model.items()
    ]
    cells.append(("all pixels", *(_number(value) for value in results.trivial)))
    cells += [(f"paper: {name}", *(f"{v:.2f}" for v in values)) for name, values in paper.ZERO_SHOT.items()]
    return Grid(
        f"Table qual-seg: best maps, Jaccard similarity, {results.images} images", ("model", *TARGETS), cells
    )


def layers_grid(results: Scores) -> Grid:
    """Best head of each layer for the foreground, ours and the paper's; the best three layers are bold."""
    place = TARGETS.index("foreground")
    curves = {label: s.per_layer[:, place].tolist() for label, s in results.by_model.items()}
    curves |= {f"paper: {name}": list(values) for name, values in paper.ZERO_SHOT_LAYERS.items()}
    depth = max(len(values) for values in curves.values())
    columns = []
    for values in curves.values():
        best = sorted(range(len(values)), key=lambda i: -values[i])[:_BEST_LAYERS]
        marked = [f"**{_number(v)}**" if i in best else _number(v) for i, v in enumerate(values)]
        columns.append([*marked, *[""] * (depth - len(values))])
    return Grid(
        f"Table qual-seg-layers: foreground, best head, {results.images} images",
        ("layer", *curves),
        [(str(layer), *row) for layer, row in enumerate(zip(*columns, strict=True), 1)],
        ("The paper does not say which target its table has.",),
    )


def save(
    results: Scores, subjects: Sequence[Subject], choice: ImageChoice, out: Path, settings: dict[str, Any]
) -> list[Path]:
    """Write the bars, and the mean similarity of every layer and head."""
    figures = {"": plot_zero_shot(results.by_model, results.trivial)}
    rows = [{"model": label, **row} for label, scores in results.by_model.items() for row in scores.table()]
    best = {
        label: dict(zip(TARGETS, scores.best.tolist(), strict=True))
        for label, scores in results.by_model.items()
    }
    theirs = {name: dict(zip(TARGETS, values, strict=True)) for name, values in paper.ZERO_SHOT.items()}
    return save_analysis(
        out,
        NAME,
        figures,
        rows,
        _origin(results, subjects, choice, settings) | {"best": best, "paper": theirs},
    )


def save_layers(
    results: Scores, subjects: Sequence[Subject], choice: ImageChoice, out: Path, settings: dict[str, Any]
) -> list[Path]:
    """Write the curves, and the similarity of the best head of each layer.

    The paper's curves are drawn beside ours where the images are its own, PASCAL VOC12.
    """
    theirs = paper.ZERO_SHOT_LAYERS if choice.dataset == "voc" else None
    rows = [
        {"model": label, **row} for label, scores in results.by_model.items() for row in scores.layer_table()
    ]
    return save_analysis(
        out,
        LAYERS_NAME,
        {"": plot_zero_shot_layers(results.by_model, theirs, all_pixels=results.trivial[0])},
        rows,
        _origin(results, subjects, choice, settings)
        | {"paper": {name: list(values) for name, values in paper.ZERO_SHOT_LAYERS.items()}},
    )


def notes(choice: ImageChoice) -> str:
    """What to know about the masks."""
    return DIGITS_NOTE if choice.dataset == "digits" else ""


def _origin(
    results: Scores, subjects: Sequence[Subject], choice: ImageChoice, settings: dict[str, Any]
) -> dict[str, Any]:
    return {
        "models": [subject.describe() for subject in subjects],
        "images": choice.describe() | {"measured": results.images},
        "masks": notes(choice) or choice.dataset,
        "settings": settings,
        "all_pixels": dict(zip(TARGETS, results.trivial, strict=True)),
    }


def _number(value: float) -> str:
    return "—" if math.isnan(value) else f"{value:.2f}"
