"""Pretrained ViTs in the style of CBSA: figure vit-adapt."""

from cbsa.reproduction.claim import FAILS, HOLDS, PARTLY, Claim, Finding
from cbsa.reproduction.evidence import Evidence

COSTS = "cbsa reproduce fig-vit-adapt --widths tiny,small,base,large --out benchmarks/results/cpu"
STUDY = "python benchmarks/adapt_study.py outputs/runs/vit --out benchmarks/results/adapt"
_SAME, _NEAR = 0.05, 1.5  # share of FLOPs, points of accuracy, that count as the same


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


def _tuned(found: Evidence) -> dict[str, float]:
    """Top-1 after fine-tuning without distillation, by style; «softmax» is the original, tuned as long."""
    runs = found.json("adapt/adapt_study.json")["runs"]
    return {
        run["style"]: run["fine_tuned"]["top1"]
        for run in runs
        if run["distill"]["what"] == "none" and len(run["replaced"]) <= 1
    }


def deviation(found: Evidence) -> Finding:
    """Accuracy right after the swap, before anything is learnt."""
    runs = found.json("adapt/adapt_study.json")["runs"]
    swapped = {run["style"]: run["swapped"]["top1"] for run in runs if run["style"] != "softmax"}
    original = runs[0]["original"]["top1"]
    return Finding(
        HOLDS if swapped["cbsa"] < swapped["linear"] else FAILS,
        f"Right after the swap: {', '.join(f'{style} {top1:.1f} %' for style, top1 in swapped.items())}; the "
        f"original {original:.1f} %",
        "Rule: below linear attention. A small ViT of our own, not one of ImageNet-21k.",
    )


def comparable(found: Evidence) -> Finding:
    """CBSA* beside linear attention after the same fine-tuning."""
    tuned = _tuned(found)
    difference = tuned["cbsa"] - tuned["linear"]
    return Finding(
        HOLDS if difference > -_NEAR else FAILS,
        ", ".join(f"{style} {top1:.1f} %" for style, top1 in tuned.items()) + ", Tiny-ImageNet, few epochs",
        f"Rule: at most {_NEAR} points behind linear attention. A small ViT of our own, not one of "
        "ImageNet-21k.",
    )


def agent(found: Evidence) -> Finding:
    """Without the contraction step."""
    tuned = _tuned(found)
    difference = tuned["agent"] - tuned["linear"]
    return Finding(
        HOLDS if difference > _NEAR else PARTLY if difference > 0 else FAILS,
        f"CBSA∨ {tuned['agent']:.1f} %, linear {tuned['linear']:.1f} %, Tiny-ImageNet, few epochs",
        f"Rule: by more than {_NEAR} points; partly if by less. A small ViT of our own, not one of "
        "ImageNet-21k.",
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
        (STUDY,),
        deviation,
    ),
    Claim(
        "adapted-cbsa",
        "section 4.2, figure vit-adapt",
        "They achieve comparable performance to that of linear attention (the paper draws it, and prints "
        "no number).",
        (STUDY,),
        comparable,
    ),
    Claim(
        "adapted-agent",
        "section 4.2, figure vit-adapt",
        "Without the contraction step (CBSA∨) they surpass linear attention.",
        (STUDY,),
        agent,
    ),
)
