"""Attention maps of several models side by side."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from cbsa.analysis import AttentionMaps
from cbsa.report.pixels import enlarge, overlay, show_picture, to_pixels
from cbsa.report.style import INK, QUIET, bare, new_figure, shorten

_GAP = 0.12  # width between models, in that of a column


def compare_attention(
    images: Tensor,
    attention: Mapping[str, AttentionMaps],
    *,
    head: int | None = None,
    titles: Sequence[str] = (),
) -> Figure:
    """Draw the maps of some layers of several models: a row per image, a group of columns per model.

    This is the paper's figure attn_map. Each map is upsampled smoothly and its colours run from 0 to its own
    largest value, so that a flat map looks flat.

    Args:
        images: the images (B, 1 or 3, height, width) the maps belong to, uint8 or in [0, 1].
        attention: by name of the model, what :func:`cbsa.analysis.attention_maps` returns for them.
        head: which head, from 0; by default the mean over heads.
        titles: a label for each image.
    """
    if not attention:
        raise ValueError("attention is empty: give the maps of at least one model")
    pixels = enlarge(to_pixels(images))
    rows, groups = len(pixels), [1, *(len(maps.layers) for maps in attention.values())]
    ratios = [ratio for group in groups for ratio in (*[1.0] * group, _GAP)][:-1]
    shape = min(pixels.shape[1] / pixels.shape[2], 3)
    figure = new_figure(1.55 * sum(ratios), 1.55 * rows * shape + 0.6)
    grid = figure.add_gridspec(rows, len(ratios), width_ratios=ratios)
    columns: list[tuple[str, str, Tensor]] = [("", "image", pixels)]
    for name, maps in attention.items():
        if maps.maps.shape[1] != rows:
            raise ValueError(f"{name} has maps of {maps.maps.shape[1]} images, but there are {rows} images")
        for layer, values in zip(maps.layers, maps.maps, strict=True):
            drawn = overlay(pixels, values.mean(1) if head is None else values[:, head])
            first = name if layer == maps.layers[0] else ""
            columns.append((first, f"layer {layer + 1}", drawn))
    places = [place for place, ratio in enumerate(ratios) if ratio != _GAP]
    for place, (heading, title, pictures) in zip(places, columns, strict=True):
        for row in range(rows):
            axes = figure.add_subplot(grid[row, place])
            show_picture(axes, pictures[row])
            bare(axes)
            if place == 0 and row < len(titles):
                axes.set_ylabel(shorten(titles[row], 20), fontsize=9, color=INK, parse_math=False)
            if row == 0:
                axes.set_title(f"\n{title}", fontsize=9, color=QUIET)  # the name of the model stands above
                if heading:
                    _head(axes, heading, len(attention[heading].layers))
    return figure


def _head(axes: Axes, name: str, columns: int) -> None:
    """Name a model above the first of its columns, which is not to grow by it."""
    text = axes.annotate(
        shorten(name, 16 * columns),
        (0, 1),
        xytext=(0, 19),
        xycoords="axes fraction",
        textcoords="offset points",
        fontsize=10.5,
        fontweight="bold",
        color=INK,
        annotation_clip=False,
        parse_math=False,
    )
    text.set_in_layout(False)
