"""Example images: what the model says about them, and where it looks."""

from collections.abc import Sequence

import torch
from matplotlib.figure import Figure
from torch import Tensor

from cbsa._checks import check_int
from cbsa.analysis import AttentionMaps
from cbsa.report.pixels import enlarge, overlay, show_picture, to_pixels
from cbsa.report.style import INK, QUIET, RIGHT, WRONG, bare, new_figure, shorten

_WIDTH = 10.5  # inches of a grid of examples
_SHORT, _LONGEST = 8, 18  # letters of class names that fit beside the confidence, and at all


def plot_examples(
    images: Tensor,
    truth: Tensor,
    predicted: Tensor,
    confidence: Tensor,
    classes: Sequence[str],
    *,
    count: int = 24,
    columns: int = 8,
) -> Figure:
    """Draw images with predicted and true label: errors first, the most confident one leading, framed in red.

    Args:
        images: (B, 1 or 3, height, width), uint8 or floating-point in [0, 1].
        truth: true classes (B,).
        predicted: predicted classes (B,).
        confidence: probability given to the prediction (B,), 0 to 1.
        classes: names of the classes.
        count: how many images to draw at most; right ones keep their order.
        columns: images in a row.
    """
    pixels = to_pixels(images)
    if not len(pixels) == len(truth) == len(predicted) == len(confidence):
        raise ValueError(
            f"images, truth, predicted and confidence must have the same length, got {len(pixels)}, "
            f"{len(truth)}, {len(predicted)}, {len(confidence)}"
        )
    wrong = (truth != predicted).cpu()
    rank = torch.where(wrong, 1 + confidence.double().cpu(), 0)
    order = rank.argsort(descending=True, stable=True)[: check_int("count", count)].tolist()
    names = [shorten(name, _LONGEST) for name in classes]
    letters = max(len(names[int(label[i])]) for label in (truth, predicted) for i in order)
    cell = max(1.25, 0.1 * letters)  # inches
    columns = min(check_int("columns", columns), len(order), int(_WIDTH / cell))
    rows = -(-len(order) // columns)
    height = cell * min(pixels.shape[1] / pixels.shape[2], 3) + (0.45 if letters > _SHORT else 0.3)
    figure = new_figure(cell * columns, height * rows)
    for place, axes in enumerate(figure.subplots(rows, columns, squeeze=False).flat):
        bare(axes)
        if place >= len(order):
            continue
        i = order[place]
        show_picture(axes, pixels[i])
        colour = WRONG if wrong[i] else RIGHT
        space = "\n" if letters > _SHORT else "  "
        text = f"{names[int(predicted[i])]}{space}{100 * confidence[i].item():.0f} %"
        axes.set_title(text, fontsize=8.5, color=colour, fontweight="bold", parse_math=False, pad=4)
        if wrong[i]:
            axes.set_xlabel(f"true: {names[int(truth[i])]}", fontsize=8, color=INK, parse_math=False)
        bare(axes, colour if wrong[i] else "#d1d5db", 2.2 if wrong[i] else 0.8)
    return figure


def plot_attention(
    images: Tensor, attention: AttentionMaps, *, titles: Sequence[str] = (), query: str = "CLS"
) -> Figure:
    """Draw the maps of all layers in ``attention``, mean over heads: a row per image, a column per layer.

    Each map is upsampled smoothly and its colours run from 0 to its own largest value, so that a flat map
    looks flat.

    Args:
        images: the images (B, 1 or 3, height, width) the maps belong to, uint8 or in [0, 1].
        attention: what :func:`cbsa.analysis.attention_maps` returns for them.
        titles: a label for each image.
        query: what to call the query token.
    """
    columns = [
        (f"layer {layer + 1}", maps.mean(1))
        for layer, maps in zip(attention.layers, attention.maps, strict=True)
    ]
    return _overlays(images, columns, titles, f"{query} map, mean over heads")


def plot_heads(
    images: Tensor,
    attention: AttentionMaps,
    *,
    layer: int = -1,
    titles: Sequence[str] = (),
    query: str = "CLS",
) -> Figure:
    """Draw the map of every head of one layer, the last of ``attention`` by default; see plot_attention."""
    maps = attention.maps[layer]  # (B, H, h, w)
    columns = [(f"head {head + 1}", maps[:, head]) for head in range(maps.shape[1])]
    return _overlays(images, columns, titles, f"{query} map of layer {attention.layers[layer] + 1}")


def _overlays(
    images: Tensor, columns: Sequence[tuple[str, Tensor]], titles: Sequence[str], what: str
) -> Figure:
    """A grid: images, then one column of overlays per (title, maps (B, h, w))."""
    pixels = enlarge(to_pixels(images))
    for title, maps in columns:
        if len(maps) != len(pixels):
            raise ValueError(f"{title} has maps of {len(maps)} images, but there are {len(pixels)} images")
    height, width = pixels.shape[1:3]
    rows, wide = len(pixels), len(columns) + 1
    figure = new_figure(1.55 * wide + 0.3, 1.55 * rows * min(height / width, 3) + 0.6)
    grid = figure.subplots(rows, wide, squeeze=False)
    drawn = [("image", pixels), *((title, overlay(pixels, maps)) for title, maps in columns)]
    for column, (title, pictures) in enumerate(drawn):
        grid[0, column].set_title(title, fontsize=9, color=INK if column == 0 else QUIET)
        for row in range(rows):
            show_picture(grid[row, column], pictures[row])
            bare(grid[row, column])
    for row, title in enumerate(titles):
        grid[row, 0].set_ylabel(shorten(title, 20), fontsize=9, color=INK, parse_math=False)
    figure.suptitle(what, x=0.01, ha="left", fontsize=10.5, fontweight="bold", color=INK)
    return figure
