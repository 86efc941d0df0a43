"""Choices that the paper argues about: representatives, contraction, bases, convolution (appendix A)."""

import statistics

from cbsa.experiments import paper
from cbsa.reproduction.claim import FAILS, HOLDS, NOT_YET, PARTLY, Claim, Finding, Look
from cbsa.reproduction.claims.accuracy import FAIR, spread
from cbsa.reproduction.evidence import Evidence

ABLATIONS = "cbsa study ablations --data /data/tiny-imagenet --out benchmarks/results/studies"
GAP = "cbsa study gap --data /data/tiny-imagenet --out benchmarks/results/studies"
_SCALE = "Tiny-ImageNet, T, 20 epochs"
_NOISE = 1.5  # points that one seed cannot tell apart
_ONE_SEED = f"Rule: by more than {_NOISE} points, which are noise at one seed; partly if by less."


def ranks(found: Evidence, path: str, label: str) -> tuple[float, float, float]:
    """Mean rank, mean effective rank and the largest possible, over layers and heads of a model."""
    rows = [row for row in found.table(path) if row["model"] == label]
    means = [statistics.mean(float(row[name]) for row in rows) for name in ("rank", "effective_rank")]
    return means[0], means[1], float(rows[0]["maximum"])


def pooled_rank(found: Evidence) -> Finding:
    """Numerical rank of A for pooled representatives."""
    rank, effective, largest = ranks(found, "tiny-imagenet/fig-rank.csv", "CBT")
    return Finding(
        HOLDS if rank == largest else PARTLY if rank > 0.9 * largest else FAILS,
        f"CBT-T, Tiny-ImageNet, 256 images: rank {rank:.1f} of {largest:.0f}, effective rank {effective:.1f}",
        "By NumPy's rule for a singular value of 0 in float32; the paper states none. Nearly every softmax "
        "has full rank by that rule: the effective rank, exp of the entropy of the singular values, says "
        "more.",
    )


def learned_rank(found: Evidence) -> Finding:
    """Rank of A for learned representatives: of the ablation if it is there, else of the digits."""
    record = "studies/ablations/learned/seed0.json"
    if found.has(f"benchmarks/results/{record}") and "rank" in found.json(record)["result"]:
        values = found.json(record)["result"]["rank"]
        rank, effective, largest = values["mean"], values["effective"], values["largest"]
        where = _SCALE
    else:
        rank, effective, largest = ranks(found, "digits/fig-rank.csv", "CBT, learned (digits)")
        where = "digits, width 64, 4 layers"
    verdict = HOLDS if rank < 0.25 * largest else PARTLY if effective < 0.25 * largest else FAILS
    return Finding(
        verdict if where == _SCALE else NOT_YET,
        f"{where}: rank {rank:.1f} of {largest:.0f}, effective rank {effective:.1f}",
        "Rule: below a quarter of the largest; partly if the effective rank alone is."
        + (
            ""
            if where == _SCALE
            else f" A model this small may not show it: {ABLATIONS.split(' --')[0]} will."
        ),
    )


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
            f"{_SCALE}: {labels[0]} {spread(first)}, {labels[1]} {spread(second)}",
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
            f"{_SCALE}: {labels[0]} {spread(first)}, {labels[1]} {spread(second)}",
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
