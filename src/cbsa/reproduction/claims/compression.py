"""Section 4.1, figures 3d, coding-rate, reduced_cr: are tokens compressed, and by the representatives?"""

import statistics
from typing import Any

from cbsa import paper
from cbsa.report.style import UNTRAINED
from cbsa.reproduction.claim import FAILS, HOLDS, NOT_YET, PARTLY, Claim, Finding, not_here
from cbsa.reproduction.claims.photographs import EARLIER, SCALE, of_size, path_of
from cbsa.reproduction.evidence import Evidence

RATES = (
    "cbsa reproduce fig-coding-rate -m CBT=runs/cbt -m CRATE=runs/crate --data DATA --untrained --images 256"
)
DIGITS = (
    "cbsa reproduce fig-reduced-cr -m digits:cbt -m digits:crate_cbt --untrained --out "
    "benchmarks/results/digits"
)
REDUCED = "cbsa reproduce fig-reduced-cr -m CBT=runs/cbt --data DATA --untrained --images 256"
PHOTOS = f"CBT-T, {SCALE}"
_STRAIGHT, _APART = 1e-3, 20.0  # energy off the line, angle in degrees, that count as separate lines
_CORRELATED = 0.7


def synthetic(found: Evidence) -> Finding:
    """Each class on a line, the lines apart, every point nearest to its own."""
    data = found.json("cpu/fig-3d.json")
    classes, iterations = paper.SYNTHETIC
    (last,) = (s for s in data["snapshots"] if s["iteration"] == iterations)
    worst, angle = max(last["off_line_per_class"]), last["closest_lines_degrees"]
    straight = worst < _STRAIGHT and data["config"]["classes"] == classes
    apart = angle > _APART and last["nearest_line_accuracy"] == 1
    return Finding(
        HOLDS if straight and apart else PARTLY if straight else FAILS,
        f"{classes} classes, {data['config']['points']} points each: after {iterations} iterations at most "
        f"{worst:.1e} of a class's energy is off its line, the closest two lines are {angle:.0f}° apart, "
        f"and {last['nearest_line_accuracy']:.0%} of the points are nearest to their own line",
        f"Rule: below {_STRAIGHT:g}, above {_APART:g}°, all points. Noise, ε and step size are ours, as the "
        "paper names none of them; the step is such that 1024 iterations suffice, and lines are drawn at "
        "least 25° apart.",
    )


def _rates(found: Evidence) -> dict[str, dict[str, Any]]:
    """Coding rates by layer, of all models."""
    rates: dict[str, dict[str, Any]] = found.json(path_of(found, "fig-coding-rate.json"))["by_layer"]
    return rates


def last_layer(found: Evidence) -> Finding:
    """The rate that enters the last layer, and accuracy, of CBT-T and S; of two twins while S is missing."""
    rates = _rates(found)
    small, large = (of_size(rates, size).get("CBT") for size in ("T", "S"))
    if small is not None and large is not None:
        tops = [statistics.mean(found.top1("fair", f"cbsa-{size}")) for size in ("t", "s")]
        terms = [part["compression"][-1] for part in (small, large)]
        shown = "; ".join(
            f"CBT-{size} {term:.0f} nats, {top1:.1f} % top-1"
            for size, term, top1 in zip("TS", terms, tops, strict=True)
        )
        as_said = (terms[1] < terms[0]) == (tops[1] > tops[0])
        return Finding(
            PARTLY if as_said else FAILS,
            f"R_c that enters the last layer, {SCALE}: {shown}",
            "Rule: the better of T and S has the lower term; partly, as two sizes are no correlation.",
        )
    parts = []
    for label, run in (("CBT", "cbt"), ("CRATE", "crate")):
        top1 = found.json(f"{EARLIER}/runs/{run}/summary.json")["top1"]
        parts.append(f"{label}-T {rates[label]['compression'][-1]:.0f} nats, {top1:.1f} % top-1")
    return Finding(
        NOT_YET,
        f"R_c that enters the last layer, {SCALE}: {'; '.join(parts)}",
        "The paper compares CBT-T, S, B and L. Two twins of one size are no correlation, though their "
        "order is the paper's.",
    )


def _changes(rates: dict[str, Any]) -> list[float]:
    """What attention changes about R_c, layer by layer."""
    return [a - b for a, b in zip(rates["after_attention"], rates["compression"], strict=True)]


def second_half(found: Evidence) -> Finding:
    """The curve over the second half of the layers, and what attention does within each of them."""
    by_layer = of_size(_rates(found))["CBT"]
    term, changes = by_layer["compression"], _changes(by_layer)
    half = len(term) // 2
    falls = sum(term[i] < term[i - 1] for i in range(half, len(term)))
    inside = sum(change < 0 for change in changes[half:])
    steps = len(term) - half
    verdict = HOLDS if falls == steps else PARTLY if 2 * inside > steps else FAILS
    early = sum(change > 0 for change in changes[:half])
    return Finding(
        verdict,
        f"{PHOTOS}: R_c falls from layer to layer {falls} times of {steps} in the second half; attention "
        f"itself lowers it in {inside} of these {steps} layers (in the first half it raises it in {early} "
        f"of {half})",
        "Rule: holds if the curve falls at every step; partly if attention compresses in most layers of "
        "the half. Each layer measures R_c in subspaces of its own, so the curve mixes two things. The "
        "paper's models are trained for 150 epochs.",
    )


