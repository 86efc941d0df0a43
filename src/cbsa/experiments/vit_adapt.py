"""Paper figure vit-adapt: accuracy and FLOPs of adapted ViTs against the original."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import timm
import torch

from cbsa._checks import check_choice
from cbsa.adaptation import STYLES, adapt
from cbsa.adaptation.costs import adapted_macs
from cbsa.bench.tables import Grid
from cbsa.experiments.report import save_analysis
from cbsa.models.registry import SIZES
from cbsa.train.adaptation.report import STAGES, read_report, stage_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "fig-vit-adapt"
PATCH = 16
RESOLUTIONS = (224, 384, 512, 768, 1024)
LABELS = {"softmax": "MHSA (original)", "linear": "linear", "agent": "CBSA∨ (Agent)", "cbsa": "CBSA*"}
MLP = "MLP"
CAPTION = (
    "The paper draws these accuracies (ViTs of timm pretrained on ImageNet-21k, 50 epochs on ImageNet-1k) "
    "and gives no number for them, in the text or in its source: none can stand beside ours. It says: «CBSA "
    "achieves comparable performance to that of linear attention with nearly the same FLOPs», and without "
    "the contraction step it «surpasses linear attention». Ours are of the runs named, on their data."
)


@dataclass(frozen=True)
class Cost:
    """FLOPs of a ViT of one width in one style, for one image; twice the counted multiply-accumulates, in G.

    Attributes:
        size: ``"tiny"``, ``"small"``, …
        style: of all layers.
        img_size: side of the image.
        gflops: of the whole model.
        attention: of one layer's attention, its projections included.
        share: of the original's FLOPs.
        attention_share: of the original's attention.
    """

    size: str
    style: str
    img_size: int
    gflops: float
    attention: float
    share: float
    attention_share: float


def costs(sizes: Sequence[str] = ("tiny", "small"), img_size: int = 224) -> list[Cost]:
    """FLOPs of the styles, counted without allocating the models."""
    found = []
    for size in sizes:
        check_choice("size", size, SIZES)
        whole = {style: model_gflops(size, style, img_size) for style in LABELS}
        layer = {style: attention_gflops(size, style, img_size) for style in LABELS}
        found += [
            Cost(
                size,
                style,
                img_size,
                whole[style],
                layer[style],
                whole[style] / whole["softmax"],
                layer[style] / layer["softmax"],
            )
            for style in LABELS
        ]
    return found


def model_gflops(size: str, style: str, img_size: int, depth: int | None = None) -> float:
    """FLOPs in G of timm's ViT with patches of 16 pixels, in a style."""
    options: dict[str, Any] = {} if depth is None else {"depth": depth}
    with torch.device("meta"):
        vit = timm.create_model(f"vit_{size}_patch16_224", img_size=img_size, **options)
    return 2e-9 * adapted_macs(adapt(vit, check_choice("style", style, STYLES)), img_size)


def attention_gflops(size: str, style: str, img_size: int) -> float:
    """FLOPs in G of one attention: what a second block adds to a first one, less its MLP."""
    block = model_gflops(size, style, img_size, 2) - model_gflops(size, style, img_size, 1)
    return block - mlp_gflops(size, img_size)


