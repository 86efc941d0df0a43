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
    from cbsa.report.style import legend_below, line_styles, new_figure, tidy

    figure = new_figure(10, 4.2)
    styles = line_styles(len(ATTENTIONS))
    titles = {"linear": f"GFLOPs of one layer, d = {WIDTH}, {HEADS} heads", "log": "… on logarithmic axes"}
    for axes, (scale, title) in zip(figure.subplots(1, 2), titles.items(), strict=True):
        tidy(axes, title, f"resolution in pixels, patches of {PATCH}×{PATCH}")
        for name, style in zip(ATTENTIONS, styles, strict=True):
            axes.plot(RESOLUTIONS, curves[name], **style)
        axes.set(xscale=scale, yscale=scale)
        shown = RESOLUTIONS if scale == "linear" else RESOLUTIONS[::3]
        axes.set_xticks(shown, [str(r) for r in shown])
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.minorticks_off()
    legend_below(figure, list(ATTENTIONS.values()), styles)
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