def both_signs(found: Evidence) -> Finding:
    """Layers that compress and layers that decompress, in one model."""
    changes = _changes(of_size(_rates(found))["CBT"])
    down, up = sum(change < 0 for change in changes), sum(change > 0 for change in changes)
    return Finding(
        HOLDS if down and up else FAILS,
        f"{PHOTOS}: attention lowers R_c in {down} layers and raises it in {up}; by {min(changes):+.1f} to "
        f"{max(changes):+.1f} nats",
        "That both occur is seen; that it is needed is the ablation with κ fixed to 1 or −1 (study "
        "`ablations`).",
    )


def _heads(found: Evidence) -> list[dict[str, str]]:
    """Coding rates of each head of CBT-T."""
    rows = found.table(path_of(found, "fig-reduced-cr.csv"))
    label = of_size({row["model"]: row["model"] for row in rows})["CBT"]
    return [row for row in rows if row["model"] == label]


def constraints(found: Evidence) -> Finding:
    """Coding rates of extracted representatives beside those of the tokens, head by head."""
    rows = _heads(found)
    tokens, representatives = (
        [float(row[name]) for row in rows] for name in ("tokens_before", "representatives_before")
    )
    gaps = [abs(a - b) for a, b in zip(tokens, representatives, strict=True)]
    share = statistics.mean(gap / rate for gap, rate in zip(gaps, tokens, strict=True))
    r = statistics.correlation(tokens, representatives)
    verdict = HOLDS if share < 0.1 else PARTLY if r > _CORRELATED else FAILS
    return Finding(
        verdict,
        f"{PHOTOS}, {len(rows)} heads: the rates differ by {share:.0%} of the tokens' on average, by "
        f"{max(gaps):.0f} nats at most, and correlate with r = {r:.2f}",
        f"The paper names no τ. Rule: holds below 10 %, partly if r > {_CORRELATED}. Nothing in the layer "
        "enforces the constraint; the average of many tokens is bound to lose rate.",
    )


def scalpels(found: Evidence) -> Finding:
    """Heads whose representatives have the higher coding rate."""
    rows = _heads(found)
    higher = sum(float(row["representatives_before"]) > float(row["tokens_before"]) for row in rows)
    verdict = HOLDS if higher == len(rows) else PARTLY if 2 * higher > len(rows) else FAILS
    return Finding(
        verdict,
        f"{PHOTOS}: in {higher} of {len(rows)} heads",
        "The paper does not say how it normalises; we take R of the m representatives with p/(m ε²) and of "
        "the N tokens with p/(N ε²), the definition of both.",
    )


def reduced(found: Evidence) -> Finding:
    """Correlation of the two reductions over all heads, beside that of random weights."""
    photos = found.json(path_of(found, "fig-reduced-cr.json"))["correlations"]
    control = found.json(f"{EARLIER}/fig-reduced-cr.json")["correlations"][f"CBT{UNTRAINED}"]
    digits = found.json("digits/fig-reduced-cr.json")["correlations"]
    step = found.json("digits/step/fig-reduced-cr.json")["correlations"]
    r, random = of_size(photos)["CBT"]["correlation"], control["correlation"]
    learned = r - random > 0.2
    small, other = (part["CBT (digits)"]["correlation"] for part in (digits, step))
    return Finding(
        HOLDS if r > _CORRELATED and learned else PARTLY if r > _CORRELATED else FAILS,
        f"{PHOTOS}: r = {r:.2f} over all heads, {random:.2f} with random weights; digits r = {small:.2f}, "
        f"and {other:.2f} in the other reading of «compressed counterpart»",
        f"Rule: r > {_CORRELATED}, and at least 0.2 above random weights, else partly. Most of the tokens' "
        "reduction is their own rate, since the output is small; in the other reading random weights "
        "correlate too.",
    )


CLAIMS = (
    Claim(
        "synthetic",
        "section 4.1, figure 3d",
        f"{paper.SYNTHETIC[0]} noisy classes in R³ become well-separated one-dimensional subspaces after "
        f"{paper.SYNTHETIC[1]} iterations of the linear attention variant.",
        ("cbsa reproduce fig-3d --out benchmarks/results/cpu",),
        synthetic,
    ),
    Claim(
        "constraints",
        "section 3.1, eq. CoCa",
        "The representatives that cross-attention extracts satisfy |R(U_kᵀQ) − R(U_kᵀZ)| ≤ τ: they have "
        "the coding rate of the tokens.",
        (REDUCED,),
        constraints,
    ),
    Claim(
        "last-layer",
        "section 4.1, figure coding-rate, a)",
        "The lower the compression term in the last layer, the better the model; not so for the normalised "
        "term.",
        (RATES,),
        last_layer,
    ),
    Claim(
        "second-half",
        "section 4.1, figure coding-rate, b)",
        "The latter half of the layers exhibits consecutive compression in nearly all models; early layers "
        "decompress.",
        (RATES,),
        second_half,
    ),
    Claim(
        "both-signs",
        "section 4, implementation detail",
        "Step sizes of free sign let a model switch between compression and decompression as needed.",
        (RATES,),
        both_signs,
    ),
    Claim(
        "reduced-rates",
        "section 4.1, figure reduced_cr",
        "The reduced coding rates of tokens and representatives show highly similar trends across most "
        "subspaces: contracting the representatives drives the compression.",
        (REDUCED, DIGITS),
        reduced,
    ),
    Claim(
        "reduced-rates-large",
        "appendix C, figure reduced_cr_app",
        "The same for CBT-B and CBT-L.",
        (REDUCED,),
        not_here(
            "Models of 26 and 83 M parameters are not trained here; the command takes the authors' weights."
        ),
    ),
    Claim(
        "scalpels",
        "section 4.1, footnote",
        "Representatives have the higher coding rate, which makes them act as «scalpels» on the tokens (a "
        "hypothesis).",
        (REDUCED,),
        scalpels,
    ),
)
