"""Paper figure segmentation, middle and right: scores under noise on the parameters of attention layers.

The paper perturbs the decoders of segmenters and measures mIoU on ADE20K; here, all attention layers of a
classifier and its accuracy.
"""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch

from cbsa._checks import check_int
from cbsa.analysis import NoiseSweep, perturb, sweep
from cbsa.analysis.noise import PARTS
from cbsa.bench.tables import Grid
from cbsa.experiments.images import ImageChoice, LabelledImages
from cbsa.experiments.report import save_analysis
from cbsa.experiments.subjects import Start, Subject, naming, silent, ticking
from cbsa.report import plot_noise

NAME = "fig-perturb"
SIGMAS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
CAPTION = (
    "Noise N(0, σ²) on parameters of the attention layers, all but for --parts, σ absolute; mean over the "
    "seeds, lowest to highest beside it. The paper draws mIoU on ADE20K with noise in the decoder of a "
    "segmenter, without numbers: CBSA is «extremely robust», the black box «collapses»."
)
Sweeps = dict[str, NoiseSweep]


def run(
    subjects: Sequence[Subject],
    choice: ImageChoice,
    *,
    sigmas: Sequence[float] = SIGMAS,
    seeds: int = 3,
    parts: str | Collection[str] = PARTS,
    batch_size: int = 64,
    start: Start = silent,
) -> Sweeps:
    """Measure the top-1 accuracy of every model in percent, by σ and seed."""
    results = {}
    for subject in subjects:
        images = LabelledImages(choice, subject.trained.data, batch_size)
        with naming(subject):
            _check_classes(subject, images, choice)
            results[subject.label] = _sweep(subject, images, sigmas, seeds, parts, start)
    return results


def _check_classes(subject: Subject, images: LabelledImages, choice: ImageChoice) -> None:
    there = len(images.source.classes)
    if subject.model.num_classes != there:
        raise ValueError(
            f"the model knows {subject.model.num_classes} classes, but {choice} has {there}: take the data "
            "that it was trained on"
        )


def _sweep(
    subject: Subject,
    images: LabelledImages,
    sigmas: Sequence[float],
    seeds: int,
    parts: str | Collection[str],
    start: Start,
) -> NoiseSweep:
    """Accuracies of one model; its images are read once."""
    device = next(subject.model.parameters()).device
    batches = [
        (pixels.to(device), targets.to(device))
        for pixels, targets in ticking(images, images, f"{subject.label}: images", start)
    ]
    advance = start(subject.label, len(sigmas) * seeds)

    def accuracy(sigma: float, seed: int) -> float:
        with perturb(subject.model, sigma, seed, parts):
            score = _top1(subject.model, batches)
        advance()
        return score

    return sweep(accuracy, sigmas, range(check_int("seeds", seeds)))


@torch.no_grad()
def _top1(model: torch.nn.Module, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """Share of images whose true class is the most likely one, in percent."""
    right = sum(int((model(pixels).argmax(-1) == targets).sum()) for pixels, targets in batches)
    return 100 * right / sum(len(targets) for _, targets in batches)


def grid(results: Sweeps) -> Grid:
    """Accuracy of each model by σ."""
    sigmas = next(iter(results.values())).sigmas
    cells = []
    for label, found in results.items():
        scores = zip(
            found.mean.tolist(), found.scores.amin(1).tolist(), found.scores.amax(1).tolist(), strict=True
        )
        cells.append((label, *(_score(*values) for values in scores)))
    return Grid(
        "Figure segmentation (middle, right): top-1 accuracy in % under noise",
        ("model", *(f"σ = {sigma:g}" for sigma in sigmas)),
        cells,
    )


def _score(mean: float, low: float, high: float) -> str:
    return f"{mean:.1f}" if high - low < 0.05 else f"{mean:.1f} ({low:.0f}–{high:.0f})"


def rows_of(results: Sweeps, score: str) -> list[dict[str, Any]]:
    """A row for each model, σ and seed, with what was measured by its name."""
    return [
        {"model": label, "sigma": sigma, "seed": seed, score: found.scores[i, j].item()}
        for label, found in results.items()
        for i, sigma in enumerate(found.sigmas)
        for j, seed in enumerate(found.seeds)
    ]


def save(
    results: Sweeps,
    subjects: Sequence[Subject],
    choice: ImageChoice,
    out: Path,
    *,
    parts: str | Collection[str] = PARTS,
) -> list[Path]:
    """Write the picture, and the accuracy for every σ and seed."""
    chance = 100 / subjects[0].model.num_classes
    return save_analysis(
        out,
        NAME,
        {"": plot_noise(results, chance=chance)},
        rows_of(results, "top1"),
        {
            "models": [subject.describe() for subject in subjects],
            "images": choice.describe(),
            "parts": [parts] if isinstance(parts, str) else list(parts),
            "by_sigma": {label: found.table() for label, found in results.items()},
        },
    )
