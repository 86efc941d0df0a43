"""Choices that the paper argues about: representatives, contraction, bases, convolution (appendix A)."""

import statistics

from cbsa import paper
from cbsa.experiments.rank import MeanRanks, mean_ranks
from cbsa.report.style import UNTRAINED
from cbsa.reproduction.claim import FAILS, HOLDS, NOT_YET, PARTLY, Claim, Finding, Look
from cbsa.reproduction.claims.accuracy import FAIR, SMALL, spread
from cbsa.reproduction.claims.photographs import SCALE, path_of
from cbsa.reproduction.evidence import RESULTS, SCALES, Evidence, MissingError

ABLATIONS = "cbsa study ablations --data /data/tiny-imagenet --out benchmarks/results/studies"
GAP = "cbsa study gap --data /data/tiny-imagenet --out benchmarks/results/studies"
_LOW = 0.25  # share of the largest rank that counts as low
_NOISE = 1.5  # points that one seed cannot tell apart
_ONE_SEED = f"Rule: by more than {_NOISE} points, which are noise at one seed; partly if by less."


def ranks(found: Evidence, path: str, init: str) -> MeanRanks:
    """Ranks over layers and heads of the first trained CBT with these initial representatives."""
    trained = (row for row in found.table(path) if not row["model"].endswith(UNTRAINED))
    for known in mean_ranks(trained).values():
        if known.init == init:
            return known
    raise MissingError(f"{RESULTS}/{path}")


def pooled_rank(found: Evidence) -> Finding:
    """Numerical rank of A for pooled representatives."""
    known = ranks(found, path_of(found, "fig-rank.csv"), "pool")
    return Finding(
        HOLDS if known.rank == known.largest else PARTLY if known.rank > 0.9 * known.largest else FAILS,
        f"CBT-T, {SCALE}: {_shown(known)}",
        "By NumPy's rule for a singular value of 0 in float32; the paper states none. Nearly every softmax "
        "has full rank by that rule: the effective rank, exp of the entropy of the singular values, says "
        "more.",
    )


def learned_rank(found: Evidence) -> Finding:
    """Rank of A for learned representatives: of the ablation if it is there, else of the digits."""
    rule = "Rule: below a quarter of the largest; partly if the effective rank alone is."
    for scale in SCALES:
        path = f"{scale.folder.removeprefix(f'{RESULTS}/')}/ablations/rank/fig-rank.csv"
        if not found.has(f"{RESULTS}/{path}"):
            continue
        known = ranks(found, path, "learned")
        verdict = HOLDS if known.rank < _LOW * known.largest else PARTLY
        where = scale.words if scale.is_small else f"T, {scale.words}"
        return Finding(
            verdict if known.effective < _LOW * known.largest else FAILS,
            f"{where}: {_shown(known)}",
            rule,
            scale.is_small,
        )
    known = ranks(found, "digits/fig-rank.csv", "learned")
    return Finding(
        NOT_YET,
        f"digits, width 64, 4 layers: {_shown(known)}",
        f"{rule} A model this small may not show it; the ablation is to tell.",
    )


def _shown(known: MeanRanks) -> str:
    return f"rank {known.rank:.1f} of {known.largest}, effective rank {known.effective:.1f}"


def compared(one: str, other: str, labels: tuple[str, str], *, more: str = "", least: float = _NOISE) -> Look:
    """A look at two entries of studies: is the first better than the second, by more than noise?"""

    def look(found: Evidence) -> Finding:
        measured, difference, is_small = _beside(found, one, other, labels)
        verdict = HOLDS if difference > least else PARTLY if difference > 0 else FAILS
        return Finding(verdict, measured, f"{_ONE_SEED} {more}".strip(), is_small)

    return look


def near(one: str, other: str, labels: tuple[str, str], more: str) -> Look:
    """A look at two entries of studies that the paper takes for equal."""

    def look(found: Evidence) -> Finding:
        measured, difference, is_small = _beside(found, one, other, labels)
        verdict = HOLDS if abs(difference) < _NOISE else FAILS
        return Finding(verdict, measured, f"Rule: less than {_NOISE} points apart. {more}", is_small)

    return look


def _beside(found: Evidence, one: str, other: str, labels: tuple[str, str]) -> tuple[str, float, bool]:
    """Two entries in words, by how many points the first is better, and whether they are small models."""
    runs = found.compared(one, other)
    first, second = (runs.top1[name] for name in (one, other))
    where = runs.scale.words if runs.scale.is_small else f"T, {runs.scale.words}"
    measured = f"{where}: {labels[0]} {spread(first)}, {labels[1]} {spread(second)}"
    return measured, statistics.mean(first) - statistics.mean(second), runs.scale.is_small


_AGENT, _CBSA = (paper.FAIR[name][0] for name in ("Agent-T", "CBSA-T"))
CLAIMS = (
    Claim(
        "rank-pooled",
        "appendix A",
        "With pooled initial representatives the attention matrix of the extraction always has its largest "
        f"rank, {paper.EXTRACTION_RANK['pool'][0]}.",
        ("cbsa reproduce fig-rank -m CBT=runs/cbt --data DATA --untrained --images 256",),
        pooled_rank,
    ),
    Claim(
        "rank-learned",
        "appendix A",
        f"With learned ones it is low, around {paper.EXTRACTION_RANK['learned'][0]} of "
        f"{paper.EXTRACTION_RANK['learned'][1]}.",
        ("cbsa reproduce fig-rank --untrained --out benchmarks/results/digits", ABLATIONS),
        learned_rank,
    ),
    Claim(
        "learned-representatives",
        "appendix A",
        "Learned initial representatives lead to unsatisfactory performance; pooled ones are better.",
        (ABLATIONS, SMALL),
        compared("gap/cbsa", "ablations/learned", ("pooled", "learned")),
    ),
    Claim(
        "softmax-contraction",
        "section 3.2, eq. CBSA",
        "A softmax of the Gram matrix stands in for the matrix inverse of the contraction.",
        (ABLATIONS, SMALL),
        near(
            "gap/cbsa",
            "ablations/exact",
            ("softmax", "exact"),
            "The paper gives no number; here the two are compared by what models with them learn.",
        ),
    ),
    Claim(
        "no-contraction",
        "section 3.3, table fair_comp",
        f"Without contraction (Agent) nothing is lost, as pooling mixes tokens too: {_AGENT} beside {_CBSA} "
        "% (T).",
        (ABLATIONS, SMALL),
        near("ablations/no-contraction", "gap/cbsa", ("without", "with"), "One recipe for both."),
    ),
    Claim(
        "over-parameterised",
        "section 4, implementation detail",
        "A learned output projection in place of the transposed bases is crucial for better accuracy.",
        (ABLATIONS, SMALL),
        compared("gap/cbsa", "ablations/tied", ("free", "tied")),
    ),
    Claim(
        "linear-below-softmax",
        "appendix A",
        "Linear attention underperforms softmax attention, whose attention matrix has a higher rank.",
        (FAIR, SMALL),
        compared("fair/mssa-t", "fair/linear-t", ("MSSA", "linear attention")),
    ),
    Claim(
        "convolution",
        "appendix A",
        "Depth-wise convolution boosts performance while preserving linear complexity (cited; not in the "
        "paper's models).",
        (GAP, SMALL),
        compared(
            "gap/dwconv", "gap/cbsa-unit", ("with", "without"), more="Both with step sizes that begin at 1."
        ),
    ),
)
