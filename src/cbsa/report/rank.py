"""Rank of the extraction: how many of the representatives are in use."""

from collections.abc import Mapping

from matplotlib.figure import Figure

from cbsa.analysis import ExtractionRanks
from cbsa.report.style import DOTTED, layer_axis, legend_below, model_styles, new_figure, tidy

_SMALLEST = 1e-9  # singular values below this share of the largest are drawn there


def plot_ranks(ranks: Mapping[str, ExtractionRanks]) -> Figure:
    """Draw rank and effective rank of A_k by layer, and its singular values; a line per model.

    Lines are means over heads and images, bands reach from the lowest to the highest of any head and image.
    The dotted line is the largest rank there can be. The spectrum is the mean over layers and heads.

    Args:
        ranks: by name of the model, what :func:`cbsa.analysis.extraction_rank` returns.
    """
    if not ranks:
        raise ValueError("ranks is empty: give those of at least one model")
    figure = new_figure(10.5, 3.6)
    rank, effective, spectrum = figure.subplots(1, 3)
    styles = model_styles(list(ranks))
    for measured, style in zip(ranks.values(), styles, strict=True):
        layers = [layer + 1 for layer in measured.layers]
        for axes, values in ((rank, measured.rank), (effective, measured.effective_rank)):
            flat = values.flatten(1).double()  # (layers, images · heads)
            low, high = flat.amin(1).tolist(), flat.amax(1).tolist()
            axes.fill_between(layers, low, high, color=style["color"], alpha=0.12, linewidth=0)
            axes.plot(layers, flat.mean(1).tolist(), **style)
        values = measured.spectrum.double().flatten(0, 1).mean(0).clamp(min=_SMALLEST)
        spectrum.plot(range(1, len(values) + 1), values.tolist(), **style | {"marker": ""})
    largest = max(measured.maximum for measured in ranks.values())
    for axes, title in ((rank, "Numerical rank"), (effective, "Effective rank")):
        tidy(axes, title, "layer")
        axes.axhline(largest, **DOTTED)
        axes.set_ylim(0, 1.06 * largest)
        layer_axis(axes, max(layer + 1 for measured in ranks.values() for layer in measured.layers))
    tidy(spectrum, "Singular values, share of the largest", "in descending order")
    spectrum.set_yscale("log")
    spectrum.minorticks_off()
    spectrum.set_xlim(0.5, max(m.spectrum.shape[-1] for m in ranks.values()) + 0.5)
    legend_below(figure, [*ranks, "largest possible"], [*styles, DOTTED])
    return figure
