"""Learning curves: loss, accuracy and learning rate over the epochs."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from cbsa.report.style import INK, QUIET, colours, new_figure, plain_legend, shorten, tidy

Records = Sequence[Mapping[str, Any]]


def plot_curves(runs: Mapping[str, Records]) -> Figure:
    """Draw loss (training dashed, validation solid), accuracy and learning rate, a colour per run.

    The accuracy is top-1 of classifiers, or mIoU where some run has that.

    Args:
        runs: name -> records of its epochs, dictionaries with ``epoch`` and any of ``train_loss``,
            ``val_loss``, ``val_top1`` or ``val_miou`` (0 to 100) and ``lr``. What is missing or not finite
            leaves a gap; a record without ``epoch`` counts by its place.
    """
    if not runs:
        raise ValueError("runs is empty: give the records of at least one run")
    segments = any(math.isfinite(_value(r, "val_miou")) for records in runs.values() for r in records)
    score, title = ("val_miou", "Mean IoU, %") if segments else ("val_top1", "Top-1 accuracy, %")
    names = [_label(name, records, score) for name, records in runs.items()]
    columns = min(max(1, 130 // (8 + max(map(len, names)))), len(names), 4)  # 130 letters fit the width
    figure = new_figure(10.5, 3.3 + 0.22 * -(-len(names) // columns))
    loss, accuracy, rate = figure.subplots(1, 3, width_ratios=(5, 5, 3.2))
    handles = []
    for records, colour in zip(runs.values(), colours(len(runs)), strict=True):
        _draw(loss, records, "train_loss", color=colour, linestyle=(0, (4, 2)), alpha=0.75)
        _draw(loss, records, "val_loss", color=colour)
        _draw(accuracy, records, score, color=colour)
        _draw(rate, records, "lr", color=colour)
        handles.append(Line2D([], [], color=colour, linewidth=2.5))
    panels = ((loss, "Loss"), (accuracy, title), (rate, "Learning rate"))
    for axes, heading in panels:
        tidy(axes, heading, "epoch")
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
        axes.set_xlim(axes.get_xlim()[0] - 0.3, axes.get_xlim()[1] + 0.3)  # one epoch is some room too
        if not axes.lines:
            axes.text(0.5, 0.5, "not recorded", transform=axes.transAxes, ha="center", color=QUIET)
            axes.set_yticks([])
    rate.yaxis.set_major_formatter(lambda value, _: f"{value:.3g}")
    if loss.lines:
        kinds = [Line2D([], [], color=INK, linestyle=style) for style in ((0, (4, 2)), "-")]
        plain_legend(loss, kinds, ("training", "validation"), loc="upper right")
    plain_legend(figure, handles, names, loc="outside lower left", ncols=columns)
    return figure


def _draw(axes: Axes, records: Records, key: str, **style: Any) -> None:
    """One line with gaps where values are missing; a value with a gap on either side is a dot."""
    points = [(float(r.get("epoch", i + 1)), _value(r, key)) for i, r in enumerate(records)]
    finite = [math.isfinite(value) for _, value in points]
    if not any(finite):
        return
    neighbours = zip([False, *finite], finite, [*finite[1:], False], strict=False)
    alone = [i for i, (before, here, after) in enumerate(neighbours) if here and not before and not after]
    epochs, values = zip(*points, strict=True)
    axes.plot(epochs, values, linewidth=1.8, marker="o", markersize=5, markevery=alone, **style)


def _value(record: Mapping[str, Any], key: str) -> float:
    value = record.get(key)
    number = math.nan if value is None else float(value)
    return number if math.isfinite(number) else math.nan


def _label(name: str, records: Records, score: str) -> str:
    """The run's name, with its best score where it has one."""
    values = [v for v in (_value(r, score) for r in records) if math.isfinite(v)]
    best = f"  (best {max(values):.1f} %)" if values else ""
    return shorten(name, 40) + best
