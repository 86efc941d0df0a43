"""Choices that the paper argues about: representatives, contraction, bases, convolution (appendix A)."""

import statistics

from cbsa import paper
from cbsa.experiments.rank import MeanRanks, mean_ranks
from cbsa.report.style import UNTRAINED
from cbsa.reproduction.claim import FAILS, HOLDS, NOT_YET, PARTLY, Claim, Finding, Look
from cbsa.reproduction.claims.accuracy import FAIR, spread
from cbsa.reproduction.claims.photographs import SCALE, path_of
from cbsa.reproduction.evidence import RESULTS, Evidence, MissingError

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
    path, decides = "studies/ablations/rank/fig-rank.csv", True
    if not found.has(f"{RESULTS}/{path}"):
        path, decides = "digits/fig-rank.csv", False
    known = ranks(found, path, "learned")
    where = f"T, {SCALE}" if decides else "digits, width 64, 4 layers"
    verdict = HOLDS if known.rank < _LOW * known.largest else PARTLY
    return Finding(
        (verdict if known.effective < _LOW * known.largest else FAILS) if decides else NOT_YET,
        f"{where}: {_shown(known)}",
        "Rule: below a quarter of the largest; partly if the effective rank alone is."
        + ("" if decides else " A model this small may not show it; the ablation is to tell."),
    )


def _shown(known: MeanRanks) -> str:
    return f"rank {known.rank:.1f} of {known.largest}, effective rank {known.effective:.1f}"


def compared(
    study: str, one: str, other: str, labels: tuple[str, str], *, more: str = "", least: float = _NOISE
) -> Look:
    """A look at two entries of studies: is the first better than the second, by more than noise?"""

    def look(found: Evidence) -> Finding:
        first = found.top1(*_place(study, one))
        second = found.top1(*_place(study, other))
        difference = statistics.mean(first) - statistics.mean(second)
        verdict = HOLDS if difference > least else PARTLY if difference > 0 else FAILS
        return Finding(
            verdict,
            f"T, {SCALE}: {labels[0]} {spread(first)}, {labels[1]} {spread(second)}",
            f"{_ONE_SEED} {more}".strip(),
        )

    return look


def _place(study: str, entry: str) -> tuple[str, str]:
    """Study and entry; ``STUDY/ENTRY`` names another study."""
    owner, slash, name = entry.partition("/")
    return (owner, name) if slash else (study, entry)


def near(study: str, one: str, other: str, labels: tuple[str, str], more: str) -> Look:
    """A look at two entries of studies that the paper takes for equal."""

    def look(found: Evidence) -> Finding:
        first, second = (found.top1(*_place(study, name)) for name in (one, other))
        difference = statistics.mean(first) - statistics.mean(second)
        return Finding(
            HOLDS if abs(difference) < _NOISE else FAILS,
            f"T, {SCALE}: {labels[0]} {spread(first)}, {labels[1]} {spread(second)}",
            f"Rule: less than {_NOISE} points apart. {more}",
        )

    return look


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
        (ABLATIONS,),
        compared("ablations", "gap/cbsa", "learned", ("pooled", "learned")),
    ),
    Claim(
        "softmax-contraction",
        "section 3.2, eq. CBSA",
        "A softmax of the Gram matrix stands in for the matrix inverse of the contraction.",
        (ABLATIONS,),
        near(
            "ablations",
            "gap/cbsa",
            "exact",
            ("softmax", "exact"),
            "The paper gives no number; here the two are compared by what models with them learn.",
        ),
    ),
    Claim(
        "no-contraction",
        "section 3.3, table fair_comp",
        f"Without contraction (Agent) nothing is lost, as pooling mixes tokens too: {_AGENT} beside {_CBSA} "
        "% (T).",
        (ABLATIONS,),
        near("ablations", "no-contraction", "gap/cbsa", ("without", "with"), "One recipe for both."),
    ),
    Claim(
        "over-parameterised",
        "section 4, implementation detail",
        "A learned output projection in place of the transposed bases is crucial for better accuracy.",
        (ABLATIONS,),
        compared("ablations", "gap/cbsa", "tied", ("free", "tied")),
    ),
    Claim(
        "linear-below-softmax",
        "appendix A",
        "Linear attention underperforms softmax attention, whose attention matrix has a higher rank.",
        (FAIR,),
        compared("fair", "mssa-t", "linear-t", ("MSSA", "linear attention")),
    ),
    Claim(
        "convolution",
        "appendix A",
        "Depth-wise convolution boosts performance while preserving linear complexity (cited; not in the "
        "paper's models).",
        (GAP,),
        compared(
            "gap", "dwconv", "cbsa-unit", ("with", "without"), more="Both with step sizes that begin at 1."
        ),
    ),
)
