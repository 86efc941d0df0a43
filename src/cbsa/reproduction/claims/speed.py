"""Time and memory: linear in the number of tokens, and table wall-clock."""

from typing import Any

from cbsa import paper
from cbsa.reproduction.claim import FAILS, HOLDS, PARTLY, Claim, Finding
from cbsa.reproduction.claims.photographs import path_of
from cbsa.reproduction.evidence import Evidence

OPS = "cbsa bench ops --seconds 0.05 --jobs 14 --no-plots --out benchmarks/results/h200"
MODELS = (
    "cbsa bench models --models 'cbt_small*,vit_small*,crate_small*,tost_small*' --seconds 0.1 --jobs 16 "
    "--no-plots --out benchmarks/results/h200"
)
TABLE = "cbsa reproduce table-throughput --seconds 0.1 --jobs 16 --out benchmarks/results/h200"
_STEADY = 1.5  # time of a token may vary by this factor over all lengths
_MODES = ("forward", "forward+backward")
_SIZE = 512  # pixels, of the paper's table


def linear_time(found: Evidence) -> Finding:
    """Time of one token, over lengths 197 to 65,537 at about the same number of tokens in all."""
    data = found.json("h200/ops.json")
    rows = [row for row in data["rows"] if row["status"] == "done"]

    def spread(kind: str, mode: str) -> tuple[float, float]:
        """Time of a token at the longest length over that at the shortest; largest over smallest."""
        times: dict[int, float] = {}
        for row in rows:
            mine = row["candidate"] == "auto" if kind == "ours" else row["kind"] == kind
            if mine and row["mode"] == mode:
                each = row["median_ms"] / (row["tokens"] * row["batch"])
                times[row["tokens"]] = min(each, times.get(row["tokens"], each))
        return times[max(times)] / times[min(times)], max(times.values()) / min(times.values())

    ours, theirs = ({mode: spread(kind, mode) for mode in _MODES} for kind in ("ours", "sdpa"))
    memory = max(row["memory_ratio"] for row in rows if row["candidate"] == "auto")
    steady = all(most < _STEADY for _, most in ours.values())
    lengths = sorted({row["tokens"] for row in rows})
    return Finding(
        HOLDS if steady and memory < 2 else FAILS,
        f"{data['environment']['device']}, bf16, {lengths[0]} to {lengths[-1]:,} tokens: the time of one "
        f"token changes by a factor of {ours['forward'][1]:.2f} at most, {ours['forward+backward'][1]:.2f} "
        f"with the backward; by {theirs['forward'][0]:.0f} and {theirs['forward+backward'][0]:.0f} from the "
        f"shortest to the longest for the best softmax attention. Memory is {memory:.2f} times that of "
        "inputs and outputs at most.",
        f"Rule: less than {_STEADY} for the time of a token, less than 2 for memory; our kernels, 64 "
        "representatives.",
    )


def throughput(found: Evidence) -> Finding:
    """CBT's images/s over those of the others at 512 px."""
    data = found.json(path_of(found, "table-throughput.json", otherwise="h200/table-throughput.json"))
    rows = {
        (row["model"], row["mode"]): row
        for row in data["rows"]
        if row["status"] == "done" and row["img_size"] == _SIZE
    }
    ratios: dict[tuple[str, str], float] = {}
    for (name, mode), row in rows.items():
        if row.get("cbt_over_this") is not None:
            ratios[name, mode] = row["cbt_over_this"]
    sizes = sorted({name.split("_")[1] for name, _ in ratios}, reverse=True)
    wins = sum(ratio > 1 for ratio in ratios.values())
    shown = "; ".join(
        f"{mode}: "
        + ", ".join(f"{_label(name)} {ratio:.2f}×" for (name, m), ratio in ratios.items() if m == mode)
        for mode in dict.fromkeys(mode for _, mode in ratios)
    )
    missing = [size for size in ("tiny", "small") if size not in sizes]
    every = wins == len(ratios) and not missing
    verdict = HOLDS if every else PARTLY if 2 * wins > len(ratios) else FAILS
    return Finding(
        verdict,
        f"{data['environment']['device']}, bf16, compiled, {_SIZE} px: CBT makes {shown} as many images/s",
        "Our kernels, SDPA for ViT and CRATE, random images"
        + (f"; partly while the {' and '.join(missing)} models have not been timed" if missing else "")
        + ". In the paper's own table ToST-S is faster in inference than CBT-S.",
    )


def _label(name: str) -> str:
    family, size, *_ = name.split("_")
    return {"vit": "ViT", "crate": "CRATE", "tost": "ToST", "cbt": "CBT"}[family] + f"-{size[0].upper()}"


def _theirs() -> str:
    def line(place: int) -> str:
        return ", ".join(f"{_label(name)} {rates[place]:g}" for name, rates in paper.THROUGHPUT.items())

    return f"training: {line(0)}; inference: {line(1)}"


def listing(found: Evidence) -> Finding:
    """The paper's listing, eager and compiled, beside the fastest softmax attention at 512 px."""
    rows: list[dict[str, Any]] = found.json("h200/ops.json")["rows"]
    tokens = (_SIZE // 16) ** 2 + 1
    at = [r for r in rows if r["tokens"] == tokens and r["mode"] == "forward" and r["status"] == "done"]
    best = min(row["median_ms"] for row in at if row["kind"] == "sdpa")
    ours = {row["candidate"]: row["median_ms"] for row in at}
    names = ("listing", "listing-compiled", "auto")
    times = {name: best / ours[name] for name in names}
    verdict = HOLDS if times["listing"] > 1 else PARTLY if times["auto"] > 1 else FAILS
    return Finding(
        verdict,
        f"H200, bf16, {tokens} tokens ({_SIZE} px), forward, speed over the best SDPA: the paper's listing "
        f"{times['listing']:.2f}×, the same compiled {times['listing-compiled']:.2f}×, our kernels "
        f"{times['auto']:.2f}×",
        "The paper names neither GPU nor implementation of its rivals. Against fused softmax attention its "
        "listing is slower at this length, and its advantage needs kernels.",
    )


CLAIMS = (
    Claim(
        "linear-time",
        "abstract, section 1",
        "With a fixed number of representatives time and memory are linear in the number of tokens.",
        (OPS,),
        linear_time,
    ),
    Claim(
        "throughput",
        "table wall-clock",
        f"«Consistently» superior training and inference efficiency at 512 px; images/s in {_theirs()}.",
        (TABLE,),
        throughput,
    ),
    Claim(
        "listing-speed",
        "table wall-clock, appendix D",
        "The paper's CBTs, whose attention is the listing, make more images/s at 512 px than models with "
        "softmax attention.",
        (OPS,),
        listing,
    ),
)
