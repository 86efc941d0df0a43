"""Robustness: a score against the standard deviation of noise on the parameters."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cbsa.analysis import NoiseSweep
from cbsa.report.style import DOTTED, legend_below, model_styles, new_figure, tidy


def plot_noise(
    sweeps: Mapping[str, NoiseSweep], score: str = "Top-1 accuracy, %", chance: float | None = None
) -> Figure:
    """Draw scores against σ, means over the seeds with a band from the lowest to the highest.

    The second panel has them as a share of the score without noise, where every sweep has one above 0.

    Args:
        sweeps: by name of the model, what :func:`cbsa.analysis.sweep` returns.
        score: what was measured.
        chance: the score of a guess, drawn as a dotted line.
    """
    if not sweeps:
        raise ValueError("sweeps is empty: give those of at least one model")
    clean = [s.mean[s.sigmas.index(0.0)].item() if 0.0 in s.sigmas else 0.0 for s in sweeps.values()]
    relative = min(clean) > 0
    figure = new_figure(9.0 if relative else 5.5, 3.7)
    panels = figure.subplots(1, 2 if relative else 1, squeeze=False)[0]
    styles = model_styles(list(sweeps))
    for sweep, without, style in zip(sweeps.values(), clean, styles, strict=True):
        order = sorted(range(len(sweep.sigmas)), key=sweep.sigmas.__getitem__)
        sigmas, scores = [sweep.sigmas[i] for i in order], sweep.scores[order]
        scales = [1.0, 100 / without] if relative else [1.0]
        for axes, scale in zip(panels, scales, strict=True):
            values = scale * scores
            low, high = values.amin(1).tolist(), values.amax(1).tolist()
            axes.fill_between(sigmas, low, high, color=style["color"], alpha=0.12, linewidth=0)
            axes.plot(sigmas, values.mean(1).tolist(), **style)
    tidy(panels[0], score, "σ of the noise")
    if relative:
        tidy(panels[1], "Share of the score without noise, %", "σ of the noise")
    for axes in panels:
        axes.set_ylim(bottom=0)
        _space(axes, sweeps)
    names = list(sweeps)
    if chance is not None:
        panels[0].axhline(chance, **DOTTED)
        names, styles = [*names, "chance"], [*styles, DOTTED]
    legend_below(figure, names, styles)
    return figure


def _space(axes: Axes, sweeps: Mapping[str, NoiseSweep]) -> None:
    """Put σ on a logarithmic axis that begins at 0, with a tick for each value."""
    sigmas = sorted({sigma for sweep in sweeps.values() for sigma in sweep.sigmas})
    positive = [sigma for sigma in sigmas if sigma > 0]
    if len(positive) > 1:
        axes.set_xscale("symlog", linthresh=positive[0], linscale=0.4)
        axes.set_xlim(sigmas[0] - 0.3 * positive[0], 1.2 * sigmas[-1])
    axes.set_xticks(sigmas, [f"{sigma:g}" for sigma in sigmas])
    axes.minorticks_off()
