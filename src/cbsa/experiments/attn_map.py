"""Paper figure attn_map: where the class token looks, in early, middle and late layers of several models."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from cbsa._checks import check_int
from cbsa.analysis import AttentionMaps, attention_maps
from cbsa.bench.tables import Grid
from cbsa.data.transforms import EvalTransform, normalise
from cbsa.experiments.images import ImageChoice, LabelledImages
from cbsa.experiments.report import save_analysis
from cbsa.experiments.subjects import Start, Subject, naming, silent, ticking
from cbsa.explain.images import open_image
from cbsa.report import compare_attention

NAME = "fig-attn-map"
MASS = 0.6  # share of the attention whose patches are counted
CAPTION = (
    "Patches: how many, in descending order, hold 60 % of the map; effective: exp of its entropy. Few are a "
    "sharp map, all of them a flat one. CBSA: a row of A_k A_kᵀ; MSSA and MHSA: a row of their softmax; what "
    "falls on CLS is left out. The paper shows images at 960 px and no number."
)


@dataclass(frozen=True)
class Looks:
    """Maps of the same images through every model."""

    pixels: Tensor  # (B, 1 or 3, S, S) bytes, as the first model sees them
    titles: list[str]
    maps: dict[str, AttentionMaps]
    head: int | None  # from 0; None for the mean over heads

    def drawn(self, label: str) -> Tensor:
        """The maps of a model that are drawn, (layers, B, h, w), each of sum 1."""
        maps = self.maps[label].maps.double()
        return maps.mean(2) if self.head is None else maps[:, :, self.head]


def early_middle_late(depth: int) -> tuple[int, ...]:
    """First, middle and last layer, from 0; fewer in a model of fewer layers."""
    return tuple(dict.fromkeys((0, (depth - 1) // 2, depth - 1)))


def run(
    subjects: Sequence[Subject],
    images: ImageChoice | Sequence[Path],
    *,
    layers: Sequence[int] | None = None,
    head: int | None = None,
    size: int | None = None,
    start: Start = silent,
) -> Looks:
    """Compute the maps of the class token over all patches; see :func:`cbsa.analysis.attention_maps`.

    Args:
        subjects: the models.
        images: images of a data set, or image files.
        layers: which layers, from 0; by default the first, the middle and the last.
        head: which head, from 0; by default the mean over heads.
        size: side of the images in pixels; by default each model's own.
        start: tells progress.
    """
    maps: dict[str, AttentionMaps] = {}
    shown: Tensor | None = None
    titles: list[str] = []
    for subject in subjects:
        pixels, normalised, names = _images(subject, images, size, start)
        with naming(subject):
            blocks = subject.model.blocks
            _check_head(head, [block.attn.num_heads for block in blocks])
            wanted = early_middle_late(len(blocks)) if layers is None else layers
            found = [
                attention_maps(subject.model, one[None], wanted)
                for one in ticking(normalised, pixels, subject.label, start)
            ]
            maps[subject.label] = replace(found[0], maps=torch.cat([m.maps.cpu() for m in found], dim=1))
        if shown is None:
            shown, titles = pixels, names
    assert shown is not None
    return Looks(shown, titles, maps, head)


def _check_head(head: int | None, heads: list[int]) -> None:
    if head is not None and check_int("head", head, at_least=0) >= min(heads):
        raise ValueError(f"head {head + 1} is not there: the model has {min(heads)} heads")


def _images(
    subject: Subject, images: ImageChoice | Sequence[Path], size: int | None, start: Start
) -> tuple[Tensor, Tensor, list[str]]:
    """Images as bytes and as the model takes them, (B, C, S, S), and their names."""
    if isinstance(images, ImageChoice):
        loader = LabelledImages(images, subject.trained.data, img_size=size)
        parts = list(ticking(loader.pixels(), loader, "Images", start))
        pixels = torch.cat([pixels for pixels, _ in parts])
        classes = loader.source.classes
        names = [classes[label] for _, targets in parts for label in targets.tolist()]
        return pixels, loader.normalise(pixels), names
    data = replace(subject.trained.data, resize="squash")
    if size is not None:
        data = replace(data, img_size=size)
    pixels = torch.stack([EvalTransform(data)(open_image(path)) for path in images])
    return pixels, normalise(pixels, data.mean, data.std), [path.stem for path in images]


def patches_holding(maps: Tensor) -> Tensor:
    """How many patches of maps (…, h, w) ≥ 0, in descending order, hold the share :data:`MASS`, (…)."""
    ordered = maps.flatten(-2).sort(-1, descending=True).values
    before = ordered.cumsum(-1) - ordered
    return (before < MASS * ordered.sum(-1, keepdim=True)).sum(-1)


def effective_patches(maps: Tensor) -> Tensor:
    """exp of the entropy of maps (…, h, w) of sum 1: from 1 patch to all of them, (…)."""
    entropy: Tensor = torch.special.entr(maps.flatten(-2)).sum(-1)
    return entropy.exp()


def grid(results: Looks) -> Grid:
    """How far the maps spread, by model and layer; means over images."""
    cells: list[tuple[str, ...]] = []
    for label, maps in results.maps.items():
        drawn, patches = results.drawn(label), maps.grid[0] * maps.grid[1]
        for layer, values in zip(maps.layers, drawn, strict=True):
            cells.append(
                (
                    label,
                    str(layer + 1),
                    f"{patches_holding(values).double().mean():.1f}",
                    f"{effective_patches(values).mean():.1f}",
                    str(patches),
                )
            )
    what = "mean over heads" if results.head is None else f"head {results.head + 1}"
    columns = ("model", "layer", "patches with 60 %", "effective", "of")
    return Grid(f"Figure attn_map: spread of the maps of CLS, {what}", columns, cells)


def save(
    results: Looks, subjects: Sequence[Subject], images: ImageChoice | Sequence[Path], out: Path
) -> list[Path]:
    """Write the picture, and the maps it shows."""
    described = images.describe() if isinstance(images, ImageChoice) else {"files": [p.name for p in images]}
    rows = [
        {
            "model": label,
            "image": i,
            "title": results.titles[i],
            "layer": layer,
            "row": y,
            "column": x,
            "share": value,
        }
        for label, maps in results.maps.items()
        for layer, of_layer in zip(maps.layers, results.drawn(label), strict=True)
        for i, of_image in enumerate(of_layer)
        for y, line in enumerate(of_image.tolist())
        for x, value in enumerate(line)
    ]
    spread = [
        {"model": label, "layer": layer, "patches_with_60_percent": p, "effective_patches": e}
        for label, maps in results.maps.items()
        for layer, p, e in zip(
            maps.layers,
            patches_holding(results.drawn(label)).double().mean(1).tolist(),
            effective_patches(results.drawn(label)).mean(1).tolist(),
            strict=True,
        )
    ]
    figure = compare_attention(results.pixels, results.maps, head=results.head, titles=results.titles)
    return save_analysis(
        out,
        NAME,
        {"": figure},
        rows,
        {
            "models": [subject.describe() for subject in subjects],
            "images": described,
            "size": list(results.pixels.shape[-2:]),
            "head": results.head,
            "spread": spread,
        },
    )
