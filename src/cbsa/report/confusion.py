"""Which classes are taken for which."""

from collections.abc import Sequence

import torch
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from torch import Tensor

from cbsa.report.style import FAINT, INK, PALETTE, QUIET, WRONG, bare, new_figure, shorten, tidy

_MOST_COUNTS, _MOST_NAMES, _MOST_CELLS = 20, 40, 100  # classes up to which cells hold counts, axes names, …
_BLUES = ["#ffffff", "#bfd3fb", PALETTE[0], "#1e3a8a"]
_SHADES = LinearSegmentedColormap.from_list("shades", _BLUES).with_extremes(bad=FAINT)


def per_class_accuracy(matrix: Tensor) -> Tensor:
    """Share of each class's samples that are recognised, (C,) in float64; NaN for a class without samples.

    Args:
        matrix: counts (C, C), rows the truth and columns the predictions.
    """
    counts = _check(matrix).double()
    return counts.diagonal() / counts.sum(1)  # 0/0 is NaN


def plot_confusion(matrix: Tensor, classes: Sequence[str]) -> Figure:
    """Draw a confusion matrix, each row scaled to sum 1.

    Up to 20 classes the cells hold their counts, up to 40 the axes name the classes; beyond 100 classes a
    matrix cannot be read, and the accuracies of the classes are drawn in ascending order instead.

    Args:
        matrix: counts (C, C), rows the truth and columns the predictions.
        classes: C names.
    """
    counts = _check(matrix).cpu()
    if len(classes) != len(counts):
        raise ValueError(f"classes must have {len(counts)} names, one per row of matrix, got {len(classes)}")
    return _ranking(counts, classes) if len(counts) > _MOST_CELLS else _cells(counts, classes)


def _check(matrix: Tensor) -> Tensor:
    if matrix.dim() != 2 or matrix.shape[0] != matrix.shape[1] or not len(matrix):
        raise ValueError(f"matrix must have shape (C, C) with C >= 1, got {tuple(matrix.shape)}")
    return matrix


def _cells(counts: Tensor, classes: Sequence[str]) -> Figure:
    number = len(counts)
    side = min(max(3.2, 1.2 + 0.36 * number), 8.0)
    figure = new_figure(side + (0.0 if number <= _MOST_COUNTS else 0.8), side)
    axes = figure.add_subplot()
    shares = counts.double() / counts.sum(1, keepdim=True)
    image = axes.imshow(shares.tolist(), cmap=_SHADES, vmin=0, vmax=1, interpolation="nearest")
    tidy(axes, f"Confusion matrix: {int(counts.diagonal().sum())} of {int(counts.sum())} right")
    axes.set_xlabel("predicted", color=QUIET)
    axes.set_ylabel("true", color=QUIET)
    axes.grid(visible=False)
    bare(axes, "#d1d5db", 0.8)
    if number <= _MOST_NAMES:
        names = [shorten(name, 18) for name in classes]
        turned = any(len(name) > 3 for name in names)
        axes.set_xticks(range(number), names, rotation=45 if turned else 0, parse_math=False)
        axes.set_yticks(range(number), names, parse_math=False)
        if turned:
            for label in axes.get_xticklabels():
                label.set(ha="right", rotation_mode="anchor")
    if number <= _MOST_COUNTS:
        edges = [i - 0.5 for i in range(1, number)]
        axes.hlines(edges, -0.5, number - 0.5, color=FAINT, linewidth=0.8)
        axes.vlines(edges, -0.5, number - 0.5, color=FAINT, linewidth=0.8)
        for row, column in counts.nonzero().tolist():
            colour = "white" if shares[row, column] > 0.45 else INK if row == column else WRONG
            axes.text(
                column,
                row,
                str(int(counts[row, column])),
                ha="center",
                va="center",
                fontsize=8.5,
                color=colour,
            )
    else:
        bar = figure.colorbar(image, ax=axes, fraction=0.04, pad=0.02, aspect=30)
        bar.outline.set_visible(False)  # type: ignore[operator]
        bar.ax.tick_params(colors=QUIET, labelsize=8, length=0)
        bar.set_label("share of the class", color=QUIET, fontsize=9)
    return figure


def _ranking(counts: Tensor, classes: Sequence[str]) -> Figure:
    """Accuracies of very many classes in ascending order, with the names of the worst and the best."""
    accuracy = per_class_accuracy(counts)
    present = [i for i in accuracy.argsort(stable=True).tolist() if not torch.isnan(accuracy[i])]
    values = [100 * accuracy[i].item() for i in present]
    figure = new_figure(8.5, 4.2)
    axes = figure.add_subplot()
    absent = len(counts) - len(present)
    note = f" ({absent} without samples left out)" if absent else ""
    tidy(axes, f"Accuracy of {len(present)} classes{note}", "classes, worst first", "accuracy, %")
    axes.fill_between(range(len(values)), values, step="mid", color=PALETTE[0], alpha=0.2, linewidth=0)
    axes.step(range(len(values)), values, where="mid", color=PALETTE[0])
    axes.set(ylim=(0, 101), xlim=(-0.5, max(len(values), 1) - 0.5))
    for title, some, x, align in (
        ("worst", present[:5], 0.02, "left"),
        ("best", present[::-1][:5], 0.98, "right"),
    ):
        lines = [f"{shorten(classes[i], 24)}  {100 * accuracy[i].item():.0f} %" for i in some]
        y = 0.97 if title == "worst" else 0.42
        axes.text(
            x,
            y,
            "\n".join([f"{title}:", *lines]),
            transform=axes.transAxes,
            ha=align,
            va="top",
            fontsize=8,
            color=INK,
            parse_math=False,
        )
    return figure
