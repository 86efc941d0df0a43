"""Robustness against noise on parameters: figure segmentation, middle and right."""

import statistics
from typing import Any

from cbsa.reproduction.claim import FAILS, HOLDS, NOT_YET, PARTLY, Claim, Finding
from cbsa.reproduction.claims.photographs import SCALE, of_size, path_of
from cbsa.reproduction.evidence import RESULTS, Evidence

NOISE = "camvid/fig-seg-noise.json"
CAMVID = "python benchmarks/camvid_study.py --data /data/camvid --encoder outputs/runs/cbt"
PHOTOS = "cbsa reproduce fig-perturb -m CBT=runs/cbt -m CRATE=runs/crate --data DATA --images 500"
DIGITS = (
    "cbsa reproduce fig-perturb -m digits:cbt -m digits:crate -m digits:crate_cbt -m digits:vit --seeds 5 "
    "--out benchmarks/results/digits"
)


def kept(rows: list[dict[str, Any]]) -> dict[float, float]:
    """The share of the score without noise that is left, by σ."""
    scores = {float(row["sigma"]): float(row["mean"]) for row in rows}
    return {sigma: score / scores[0.0] for sigma, score in scores.items() if sigma > 0}


def wins(ours: dict[float, float], theirs: dict[float, float]) -> tuple[int, int]:
    """At how many σ that matter (one of both has lost a tenth, one still has a fifth) ours keeps more."""
    matter = [
        s for s in ours if s in theirs and min(ours[s], theirs[s]) < 0.9 and max(ours[s], theirs[s]) > 0.2
    ]
    return sum(ours[s] > theirs[s] for s in matter), len(matter)


def _shown(shares: dict[float, float]) -> str:
    return ", ".join(f"{share:.0%} at {sigma:g}" for sigma, share in shares.items() if share > 0.02)


def decoders(found: Evidence) -> Finding:
    """CBT's decoder against the black box under noise on the decoder's attention."""
    short = not found.has(f"{RESULTS}/{NOISE}") and found.has(f"{RESULTS}/cpu/{NOISE}")
    by_sigma = found.json(f"cpu/{NOISE}" if short else NOISE)["by_sigma"]
    cbt, rival = (kept(by_sigma[name]) for name in ("CBT", "Segmenter"))
    won, of = wins(cbt, rival)
    verdict = HOLDS if of and won == of else PARTLY if 2 * won > of else FAILS
    names = tuple(by_sigma) if short else ("CBT", "Segmenter")
    shown = "; ".join(f"{name} {_shown(kept(by_sigma[name]))}" for name in names)
    counted = f"CBT keeps more at {won} of {of} σ that matter than Segmenter's."
    if short:
        return Finding(
            NOT_YET,
            f"Four epochs on a CPU, mIoU of about {_unharmed(by_sigma):.0f} %; share kept: {shown}",
            f"{counted} Decoders that have learnt so little decide nothing: there is no "
            f"`{RESULTS}/{NOISE}` yet; the command makes it.",
        )
    return Finding(verdict, f"CamVid, mIoU kept: {shown}", f"{counted} CamVid, not ADE20K; σ is absolute.")


def _unharmed(by_sigma: dict[str, list[dict[str, Any]]]) -> float:
    """The mean score of all models without noise."""
    return statistics.mean(
        float(row["mean"]) for rows in by_sigma.values() for row in rows if not row["sigma"]
    )


def classifiers(found: Evidence) -> Finding:
    """The same noise on whole classifiers: against CRATE, and against a ViT, of digits if need be."""
    by_sigma = found.json(path_of(found, "fig-perturb.json"))["by_sigma"]
    photos = of_size({label: kept(rows) for label, rows in by_sigma.items()})
    small = found.json("digits/fig-perturb.json")["by_sigma"]
    digits = of_size({label: kept(rows) for label, rows in small.items()})
    white = wins(photos["CBT"], photos["CRATE"])
    black = wins(photos["CBT"], photos["ViT"]) if "ViT" in photos else wins(digits["CBT"], digits["ViT"])
    results = [of > 0 and won == of for won, of in (white, black)]
    shown = ". ".join(
        f"{where}, top-1 kept: " + "; ".join(f"{name} {_shown(models[name])}" for name in models)
        for where, models in ((f"T, {SCALE}", photos), ("Digits", digits))
    )
    return Finding(
        HOLDS if all(results) else PARTLY if any(results) else FAILS,
        shown,
        f"More than CRATE at {white[0]} of {white[1]} σ that matter (one of the two below nine tenths, one "
        f"above a fifth), more than the ViT at {black[0]} of {black[1]}. Classifiers, not decoders; σ is "
        "absolute, and models differ in the size of their parameters.",
    )


CLAIMS = (
    Claim(
        "noise-on-decoders",
        "section 4.1, figure segmentation, middle and right",
        "CBSA is extremely robust against noise on the parameters of the decoder's attention; Segmenter "
        "collapses.",
        (CAMVID,),
        decoders,
    ),
    Claim(
        "noise-on-classifiers",
        "section 4.1",
        "As heads are subspaces, small noise on their bases does not alter what they span (here: whole "
        "classifiers under noise on all parameters of their attention).",
        (PHOTOS, DIGITS),
        classifiers,
    ),
)
