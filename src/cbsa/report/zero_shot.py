"""Zero-shot segmentation: how well attention maps fit masks, for whole models and layer by layer."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from cbsa.analysis import ZeroShotSegmentation
from cbsa.analysis.segmentation import TARGETS
from cbsa.report.style import (
    INK,
    QUIET,
    layer_axis,
    legend_below,
    line_styles,
    model_styles,
    new_figure,
    plain_legend,
    shorten,
    tidy,
)

Scores = Mapping[str, ZeroShotSegmentation]
_LINE: dict[str, Any] = {"color": INK, "linestyle": (0, (3, 2)), "linewidth": 1.2}
_PAPER: dict[str, Any] = {"color": QUIET, "linestyle": (0, (2, 2)), "linewidth": 1.2, "markersize": 4}


def plot_zero_shot(scores: Scores, trivial: Sequence[float] = ()) -> Figure:
    """Draw the Jaccard similarity of each model's best maps with each target, as bars.

    Args:
        scores: by name of the model, what :func:`cbsa.analysis.zero_shot_segmentation` returns.
        trivial: similarity of a map that covers every pixel of interest, for each target; drawn as lines.
    """
    if not scores:
        raise ValueError("scores is empty: give those of at least one model")
    figure = new_figure(max(6.0, 1.6 + 1.1 * len(TARGETS) * max(1, 0.55 * len(scores))), 3.7)
    axes = figure.add_subplot()
    tidy(axes, "Jaccard similarity of the best map, mean over images")
    width = min(0.8 / len(scores), 0.4)
    handles: list[Any] = []
    for place, (measured, style) in enumerate(zip(scores.values(), model_styles(list(scores)), strict=True)):
        values = measured.best.tolist()
        hollow = {"facecolor": "white", "edgecolor": style["color"], "hatch": "////", "linewidth": 1.2}
        fill = hollow if "markerfacecolor" in style else {"color": style["color"]}
        centres = [t + (place + 0.5 - len(scores) / 2) * width for t in range(len(TARGETS))]
        heights = [0 if math.isnan(v) else v for v in values]
        handles.append(axes.bar(centres, heights, 0.88 * width, **fill))
        for centre, value in zip(centres, values, strict=True):
            text = "none" if math.isnan(value) else f"{value:.2f}"
            height = 0 if math.isnan(value) else value
            axes.text(
                centre,
                height + 0.012,
                text,
                ha="center",
                va="bottom",
                fontsize=8.5,
                color=INK,
                zorder=5,
                bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.8},
            )
    names = [shorten(name, 40) for name in scores]
    for target, value in enumerate(trivial):
        lines = axes.hlines(value, target - 0.45, target + 0.45, **_LINE)
    if trivial:
        handles, names = [*handles, lines], [*names, "all pixels"]
    axes.set_xticks(range(len(TARGETS)), TARGETS)
    axes.set_ylim(0, 1.03)
    plain_legend(figure, handles, names, loc="outside lower left", ncols=min(len(names), 5))
    return figure


def plot_zero_shot_layers(
    scores: Scores,
    paper: Mapping[str, Sequence[float]] | None = None,
    target: str = "foreground",
    *,
    all_pixels: float | None = None,
) -> Figure:
    """Draw the Jaccard similarity of the best head of each layer with one target.

    Args:
        scores: by name of the model, what :func:`cbsa.analysis.zero_shot_segmentation` returns.
        paper: curves of the paper to draw beside, by name of the model, from layer 1 on.
        target: one of ``TARGETS``.
        all_pixels: similarity of a map that covers every pixel, drawn as a line.
    """
    if not scores:
        raise ValueError("scores is empty: give those of at least one model")
    if target not in TARGETS:
        raise ValueError(f"target={target!r}: expected one of {', '.join(TARGETS)}")
    figure = new_figure(9.0, 3.9)
    axes = figure.add_subplot()
    tidy(axes, f"Jaccard similarity with the {target}, best head of each layer", "layer")
    names, styles = list(scores), model_styles(list(scores))
    for measured, style in zip(scores.values(), styles, strict=True):
        values = measured.per_layer[:, TARGETS.index(target)].tolist()
        axes.plot([layer + 1 for layer in measured.layers], values, **style)
    for place, (name, curve) in enumerate((paper or {}).items()):
        style = _PAPER | {"marker": line_styles(place + 1)[-1]["marker"], "markerfacecolor": "white"}
        axes.plot(range(1, len(curve) + 1), curve, **style)
        names, styles = [*names, f"paper: {name}"], [*styles, style]
    if all_pixels is not None:
        axes.axhline(all_pixels, **_LINE)
        names, styles = [*names, "all pixels"], [*styles, _LINE]
    axes.set_ylim(0, 1.03)
    deepest = max(layer + 1 for measured in scores.values() for layer in measured.layers)
    layer_axis(axes, max([deepest, *(len(values) for values in (paper or {}).values())]))
    legend_below(figure, names, styles)
    return figure
