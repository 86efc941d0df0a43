"""Paper figure coding-rate: the compression term as a function of layers."""

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from cbsa.analysis import CodingRates, coding_rates
from cbsa.bench.tables import Grid
from cbsa.experiments.images import ImageChoice
from cbsa.experiments.report import file_name, save_analysis
from cbsa.experiments.subjects import Start, Subject, measure, silent
from cbsa.report import plot_compression, plot_rates

NAME = "fig-coding-rate"
CAPTION = (
    "Compression term R_c: ½ Σ_k logdet(I + p/(N ε²)·WᵀW) of W = U_kᵀ LN(Z), what enters each layer, CLS "
    "included, mean over images. The paper draws it and prints no number. It observes that R_c falls from "
    "layer to layer in the second half of nearly all models, and is lower in the last layer of better ones. "
    "Through attention: the change of R_c by the attention of all layers, and in how many of them it falls."
)
Rates = dict[str, CodingRates]


def run(
    subjects: Sequence[Subject],
    choice: ImageChoice,
    *,
    eps: float = 0.1,
    batch_size: int = 64,
    start: Start = silent,
) -> Rates:
    """Measure every model; see :func:`cbsa.analysis.coding_rates`."""
    return measure(
        subjects,
        choice,
        lambda model, images: coding_rates(model, images, eps),
        batch_size=batch_size,
        start=start,
    )


def falling(term: Tensor) -> tuple[int, int]:
    """In how many steps from layer to layer of the second half a term (layers,) falls, and of how many."""
    steps = term[len(term) // 2 :].diff()
    return int((steps < 0).sum()), len(steps)


def grid(results: Rates) -> Grid:
    """R_c of each model: first and last layer, and where it falls."""
    cells: list[tuple[str, ...]] = []
    for label, rates in results.items():
        before, after = rates.input.sum(1), rates.attention.sum(1)
        unit = rates.normalized_input.sum(1)
        cells.append(
            (
                label,
                f"{before[0]:.1f}",
                f"{before[-1]:.1f}",
                "{} of {}".format(*falling(before)),
                f"{(after - before).sum():+.1f}",
                f"{int((after < before).sum())} of {len(before)}",
                f"{unit[0]:.1f}",
                f"{unit[-1]:.1f}",
            )
        )
    columns = ("model", "layer 1", "last", "falls in 2nd half", "through attention")
    more = ("falls there", "unit length: layer 1", "last")
    return Grid("Figure coding-rate: compression term by layer, nats", (*columns, *more), cells)


def save(results: Rates, subjects: Sequence[Subject], choice: ImageChoice, out: Path) -> list[Path]:
    """Write one picture of all models, one of each, and the rates of every layer and head."""
    figures = {"": plot_compression(results)}
    figures |= {f"-{file_name(label)}": plot_rates(rates) for label, rates in results.items()}
    rows = [{"model": label, **row} for label, rates in results.items() for row in rates.table()]
    terms = {
        label: {
            "compression": rates.input.sum(1).tolist(),
            "after_attention": rates.attention.sum(1).tolist(),
            "after_feed_forward": rates.feed_forward.sum(1).tolist(),
            "normalized_compression": rates.normalized_input.sum(1).tolist(),
            "sparsity": rates.sparsity.tolist(),
        }
        for label, rates in results.items()
    }
    return save_analysis(
        out,
        NAME,
        figures,
        rows,
        {
            "models": [subject.describe() for subject in subjects],
            "images": choice.describe(),
            "eps": next(iter(results.values())).eps,
            "by_layer": terms,
        },
    )
