"""Paper appendix A: rank of the extraction's attention, for pooled and for learned representatives."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cbsa import paper
from cbsa.analysis import ExtractionRanks, extraction_rank
from cbsa.bench.tables import Grid
from cbsa.experiments.images import ImageChoice
from cbsa.experiments.report import save_analysis
from cbsa.experiments.subjects import Start, Subject, measure, silent
from cbsa.report import plot_ranks

NAME = "fig-rank"
CAPTION = (
    "Numerical rank: singular values of A_k above eps·max(m, N) of the largest one (or --tolerance). "
    "Effective rank: exp of the entropy of the singular values; it needs no threshold. Over layers, heads, "
    "images. The paper does not say how it decides that a singular value is 0."
)
Ranks = dict[str, ExtractionRanks]


@dataclass(frozen=True)
class MeanRanks:
    """Ranks of A_k over the layers and heads of a model, as a table of this experiment has them.

    Attributes:
        init: initial representatives, "pool" or "learned".
        rank: mean numerical rank.
        effective: mean effective rank.
        largest: the largest rank there can be.
    """

    init: str
    rank: float
    effective: float
    largest: int


def mean_ranks(rows: Iterable[Mapping[str, str]]) -> dict[str, MeanRanks]:
    """Means of the rows of ``fig-rank.csv``, by model."""
    by_model: dict[str, list[Mapping[str, str]]] = {}
    for row in rows:
        by_model.setdefault(row["model"], []).append(row)
    return {
        label: MeanRanks(
            " and ".join(dict.fromkeys(row["init"] for row in own)),
            statistics.mean(float(row["rank"]) for row in own),
            statistics.mean(float(row["effective_rank"]) for row in own),
            max(int(row["maximum"]) for row in own),
        )
        for label, own in by_model.items()
    }


def run(
    subjects: Sequence[Subject],
    choice: ImageChoice,
    *,
    tolerance: float | None = None,
    batch_size: int = 64,
    start: Start = silent,
) -> Ranks:
    """Measure every model; see :func:`cbsa.analysis.extraction_rank`."""
    return measure(
        subjects,
        choice,
        lambda model, images: extraction_rank(model, images, tolerance=tolerance),
        batch_size=batch_size,
        start=start,
    )


def grid(results: Ranks) -> Grid:
    """Ranks of each model, and the paper's."""
    columns = ("model", "initial", "rank: mean", "lowest", "highest", "effective", "largest")
    cells: list[tuple[str, ...]] = [
        (
            label,
            " and ".join(dict.fromkeys(found.init)),
            f"{found.rank.double().mean():.1f}",
            str(int(found.rank.min())),
            str(int(found.rank.max())),
            f"{found.effective_rank.double().mean():.1f}",
            str(found.maximum),
        )
        for label, found in results.items()
    ]
    for init, (rank, largest) in paper.EXTRACTION_RANK.items():
        about = "always" if rank == largest else "around"
        cells.append((f"paper: CBT, {init}", init, f"{about} {rank}", "", "", "", str(largest)))
    return Grid("Appendix A: rank of the extraction's attention A_k", columns, cells)


def save(results: Ranks, subjects: Sequence[Subject], choice: ImageChoice, out: Path) -> list[Path]:
    """Write the picture, and the ranks of every layer and head."""
    rows = [{"model": label, **row} for label, found in results.items() for row in found.table()]
    spectra = {label: found.spectrum.double().mean((0, 1)).tolist() for label, found in results.items()}
    return save_analysis(
        out,
        NAME,
        {"": plot_ranks(results)},
        rows,
        {
            "models": [subject.describe() for subject in subjects],
            "images": choice.describe(),
            "tolerance": next(iter(results.values())).tolerance,
            "mean_spectrum": spectra,
            "paper": {init: {"rank": r, "largest": m} for init, (r, m) in paper.EXTRACTION_RANK.items()},
        },
    )
