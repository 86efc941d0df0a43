"""Reduced coding rates of tokens and representatives: whether contracting a few compresses all."""

import math
from collections.abc import Mapping
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from cbsa.analysis import ReducedCodingRates
from cbsa.report.style import FAINT, INK, QUIET, legend_below, line_styles, new_figure, shorten, tidy

_LAYERS = colormaps["viridis"]


def plot_reduction(reductions: Mapping[str, ReducedCodingRates]) -> Figure:
    """Draw both reductions for every head, and against each other with their correlation; a row per model.

    Left, as in the paper's figure reduced_cr: all heads, layer by layer. Right: one point per head, its
    colour the layer, with Pearson's correlation r over all of them.

    Args:
        reductions: by name of the model, what :func:`cbsa.analysis.reduced_coding_rates` returns.
    """
    if not reductions:
        raise ValueError("reductions is empty: give those of at least one model")
    figure = new_figure(10.5, 3.4 * len(reductions) + 0.3)
    rows = figure.subplots(len(reductions), 2, squeeze=False, width_ratios=(5, 3))
    styles = line_styles(2)
    for (name, measured), (trend, scatter) in zip(reductions.items(), rows, strict=True):
        _draw_trend(trend, measured, styles)
        _draw_scatter(figure, scatter, measured)
        trend.set_title(
            f"{shorten(name, 40)}: reduction by head, nats",
            loc="left",
            fontsize=10.5,
            fontweight="bold",
            parse_math=False,
        )
    legend_below(figure, ("tokens", "representatives"), styles)
    return figure


def _draw_trend(axes: Axes, measured: ReducedCodingRates, styles: list[dict[str, Any]]) -> None:
    layers, heads = measured.tokens.shape
    tidy(axes, "", "layer")
    for values, style in zip((measured.tokens, measured.representatives), styles, strict=True):
        axes.plot(range(layers * heads), values.flatten().tolist(), **style)
    axes.axhline(0, color=INK, linewidth=0.9, zorder=1)
    for edge in range(1, layers):
        axes.axvline(edge * heads - 0.5, color=FAINT, linewidth=1, zorder=0)
    axes.set_xlim(-0.5, layers * heads - 0.5)
    centres = [i * heads + (heads - 1) / 2 for i in range(layers)]
    axes.set_xticks(centres, [str(layer + 1) for layer in measured.layers])


def _draw_scatter(figure: Figure, axes: Axes, measured: ReducedCodingRates) -> None:
    layers, heads = measured.tokens.shape
    r = measured.correlation
    said = "not defined (one is constant)" if math.isnan(r) else f"{r:.2f}".replace("-", "−")
    tidy(axes, f"r = {said}", "tokens, nats", "representatives, nats")
    axes.grid(axis="x", color=FAINT, linewidth=0.8)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    number = [layer + 1 for layer in measured.layers for _ in range(heads)]
    drawn = axes.scatter(
        measured.tokens.flatten().tolist(),
        measured.representatives.flatten().tolist(),
        c=number,
        cmap=_LAYERS,
        vmin=min(number),
        vmax=max(number) + 0.15 * (max(number) - min(number)),  # the lightest colours do not show on white
        s=34,
        edgecolors="white",
        linewidths=0.7,
        zorder=3,
    )
    if layers > 1:
        bar = figure.colorbar(drawn, ax=axes, fraction=0.05, pad=0.03, aspect=25)
        bar.ax.set_ylim(min(number), max(number))
        bar.outline.set_visible(False)  # type: ignore[operator]
        bar.ax.tick_params(colors=QUIET, labelsize=8, length=0)
        bar.ax.yaxis.set_major_locator(MaxNLocator(nbins=12, integer=True, min_n_ticks=1))
        bar.set_label("layer", color=QUIET, fontsize=9)
