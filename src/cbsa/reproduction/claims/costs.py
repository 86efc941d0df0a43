"""What attentions and models cost, counted: tables complexities, CBT_tab, fair_comp, figure complexity."""

from typing import Any

from cbsa import paper
from cbsa.experiments.complexity import HEADS, PATCH, WIDTH
from cbsa.reproduction.claim import FAILS, HOLDS, PARTLY, Claim, Finding
from cbsa.reproduction.evidence import Evidence

TABLE = "cbsa reproduce table-complexity --out benchmarks/results/cpu"
CURVES = "cbsa reproduce fig-complexity --out benchmarks/results/cpu"
_POOLING = 0.05  # counted FLOPs may exceed the formula by so much: our pooling is two products


def curves(found: Evidence) -> dict[int, dict[str, float]]:
    """GFLOPs of one layer of each attention, counted, by number of tokens."""
    data = found.json("cpu/fig-complexity.json")
    return {
        1 + (px // PATCH) ** 2: {name: values[place] for name, values in data["gflops"].items()}
        for place, px in enumerate(data["resolutions"])
    }


def costs(found: Evidence) -> dict[str, dict[str, Any]]:
    """Parameters, FLOPs and similarities of the models at 224 px, by name."""
    return {cost["model"]: cost for cost in found.json("cpu/table-complexity.json")["costs"]}


def formulas(found: Evidence) -> Finding:
    """Counted FLOPs of the layers against 2Nd² + 2N²d and 2Nd² + 3Nmd + 2m²d."""
    d, m = WIDTH, WIDTH // HEADS
    worst = {"mssa": 0.0, "cbsa": 0.0}
    for n, counted in curves(found).items():
        rules = {
            "mssa": 2 * n * d**2 + 2 * n**2 * d,
            "cbsa": 2 * n * d**2 + 3 * n * m * d + 2 * m**2 * d,
        }
        for name, macs in rules.items():
            worst[name] = max(worst[name], abs(counted[name] / (2e-9 * macs) - 1))
    holds = worst["mssa"] < 1e-9 and worst["cbsa"] < _POOLING
    return Finding(
        HOLDS if holds else FAILS,
        f"d = {d}, H = {HEADS}, 64 to 1024 px: MSSA differs by {worst['mssa']:.1%} at most from the "
        f"formula, CBSA by {worst['cbsa']:.1%}, counted by PyTorch",
        "The rest is our pooling, two small products that the paper does not count (rule: at most "
        f"{_POOLING:.0%}).",
    )


def crossing(found: Evidence) -> Finding:
    """CBSA is cheaper than MSSA exactly beyond 2p tokens."""
    p = WIDTH // HEADS
    rows = curves(found)
    as_said = [(row["cbsa"] < row["mssa"]) == (n > 2 * p) for n, row in rows.items()]
    below, above = max(n for n in rows if n <= 2 * p), min(n for n in rows if n > 2 * p)
    shown = "; ".join(
        f"{n} tokens: CBSA {rows[n]['cbsa']:.3f}, MSSA {rows[n]['mssa']:.3f} GFLOPs" for n in (below, above)
    )
    return Finding(
        HOLDS if all(as_said) else FAILS,
        f"{shown}; so at {sum(as_said)} of {len(as_said)} resolutions",
        "With m = p the difference of the formulas is d·(2N + p)(N − 2p), so it is exactly there.",
    )


def growth(found: Evidence) -> Finding:
    """Growth of FLOPs when the number of tokens grows fourfold."""
    data = found.json("cpu/fig-complexity.json")
    half, full = (data["resolutions"].index(px) for px in (512, 1024))
    times = {name: values[full] / values[half] for name, values in data["gflops"].items()}
    linear, quadratic = ("cbsa", "tssa", "linear"), ("mssa", "mhsa")
    holds = all(times[name] < 4.05 for name in linear) and all(times[name] > 8 for name in quadratic)
    shown = ", ".join(
        f"{name.upper() if name != 'linear' else name} {value:.1f}×" for name, value in times.items()
    )
    return Finding(
        HOLDS if holds else FAILS,
        f"FLOPs of one layer from 512 to 1024 px, four times the tokens: {shown}",
        "Linear is 4×; quadratic is between that and 16×, since the projections are linear.",
    )


def parameters_and_flops(found: Evidence) -> Finding:
    """Parameters and FLOPs rounded as the paper rounds them."""
    ours = costs(found)
    wrong: list[str] = []
    cited: list[str] = []
    for name, (parameters, flops) in paper.PARAMETERS_AND_FLOPS.items():
        found_parameters, found_flops = ours[name]["parameters"] / 1e6, ours[name]["flops"]
        if abs(found_parameters - parameters) > 0.051 or abs(found_flops - flops) > 0.051:
            shown = f"{name} {found_parameters:.1f} M, {found_flops:.1f} G (paper {parameters} M, {flops} G)"
            (wrong if name.startswith("cbt") else cited).append(shown)
    cbt = [ours[name] for name in paper.PARAMETERS_AND_FLOPS if name.startswith("cbt")]
    shown = ", ".join(f"{c['parameters'] / 1e6:.2f} M and {c['flops']:.2f} G" for c in cbt)
    return Finding(
        FAILS if wrong else HOLDS,
        f"CBT-T, S, B, L at 224 px: {shown}" + (f". Others: {'; '.join(cited)}" if cited else ""),
        "FLOPs by the paper's rule: twice the multiply-accumulates, N without CLS, ISTA in two products. "
        "Rows that the paper cites from other papers have another stem or another rule there.",
    )


def similarities(found: Evidence) -> Finding:
    """Similarities of the fair comparison, to the digits that the paper prints."""
    ours = costs(found)
    wrong = []
    for name, theirs in paper.PAIRWISE_SIMILARITIES.items():
        value = ours[name]["similarities"] / 1e6
        if abs(value - theirs) > (0.0051 if theirs < 1 else 0.051):
            wrong.append(f"{name} {value:.3g} M (paper {theirs:g} M)")
    total = len(paper.PAIRWISE_SIMILARITIES)
    verdict = HOLDS if not wrong else PARTLY if 2 * len(wrong) < total else FAILS
    return Finding(
        verdict,
        f"{total - len(wrong)} of {total} as printed" + (f"; not {', '.join(wrong)}" if wrong else ""),
        "Per layer and head MSSA N², CBSA mN + m(m+1)/2, TSSA and Agent mN, with N = 197. No rule that we "
        "found gives the paper's numbers for Agent.",
    )


def cbt_s_beside_vit_s(found: Evidence) -> Finding:
    """Shares of ViT-S that CBT-S takes."""
    ours = costs(found)
    cbt, vit = (ours[name] for name in ("cbt_small_patch16_224", "vit_conv_small_patch16_224"))
    shares = (cbt["parameters"] / vit["parameters"], cbt["flops"] / vit["flops"])
    close = all(abs(a - b) < 0.02 for a, b in zip(shares, paper.CBT_S_SHARES, strict=True))
    return Finding(
        HOLDS if close else FAILS,
        f"{shares[0]:.1%} of the parameters, {shares[1]:.1%} of the FLOPs, at 224 px",
        "The costs alone (rule: within 2 points); for the accuracy see the row on table CBT_tab.",
    )


def cheaper_than_crate(found: Evidence) -> Finding:
    """CBT-S beside CRATE-B, the smallest of CRATE in the paper's table."""
    ours = costs(found)
    cbt, crate = (ours[name] for name in ("cbt_small_patch16_224", "crate_base_linear_patch16_224"))
    fewer = cbt["parameters"] < crate["parameters"] and cbt["flops"] < crate["flops"]
    ours_shown, theirs_shown = (f"{c['parameters'] / 1e6:.1f} M and {c['flops']:.1f} G" for c in (cbt, crate))
    s, b = paper.CLASSIFICATION["CBT-S"][0], paper.CLASSIFICATION["CRATE-B"][0]
    return Finding(
        PARTLY if fewer else FAILS,
        f"CBT-S {ours_shown}, CRATE-B {theirs_shown}",
        f"The costs hold. The accuracies (paper: {s} and {b} %) need ImageNet-1k, and compare models with "
        "different stems: the paper's fair comparison, where stems are the same, has MSSA ahead of CBSA.",
    )


_CBT = [f"{m} M and {g} G" for name, (m, g) in paper.PARAMETERS_AND_FLOPS.items() if name.startswith("cbt")]
CLAIMS = (
    Claim(
        "complexity-formulas",
        "table complexities",
        "MSSA costs 2Nd² + 2N²d multiply-accumulates, CBSA 2Nd² + 3Nmd + 2m²d: extraction and broadcast Nmd, "
        "contraction m²d, projection Nd² each.",
        (CURVES, "pytest tests/test_complexity.py"),
        formulas,
    ),
    Claim(
        "crossing",
        "section 3.2, figure complexity",
        "Provided N > 2d/H = 2p (typically 128) CBSA has fewer FLOPs than MSSA.",
        (CURVES,),
        crossing,
    ),
    Claim(
        "growth",
        "table baseline, figure complexity",
        "MHSA and MSSA are quadratic in the number of tokens; CBSA, TSSA and linear attention are linear.",
        (CURVES,),
        growth,
    ),
    Claim(
        "parameters-and-flops",
        "table CBT_tab, first rows",
        f"Parameters and FLOPs of CBT-T, S, B, L: {', '.join(_CBT)}.",
        (TABLE,),
        parameters_and_flops,
    ),
    Claim(
        "similarities",
        "table fair_comp, first row",
        f"Pairwise similarities: {', '.join(f'{name} {m} M' for name, (_, m) in paper.FAIR.items())}.",
        (TABLE,),
        similarities,
    ),
    Claim(
        "cbt-s-costs",
        "section 4.2",
        f"CBT-S needs only {paper.CBT_S_SHARES[0]:.0%} of the parameters and {paper.CBT_S_SHARES[1]:.0%} of "
        "the FLOPs of ViT-S.",
        (TABLE,),
        cbt_s_beside_vit_s,
    ),
    Claim(
        "cheaper-than-crate",
        "section 4.2",
        "CBTs perform remarkably better than CRATE models while using fewer parameters and FLOPs.",
        (TABLE,),
        cheaper_than_crate,
    ),
)