def mlp_gflops(size: str, img_size: int) -> float:
    """FLOPs in G of one MLP of a ViT: two products with four times the width."""
    tokens, width = (img_size // PATCH) ** 2 + 1, SIZES[size]["embed_dim"]
    return 2e-9 * 8 * tokens * width**2


def curves(sizes: Sequence[str]) -> dict[str, dict[str, list[float]]]:
    """FLOPs in G of one layer's modules over :data:`RESOLUTIONS`, by size and label."""
    found = {}
    for size in sizes:
        modules = {
            label: [attention_gflops(size, style, px) for px in RESOLUTIONS]
            for style, label in LABELS.items()
        }
        found[size] = modules | {MLP: [mlp_gflops(size, px) for px in RESOLUTIONS]}
    return found


# --- accuracies ------------------------------------------------------------------------------------------


def read_reports(runs: Sequence[Path], files: Sequence[Path]) -> list[dict[str, Any]]:
    """Reports of runs of ``cbsa adapt``, from their folders and from results of a study."""
    found = [{**read_report(folder), "run": folder.name} for folder in runs]
    for path in files:
        try:
            stored = json.loads(path.read_text())["runs"]
            for report in stored:
                stage_rows(report)  # what the table needs is there
        except OSError as error:
            raise FileNotFoundError(f"{path}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} does not hold runs of an adaptation study ({error!r})") from error
        found += stored
    return found


def cost_grid(found: Sequence[Cost]) -> Grid:
    """FLOPs of the styles."""
    columns = ("", "GFLOPs", "of the original's", "one attention", "of the original's")
    cells: list[tuple[str, ...]] = [
        (
            f"ViT-{c.size[0].upper()}, {LABELS[c.style]}",
            f"{c.gflops:.3f}",
            f"{c.share:.1%}",
            f"{c.attention:.4f}",
            f"{c.attention_share:.1%}",
        )
        for c in found
    ]
    px = found[0].img_size if found else 0
    return Grid(f"FLOPs at {px} px, patches of {PATCH}, counted", columns, cells)


def accuracy_grid(reports: Sequence[dict[str, Any]]) -> Grid:
    """Accuracies of runs: the original's, right after the swap, after fine-tuning, and the differences."""
    columns = ("", "original", "swapped", "tuned", "Δ", "Δ tuned", "FLOPs", "saving")
    cells: list[tuple[str, ...]] = []
    for report in reports:
        tops, control = [report[stage]["top1"] for stage in STAGES], tuned_original(report, reports)
        cells.append(
            (
                describe(report),
                *(f"{top:.2f}" for top in tops),
                f"{tops[-1] - tops[0]:+.2f}",
                "—" if control is None else f"{tops[-1] - control:+.2f}",
                f"{report['swapped_gflops'] / report['gflops']:.1%}",
                "—" if (share := saving_share(report)) is None else f"{share:.1%}",
            )
        )
    notes = (
        "Swapped: right after the swap, nothing is learnt yet. Δ: tuned, less the original. Δ tuned: less "
        "the original fine-tuned as long, with softmax attention and labels alone.",
        "FLOPs: share of the original's. Saving: share of the paper's: FLOPs saved, counted, over what CBSA "
        "in all layers saves at this size by the paper's complexities, 2N²d − 3Nmd − 2m²d per layer with "
        "m = d/H.",
    )
    return Grid("Top-1 accuracy in %, ours", columns, cells, notes)


def tuned_original(report: dict[str, Any], reports: Sequence[dict[str, Any]]) -> float | None:
    """Top-1 of the same original, fine-tuned as long with softmax and labels alone; None if nobody did it."""

    def budget(run: dict[str, Any]) -> tuple[Any, ...]:
        return *(run[name] for name in ("model", "dataset", "epochs")), run.get("weights"), run.get("seed")

    found = [
        run["fine_tuned"]["top1"]
        for run in reports
        if run["style"] == "softmax" and run["distill"]["what"] == "none" and budget(run) == budget(report)
    ]
    return found[0] if found else None


def saving_share(report: dict[str, Any]) -> float | None:
    """FLOPs that a run saved, as a share of what the paper's adaptation saves at the same size.

    None for reports that do not tell it, and where the paper's saves nothing: too few tokens.
    """
    paper = report.get("paper_saved_gflops")
    return (report["gflops"] - report["swapped_gflops"]) / paper if paper and paper > 0 else None


def describe(report: dict[str, Any]) -> str:
    """What a run did, in a few words."""
    parts = [report["model"], LABELS[report["style"]]]
    layout = report.get("representatives")
    if layout and report["style"] in ("cbsa", "agent"):
        parts.append("×".join(map(str, layout)))
    if report.get("broadcast", "transpose") != "transpose":
        parts.append(f"broadcast by {report['broadcast']}")
    if report["style"] == "linear" and report.get("kernel") == "elu":
        parts.append("ELU + 1")
    parts.append(f"{report['dataset']}, {report['epochs']} epochs")
    if report["distill"]["what"] != "none":
        parts.append(f"distilled: {report['distill']['what']}")
    if len(report["replaced"]) > 1:
        parts.append(f"{len(report['replaced'])} groups")
    return ", ".join(parts)


def plot(by_size: dict[str, dict[str, list[float]]], reports: Sequence[dict[str, Any]]) -> "Figure":
    """FLOPs of one layer's modules against the resolution, and accuracies of the runs against FLOPs."""
    from cbsa.report.style import INK, line_styles, new_figure, plain_legend, tidy

    names = [*LABELS.values(), MLP]
    looks = dict(zip(names, line_styles(len(names)), strict=True))
    panels = len(by_size) + bool(reports)
    figure = new_figure(4.4 * panels, 4.2)
    axes = list(figure.subplots(1, panels, squeeze=False)[0])
    for (size, modules), panel in zip(by_size.items(), axes, strict=False):
        tidy(panel, f"ViT-{size[0].upper()}: one module", "resolution in pixels", "GFLOPs")
        for name, values in modules.items():
            panel.plot(RESOLUTIONS, values, **looks[name])
    if reports:
        tidy(
            axes[-1], "Runs: hollow with distillation", "FLOPs in % of the original's", "top-1 accuracy in %"
        )
        for report in reports:
            look = looks[LABELS[report["style"]]] | {"linestyle": "none", "markersize": 8}
            if report["distill"]["what"] != "none":
                look["markerfacecolor"] = "white"
            share = 100 * report["swapped_gflops"] / report["gflops"]
            axes[-1].plot(share, report["fine_tuned"]["top1"], **look)
        for level in {round(report["original"]["top1"], 2) for report in reports}:
            axes[-1].axhline(level, color=INK, linewidth=0.8, linestyle=(0, (4, 2)))
    handles = [axes[0].lines[i] for i in range(len(names))]
    plain_legend(figure, handles, names, loc="outside lower center", ncols=len(names))
    return figure


def save(
    found: Sequence[Cost],
    by_size: dict[str, dict[str, list[float]]],
    reports: Sequence[dict[str, Any]],
    out: Path,
) -> list[Path]:
    """Write the figure (PNG, SVG), the costs (CSV) and everything with its origin (JSON)."""
    results = {
        "costs": [asdict(cost) for cost in found],
        "resolutions": list(RESOLUTIONS),
        "module_gflops": by_size,
        "runs": list(reports),
        "paper": {"values": None, "why": CAPTION},
    }
    return save_analysis(out, NAME, {"": plot(by_size, reports)}, [asdict(cost) for cost in found], results)
