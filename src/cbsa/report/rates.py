"""Compression layer by layer: coding rates around the attention and the sparsity of the codes."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from cbsa.analysis import CodingRates
from cbsa.report.style import (
    INK,
    PALETTE,
    QUIET,
    layer_axis,
    legend_below,
    line_styles,
    model_styles,
    new_figure,
    tidy,
)


def plot_rates(rates: CodingRates) -> Figure:
    """Draw coding rates by layer, before attention, after it and after the feed-forward, and the sparsity.

    Rates are means over the heads, with a band of ± one standard deviation; the second panel has those of
    tokens scaled to unit length (the paper's figure of the compression term and its normalised variant).
    """
    figure = new_figure(10.5, 3.5)
    plain, normalized, zeros = figure.subplots(1, 3, width_ratios=(4, 4, 3))
    _draw(plain, (rates.input, rates.attention, rates.feed_forward))
    _draw(normalized, (rates.normalized_input, rates.normalized_attention, rates.normalized_feed_forward))
    tidy(plain, "Coding rate of a head, nats", "layer")
    tidy(normalized, "… of tokens of unit length", "layer")
    tidy(zeros, "Zeros in ISTA's output, %", "layer")
    layers = len(rates.sparsity)
    sparse = not bool(rates.sparsity.isnan().all())
    if sparse:
        zeros.bar(range(1, layers + 1), (100 * rates.sparsity).tolist(), color=PALETTE[3], width=0.6)
        zeros.set_ylim(0, 100)
    else:
        zeros.text(0.5, 0.5, "no ISTA in this model", transform=zeros.transAxes, ha="center", color=QUIET)
        zeros.set_yticks([])
    for axes in (plain, normalized, zeros):
        layer_axis(axes, layers)
    names = ("before attention", "after attention", "after ISTA" if sparse else "after the feed-forward")
    legend_below(figure, names, line_styles(3))
    return figure


def plot_compression(rates: Mapping[str, CodingRates]) -> Figure:
    """Draw the compression term by layer for several models, as the paper's figure coding-rate does.

    The panels have R_c, the sum over heads of the coding rate of what enters a layer, in its own subspaces;
    the same of tokens scaled to unit length; and what the attention of the layer changes about R_c, below 0
    where it compresses.

    Args:
        rates: by name of the model, what :func:`cbsa.analysis.coding_rates` returns.
    """
    if not rates:
        raise ValueError("rates is empty: give those of at least one model")
    figure = new_figure(10.5, 3.6)
    plain, normalized, change = figure.subplots(1, 3)
    styles = model_styles(list(rates))
    for measured, style in zip(rates.values(), styles, strict=True):
        layers = range(1, len(measured.input) + 1)
        before, after = measured.input.double().sum(1), measured.attention.double().sum(1)
        plain.plot(layers, before.tolist(), **style)
        normalized.plot(layers, measured.normalized_input.double().sum(1).tolist(), **style)
        change.plot(layers, (after - before).tolist(), **style)
    tidy(plain, "Compression term, nats", "layer")
    tidy(normalized, "… of tokens of unit length", "layer")
    tidy(change, "Change through attention, nats", "layer")
    change.axhline(0, color=INK, linewidth=0.9, zorder=1)
    change.margins(y=0.12)
    for axes in (plain, normalized, change):
        layer_axis(axes, max(len(measured.input) for measured in rates.values()))
    legend_below(figure, list(rates), styles)
    return figure


def _draw(axes: Axes, stages: tuple[Tensor, ...]) -> None:
    """Mean and spread over the heads of rates (layers, heads), one line for each point of the block."""
    for values, style in zip(stages, line_styles(len(stages)), strict=True):
        layers = range(1, len(values) + 1)
        mean, spread = values.double().mean(1).cpu(), values.double().std(1, correction=0).cpu()
        low, high = (mean - spread).tolist(), (mean + spread).tolist()
        axes.fill_between(layers, low, high, color=style["color"], alpha=0.1, linewidth=0)
        axes.plot(layers, mean.tolist(), **style)
