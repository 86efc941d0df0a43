"""What one head of one layer does with an image, in four panels: the steps that paper figure CBT sketches."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from cbsa._checks import check_int
from cbsa.analysis import ExtractionFactors, Representatives, extraction_factors, representatives
from cbsa.data.transforms import EvalTransform, normalise
from cbsa.experiments.report import save_analysis
from cbsa.experiments.subjects import Subject, naming
from cbsa.explain.images import open_image
from cbsa.explain.samples import photographs
from cbsa.objective import coding_rate
from cbsa.report import plot_overview

NAME = "fig-overview"


@dataclass(frozen=True)
class Overview:
    """The operator at work on one image, in one layer."""

    title: str  # of the image
    pixels: Tensor  # (1 or 3, S, S) bytes
    factors: ExtractionFactors
    found: Representatives
    head: int  # from 0

    @property
    def rates(self) -> tuple[float, float]:
        """Coding rate of the representatives in nats, before and after their contraction."""
        before, after = (
            coding_rate(part[0][0, self.head].double()).item()
            for part in (self.found.extracted, self.found.contracted)
        )
        return before, after


def run(subject: Subject, image: Path | None, *, layer: int = 0, head: int = 0, size: int = 160) -> Overview:
    """Look at an image through one layer.

    Args:
        subject: a model with CBSA layers.
        image: an image file; by default a photograph that comes with scikit-learn.
        layer: which layer, from 0.
        head: which of its heads, from 0.
        size: side of the square that is cut from the middle of the image, in pixels.
    """
    title, picture = _open(image)
    data = replace(subject.trained.data, img_size=check_int("size", size), resize="crop", crop_pct=1.0)
    pixels = EvalTransform(data)(picture)
    with naming(subject), torch.no_grad():
        images = normalise(pixels[None], data.mean, data.std).to(next(subject.model.parameters()).device)
        factors = extraction_factors(subject.model, images, [layer])
        found = representatives(subject.model, images, [layer])
    heads = factors.factors.shape[2]
    if check_int("head", head, at_least=0) >= heads:
        raise ValueError(f"head {head + 1} is not there: the layer has {heads} heads")
    return Overview(title, pixels, factors, found, head)


def _open(image: Path | None) -> tuple[str, Image.Image]:
    if image is not None:
        return image.name, open_image(image)
    return photographs()[0]


def save(results: Overview, subject: Subject, out: Path, patch: tuple[int, int] | None = None) -> list[Path]:
    """Write the picture, and how far each representative reaches and moves."""
    rows, columns = results.factors.grid
    weights = results.factors.factors[0, 0, results.head, :, -rows * columns :].cpu()  # (m, h·w)
    gathered = weights.argmax(0).bincount(minlength=len(weights))
    before, after = (
        part[0][0, results.head].cpu() for part in (results.found.extracted, results.found.contracted)
    )
    moved = (after - before).norm(dim=-1)
    table = [
        {"representative": r, "patches": patches, "norm": norm, "moved": distance}
        for r, (patches, norm, distance) in enumerate(
            zip(gathered.tolist(), before.norm(dim=-1).tolist(), moved.tolist(), strict=True)
        )
    ]
    figure = plot_overview(results.pixels, results.factors, results.found, head=results.head, patch=patch)
    return save_analysis(
        out,
        NAME,
        {"": figure},
        table,
        {
            "model": subject.describe(),
            "image": results.title,
            "size": list(results.pixels.shape[-2:]),
            "layer": results.factors.layers[0],
            "head": results.head,
            "patch": list(patch) if patch else [rows // 2, columns // 2],
            "coding_rate": dict(zip(("extracted", "contracted"), results.rates, strict=True)),
        },
    )
