"""Segmentation decoders: section 4.2 and figure segmentation, left."""

from cbsa import paper
from cbsa.reproduction.claim import FAILS, HOLDS, PARTLY, Claim, Finding
from cbsa.reproduction.claims.robustness import CAMVID
from cbsa.reproduction.evidence import RESULTS, Evidence

STUDY = "camvid/results.json"
TRAINED = "h200/camvid_training"
COSTS = "cbsa reproduce table-seg-cost --out benchmarks/results/cpu"


def _row(found: Evidence, decoder: str, size: str) -> dict[str, float]:
    rows = found.json("cpu/table-seg-cost.json")["costs"]
    (row,) = (row for row in rows if (row["decoder"], row["size"]) == (decoder, size))
    return {**row["cost"], "flops_share": row["flops_share"], "similarities_share": row["similarities_share"]}


def flops(found: Evidence) -> Finding:
    """Share of Segmenter's FLOPs that the largest CBT decoder needs."""
    share, theirs = _row(found, "CBT", "L")["flops_share"], paper.CBT_DECODER_SHARES[0]
    return Finding(
        HOLDS if abs(share - theirs) < 0.02 else FAILS,
        f"L at 640 px, 150 classes, counted: {share:.1%}",
        "Rule: within 2 points. By the authors' rule, which leaves out the masks.",
    )


def similarities(found: Evidence) -> Finding:
    """Share of Segmenter's similarities."""
    share, theirs = _row(found, "CBT", "L")["similarities_share"], paper.CBT_DECODER_SHARES[1]
    return Finding(
        HOLDS if 0.5 < share / theirs < 2 else FAILS,
        f"L at 640 px, 150 classes, counted: {share:.1%}",
        "Rule: within a factor of two. L·H·(mN + m(m+1)/2) over L'·H'·N². No way of counting that we tried "
        f"gives the paper's {theirs:.2%}; perhaps a share, {share:.2f}, was given a percent sign.",
    )


def sizes(found: Evidence) -> Finding:
    """Parameters and FLOPs of the authors' decoders."""
    wrong = []
    for size, (parameters, gflops, _) in paper.CBT_DECODERS.items():
        ours = _row(found, "CBT", size)
        if abs(ours["parameters"] / 1e6 - parameters) > 0.001 or abs(2e-9 * ours["macs"] - gflops) > 0.051:
            wrong.append(size)
    return Finding(
        FAILS if wrong else HOLDS,
        f"{len(paper.CBT_DECODERS) - len(wrong)} of {len(paper.CBT_DECODERS)} sizes equal to the last digit "
        "printed",
        "These numbers come with the authors' code; the paper draws them.",
    )


def _scores(found: Evidence, names: tuple[str, ...]) -> tuple[dict[str, float], str]:
    """mIoU of decoders on one encoder, and the split: of the study, else of a training that it began with."""
    if found.has(f"{RESULTS}/{STUDY}") or not found.has(f"{RESULTS}/{TRAINED}/{names[0]}/summary.json"):
        decoders = found.json(STUDY)["decoders"]
        return {name: decoders[name]["test"]["miou"] for name in names}, "CamVid, test split"
    runs = {name: found.json(f"{TRAINED}/{name}/summary.json") for name in names}
    return {name: run["miou"] for name, run in runs.items()}, "CamVid, validation split"


def miou(found: Evidence) -> Finding:
    """mIoU of the decoders on one encoder, on CamVid."""
    scores, split = _scores(found, ("cbt", "depict", "segmenter"))
    behind = [name for name in ("depict", "segmenter") if scores["cbt"] <= scores[name]]
    return Finding(
        HOLDS if not behind else PARTLY if len(behind) == 1 else FAILS,
        f"{split}: " + ", ".join(f"{name} {score:.1f} %" for name, score in scores.items()),
        "Rule: above both; partly above one. One seed, CamVid and a small encoder of ours, not ADE20K and "
        "ViTs of ImageNet-21k.",
    )


def tied(found: Evidence) -> Finding:
    """The decoder without over-parameterisation."""
    scores, split = _scores(found, ("cbt", "cbt-tied"))
    free, strict = scores.values()
    return Finding(
        HOLDS if strict < free else FAILS,
        f"{split}: CBT {free:.1f} %, CBT† {strict:.1f} %",
        "Rule: below the free one. One seed. The paper draws it and prints no number.",
    )


_MIOU = ", ".join(f"{size} {values[2]}" for size, values in paper.CBT_DECODERS.items())
CLAIMS = (
    Claim(
        "decoder-flops",
        "section 4.2",
        f"The best CBT decoder uses {paper.CBT_DECODER_SHARES[0]:.0%} of the FLOPs of Segmenter's.",
        (COSTS,),
        flops,
    ),
    Claim(
        "decoder-similarities",
        "section 4.2",
        f"And {paper.CBT_DECODER_SHARES[1]:.2%} of its pairwise similarities.",
        (COSTS,),
        similarities,
    ),
    Claim(
        "decoder-sizes",
        "figure segmentation, left",
        "Parameters and FLOPs of the CBT decoders: "
        + ", ".join(f"{size} {m} M and {g} G" for size, (m, g, _) in paper.CBT_DECODERS.items())
        + " (authors).",
        (COSTS,),
        sizes,
    ),
    Claim(
        "decoder-miou",
        "figure segmentation, left",
        f"CBT decoders consistently surpass DEPICT and Segmenter on ADE20K; by {paper.CBT_DECODER_GAIN} "
        f"points of mIoU the best of them ({_MIOU}; authors).",
        (CAMVID,),
        miou,
    ),
    Claim(
        "decoder-tied",
        "figure segmentation, left",
        "CBSA†, implemented rigorously, without over-parameterisation, stands beside CBSA in the figure.",
        (CAMVID,),
        tied,
    ),
)
