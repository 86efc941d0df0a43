"""Costs of the segmentation decoders alone, beside the authors' numbers and the paper's shares."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from cbsa import paper
from cbsa._files import prepare_folder
from cbsa.bench.tables import Grid
from cbsa.experiments.report import save_results
from cbsa.models.registry import SIZES
from cbsa.segmentation import DECODERS
from cbsa.segmentation.cost import DecoderCost, decoder_cost

NAME = "table-seg-cost"
PATCH = 16
# The sizes by the paper's letters, with the side of the training crops.
CROPS = {"T": ("tiny", 512), "S": ("small", 512), "B": ("base", 512), "L": ("large", 640)}
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "CBT": ("cbt", {}),
    "CBT†": ("cbt", {"tied": True}),
    "DEPICT-SA": ("depict", {}),
    "DEPICT-CA": ("depict", {"mode": "cross"}),
    "Segmenter": ("mask_transformer", {}),
}
RIVAL = "Segmenter"  # whose costs the shares are of
NOTES = (
    "At 512×512 px, L at 640×640. Parameters in M, FLOPs in G, pairs (similarities between tokens or with "
    "representatives) in M; shares are of Segmenter's decoder. DEPICT has as many layers here as CBT.",
    "FLOPs by the authors' rule: twice the multiply-accumulates of the layers over patches and class tokens, "
    "for CBT 2·L·(2N·d·Hp + 3N·m·Hp + 2m²·Hp) with N = h·w + classes. It leaves out the masks, pooling, and "
    "Segmenter's maps before and after its blocks; 'all' has them too, counted by PyTorch.",
)


@dataclass(frozen=True)
class Row:
    """One decoder on an encoder of one size."""

    size: str
    decoder: str
    img_size: int
    cost: DecoderCost
    flops_share: float  # of Segmenter's
    similarities_share: float


def run(num_classes: int = 150) -> list[Row]:
    """Costs of all decoders at all sizes, without allocating them."""
    rows = []
    for letter, (size, pixels) in CROPS.items():
        grid = (pixels // PATCH, pixels // PATCH)
        costs = {}
        for label, (name, options) in ROWS.items():
            with torch.device("meta"):
                decoder = DECODERS[name](SIZES[size]["embed_dim"], num_classes, **options)
            costs[label] = decoder_cost(decoder, grid)
        rival = costs[RIVAL]
        rows += [
            Row(letter, label, pixels, c, c.macs / rival.macs, c.similarities / rival.similarities)
            for label, c in costs.items()
        ]
    return rows


def grid(rows: list[Row], num_classes: int) -> Grid:
    """Ours beside the authors'."""
    columns = ("decoder", "param.", "authors", "FLOPs", "authors", "all", "share", "pairs", "share")
    cells: list[tuple[str, ...]] = []
    for row in rows:
        known = paper.CBT_DECODERS[row.size] if row.decoder == "CBT" and num_classes == 150 else None
        cells.append(
            (
                f"{row.decoder}-{row.size}",
                f"{row.cost.parameters / 1e6:.3f}",
                f"{known[0]:.3f}" if known else "",
                f"{2e-9 * row.cost.macs:.2f}",
                f"{known[1]:.1f}" if known else "",
                f"{2e-9 * row.cost.counted_macs:.2f}",
                f"{row.flops_share:.1%}",
                f"{row.cost.similarities / 1e6:.2f}",
                f"{row.similarities_share:.1%}",
            )
        )
    return Grid(f"Decoders alone, one image, {num_classes} classes", columns, cells, NOTES)


def verdict(rows: list[Row]) -> str:
    """What becomes of the paper's two shares."""
    (best,) = (row for row in rows if (row.decoder, row.size) == ("CBT", "L"))
    flops, pairs = paper.CBT_DECODER_SHARES
    return (
        f"The paper: «merely {flops:.0%} of the FLOPs and {pairs:.2%} of the pairwise similarities» of "
        f"Segmenter's decoder, for the best CBT decoder (L). Counted: {best.flops_share:.1%} of the FLOPs, "
        f"which agrees, and {best.similarities_share:.1%} of the similarities, which does not: L·H·(mN + "
        "m(m+1)/2) over L'·H'·N². No way of counting that we tried gives the paper's second number; perhaps "
        f"it is a share, {best.similarities_share:.2f}, that was given a percent sign."
    )


def save(rows: list[Row], num_classes: int, out: Path) -> Path:
    """Write the costs as JSON."""
    prepare_folder(out)
    path = out / f"{NAME}.json"
    authors = {
        size: {"parameters_m": parameters, "gflops": gflops, "miou": miou}
        for size, (parameters, gflops, miou) in paper.CBT_DECODERS.items()
    }
    flops, pairs = paper.CBT_DECODER_SHARES
    shares = {"flops": flops, "similarities": pairs}
    content = {"num_classes": num_classes, "costs": [asdict(row) for row in rows]}
    save_results(path, content | {"authors_cbt_decoders": authors, "paper_shares_at_l": shares})
    return path
