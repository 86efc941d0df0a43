"""Compression layer by layer: coding rates around the attention and the sparsity of the codes."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from cbsa.analysis import CodingRates
from cbsa.report.style import PALETTE, QUIET, new_figure, plain_legend, tidy

_MARKERS = ("o", "s", "^")


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
        axes.xaxis.set_major_locator(MaxNLocator(nbins=12, integer=True))
        axes.set_xlim(0.5, layers + 0.5)
    lines = [Line2D([], [], color=c, marker=m) for c, m in zip(PALETTE, _MARKERS, strict=False)]
    names = ("before attention", "after attention", "after ISTA" if sparse else "after the feed-forward")
    plain_legend(figure, lines, names, loc="outside lower left", ncols=3)
    return figure


def _draw(axes: Axes, stages: tuple[Tensor, ...]) -> None:
    """Mean and spread over the heads of rates (layers, heads), one line for each point of the block."""
    for values, colour, marker in zip(stages, PALETTE, _MARKERS, strict=False):
        layers = range(1, len(values) + 1)
        mean, spread = values.double().mean(1).cpu(), values.double().std(1, correction=0).cpu()
        low, high = (mean - spread).tolist(), (mean + spread).tolist()
        axes.fill_between(layers, low, high, color=colour, alpha=0.1, linewidth=0)
        axes.plot(layers, mean.tolist(), color=colour, marker=marker, markersize=4.5, linewidth=1.8)
