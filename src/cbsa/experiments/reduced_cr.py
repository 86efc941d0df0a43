"""Paper figure reduced_cr: reduced coding rates of tokens and of representatives, head by head."""

import math
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from cbsa.analysis import ReducedCodingRates, reduced_coding_rates
from cbsa.bench.tables import Grid
from cbsa.experiments.images import ImageChoice
from cbsa.experiments.report import save_analysis
from cbsa.experiments.subjects import Start, Subject, measure, silent
from cbsa.report import plot_reduction

NAME = "fig-reduced-cr"
CAPTION = (
    "Reduction: coding rate before less after CBSA within a head, positive where it compresses; r: Pearson's "
    "correlation of both reductions. The paper draws them for CBT-T/S/B/L and prints no number; it observes "
    "«highly similar trends across most subspaces». A correlation over all heads may come from layers that "
    "differ as wholes: the columns beside it look within layers, and along the layers."
)
Reductions = dict[str, ReducedCodingRates]


def run(
    subjects: Sequence[Subject],
    choice: ImageChoice,
    *,
    kappa: float | None = 1.0,
    counterpart: str = "operator",
    eps: float = 0.1,
    batch_size: int = 64,
    start: Start = silent,
) -> Reductions:
    """Measure every model; see :func:`cbsa.analysis.reduced_coding_rates`."""
    return measure(
        subjects,
        choice,
        lambda model, images: reduced_coding_rates(model, images, eps, kappa=kappa, counterpart=counterpart),
        batch_size=batch_size,
        start=start,
    )


def grid(results: Reductions) -> Grid:
    """Correlations of each model, and in how many heads each reduction is one."""
    columns = ("model", "heads", "r, all", "within layers", "along layers", "over images")
    cells = []
    for label, found in results.items():
        heads = found.tokens.numel()
        correlations = (
            found.correlation_over_heads,
            found.correlation_over_layers,
            found.correlation_over_images,
        )
        cells.append(
            (
                label,
                str(heads),
                _number(found.correlation),
                *(_number(_mean(values)) for values in correlations),
                f"{int((found.tokens > 0).sum())} of {heads}",
                f"{int((found.representatives > 0).sum())} of {heads}",
            )
        )
    more = ("tokens fall", "reps. fall")
    return Grid("Figure reduced_cr: do both reductions go together?", (*columns, *more), cells)


def save(results: Reductions, subjects: Sequence[Subject], choice: ImageChoice, out: Path) -> list[Path]:
    """Write the picture, and both reductions of every layer and head."""
    rows = [{"model": label, **row} for label, found in results.items() for row in found.table()]
    first = next(iter(results.values()))
    summary = {
        label: {
            "correlation": found.correlation,
            "correlation_over_heads_by_layer": found.correlation_over_heads.tolist(),
            "correlation_over_layers_by_head": found.correlation_over_layers.tolist(),
            "correlation_over_images_mean": _mean(found.correlation_over_images),
        }
        for label, found in results.items()
    }
    settings = {"kappa": first.kappa, "counterpart": first.counterpart, "eps": first.eps}
    return save_analysis(
        out,
        NAME,
        {"": plot_reduction(results)},
        rows,
        {
            "models": [subject.describe() for subject in subjects],
            "images": choice.describe(),
            "settings": settings,
            "correlations": summary,
        },
    )


def _mean(values: Tensor) -> float:
    """Mean of the correlations that are defined."""
    return values.double().nanmean().item()


def _number(value: float) -> str:
    return "—" if math.isnan(value) else f"{value:.2f}"
