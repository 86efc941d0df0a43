"""Pretrained ViTs in the style of CBSA: figure vit-adapt."""

from collections.abc import Mapping
from typing import Any

from cbsa.reproduction.claim import FAILS, HOLDS, PARTLY, Claim, Finding
from cbsa.reproduction.evidence import RESULTS, Evidence, MissingError

COSTS = "cbsa reproduce fig-vit-adapt --widths tiny,small,base,large --out benchmarks/results/cpu"
STUDIES = (
    "python benchmarks/adapt_study.py outputs/runs/vit --out benchmarks/results/adapt",
    "python benchmarks/adapt_study.py outputs/runs/cifar10-vit --recipe cifar10_adapt --out "
    "benchmarks/results/cpu/adapt",
)
# Results of the study and the scale they were taken at; the first that is there decides.
SCALES = {
    "adapt/adapt_study.json": "Tiny-ImageNet, 64 px, a ViT-T",
    "cpu/adapt/adapt_study.json": "CIFAR-10, 32 px, width 64, six layers, on a CPU",
}
_STYLES = ("cbsa", "agent", "linear", "softmax")
_SAME, _NEAR = 0.05, 1.5  # share of FLOPs, points of accuracy, that count as the same
_OURS = "One seed, a small ViT of our own, not one of ImageNet-21k."


def flops(found: Evidence) -> Finding:
    """FLOPs of ViTs with CBSA* beside those with linear attention, whole models at 224 px."""
    costs = found.json("cpu/fig-vit-adapt.json")["costs"]
    gflops = {(cost["size"], cost["style"]): cost["gflops"] for cost in costs}
    sizes = dict.fromkeys(cost["size"] for cost in costs)
    over = {size: gflops[size, "cbsa"] / gflops[size, "linear"] - 1 for size in sizes}
    shown = ", ".join(f"ViT-{size[0].upper()} {share:+.1%}" for size, share in over.items())
    return Finding(
        HOLDS if all(abs(share) < _SAME for share in over.values()) else FAILS,
        f"224 px, whole models, CBSA* over linear attention: {shown}",
        f"Rule: within {_SAME:.0%}.",
    )


def _study(found: Evidence) -> tuple[dict[str, dict[str, Any]], str]:
    """Runs by style as the paper adapts ViTs, and their scale.

    All layers at once, labels alone, the recipe's representatives, the ReLU kernel. «softmax» is the
    original, tuned as long.
    """
    path = next((path for path in SCALES if found.has(f"{RESULTS}/{path}")), next(iter(SCALES)))
    runs = {run["run"]: run for run in found.json(path)["runs"]}
    for style in _STYLES:
        if f"{style}-none" not in runs:  # the study is not at its end
            raise MissingError(f"{RESULTS}/{path}::{style}-none")
    return {style: runs[f"{style}-none"] for style in _STYLES}, SCALES[path]


def _tuned(runs: Mapping[str, Mapping[str, Any]], scale: str) -> tuple[dict[str, float], str]:
    """Top-1 after fine-tuning by style, and in words."""
    tuned = {style: run["fine_tuned"]["top1"] for style, run in runs.items()}
    shown = ", ".join(f"{style} {top1:.1f} %" for style, top1 in tuned.items())
    first = next(iter(runs.values()))
    return tuned, (
        f"After {first['epochs']} epochs of fine-tuning: {shown}; the original before "
        f"{first['original']['top1']:.1f} % ({scale})"
    )


def deviation(found: Evidence) -> Finding:
    """Accuracy right after the swap, before anything is learnt."""
    runs, scale = _study(found)
    swapped = {style: run["swapped"] for style, run in runs.items() if style != "softmax"}
    shown = ", ".join(f"{style} {a['top1']:.1f} % (loss {a['loss']:.2f})" for style, a in swapped.items())
    original = runs["cbsa"]["original"]
    return Finding(
        _verdict(swapped["linear"]["top1"] - swapped["cbsa"]["top1"]),
        f"Right after the swap, nothing fine-tuned: {shown}; the original {original['top1']:.1f} % (loss "
        f"{original['loss']:.2f}) ({scale})",
        f"Rule: top-1 right after the swap below that of linear attention by more than {_NEAR} points; "
        f"partly if by less. {_OURS}",
    )


def _verdict(points: float) -> str:
    """Whether something is more than something else: clearly, barely or not."""
    return HOLDS if points > _NEAR else PARTLY if points > 0 else FAILS


def comparable(found: Evidence) -> Finding:
    """CBSA* beside linear attention after the same fine-tuning."""
    tuned, shown = _tuned(*_study(found))
    return Finding(
        HOLDS if tuned["cbsa"] - tuned["linear"] > -_NEAR else FAILS,
        shown,
        f"Rule: at most {_NEAR} points behind linear attention. {_OURS}",
    )


def agent(found: Evidence) -> Finding:
    """Without the contraction step."""
    tuned, shown = _tuned(*_study(found))
    return Finding(
        _verdict(tuned["agent"] - tuned["linear"]),
        shown,
        f"Rule: by more than {_NEAR} points; partly if by less. {_OURS}",
    )


CLAIMS = (
    Claim(
        "adapted-flops",
        "section 4.2, figure vit-adapt",
        "ViTs adapted into CBSA* have nearly the same FLOPs as with linear attention.",
        (COSTS,),
        flops,
    ),
    Claim(
        "adapted-deviation",
        "section 4.2",
        "CBSA deviates more from MHSA than linear attention does, and is harder to adapt from ViTs.",
        STUDIES,
        deviation,
    ),
    Claim(
        "adapted-cbsa",
        "section 4.2, figure vit-adapt",
        "They achieve comparable performance to that of linear attention (the paper draws it, and prints "
        "no number).",
        STUDIES,
        comparable,
    ),
    Claim(
        "adapted-agent",
        "section 4.2, figure vit-adapt",
        "Without the contraction step (CBSA∨) they surpass linear attention.",
        STUDIES,
        agent,
    ),
)
