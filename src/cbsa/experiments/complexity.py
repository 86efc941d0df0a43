"""Costs of the models beside the paper's numbers, and paper figure complexity: FLOPs against resolution."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from cbsa import paper
from cbsa._files import prepare_folder
from cbsa.experiments.report import save_figure, save_results
from cbsa.layers import build_attention
from cbsa.models import MODELS, create_model
from cbsa.models.costs import closed_form_macs, counted_macs, pairwise_similarities

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ATTENTIONS = {"cbsa": "CBSA", "mssa": "MSSA", "mhsa": "MHSA", "linear": "linear attention", "tssa": "TSSA"}
RESOLUTIONS = (64, 128, 224, 288, 384, 512, 640, 768, 896, 1024)
WIDTH, HEADS, PATCH = 384, 6, 16  # the paper's: d = 384, H = 6, patches of 16×16


@dataclass(frozen=True)
class Cost:
    """One model's costs for one image of its own size; FLOPs are twice the multiply-accumulates, in G."""

    model: str
    img_size: int
    parameters: int
    flops: float  # by the paper's rule
    flops_counted: float  # by PyTorch's flop counter
    similarities: int
    paper_parameters: float | None  # millions
    paper_flops: float | None
    paper_similarities: float | None  # millions


def cost_of(name: str) -> Cost:
    """Costs of a registered model, without allocating it."""
    with torch.device("meta"):
        model = create_model(name)
    size = MODELS[name][0]["img_size"]
    paper_parameters, paper_flops = paper.PARAMETERS_AND_FLOPS.get(name, (None, None))
    return Cost(
        name,
        size,
        sum(p.numel() for p in model.parameters()),
        2e-9 * closed_form_macs(model, size),
        2e-9 * counted_macs(model, size),
        pairwise_similarities(model, size),
        paper_parameters,
        paper_flops,
        paper.PAIRWISE_SIMILARITIES.get(name),
    )


def attention_gflops(name: str, resolution: int) -> float:
    """FLOPs of one attention layer (projections included) for an image, counted, in G."""
    side = resolution // PATCH
    with torch.device("meta"):
        layer, x = build_attention(name, WIDTH, HEADS), torch.empty(1, 1 + side * side, WIDTH)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        layer(x)
    return 1e-9 * float(counter.get_total_flops())


def resolution_curves() -> dict[str, list[float]]:
    """FLOPs in G of each attention over :data:`RESOLUTIONS`."""
    return {name: [attention_gflops(name, r) for r in RESOLUTIONS] for name in ATTENTIONS}


def plot(curves: dict[str, list[float]]) -> "Figure":
    """FLOPs against resolution, as in the paper's figure, and again on logarithmic axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    for place, scale in enumerate(("linear", "log")):
        axes = figure.add_subplot(1, 2, place + 1)
        for (name, label), marker in zip(ATTENTIONS.items(), "os^Dv", strict=True):
            axes.plot(RESOLUTIONS, curves[name], marker=marker, markersize=4, linewidth=1.5, label=label)
        axes.set(xlabel="resolution in pixels", ylabel="GFLOPs of one layer", xscale=scale, yscale=scale)
        axes.set_title(f"{scale} axes", fontsize=10)
        if scale == "log":
            axes.set_xticks(RESOLUTIONS[::2], [str(r) for r in RESOLUTIONS[::2]])
            axes.minorticks_off()
        axes.grid(alpha=0.3)
    figure.axes[0].legend()
    figure.suptitle(f"One attention layer at d = {WIDTH}, {HEADS} heads, patches of {PATCH}×{PATCH}")
    return figure


def save_table(costs: list[Cost], out: Path) -> Path:
    """Write the costs as JSON."""
    prepare_folder(out)
    path = out / "table-complexity.json"
    save_results(path, {"costs": [asdict(c) for c in costs]})
    return path


def save_curves(curves: dict[str, list[float]], out: Path) -> list[Path]:
    """Write the figure (PNG, SVG) and its numbers (JSON)."""
    prepare_folder(out)
    numbers = out / "fig-complexity.json"
    save_results(numbers, {"resolutions": list(RESOLUTIONS), "gflops": curves})
    return [*save_figure(plot(curves), out / "fig-complexity"), numbers]
