"""Representatives: the regions they gather, and how their contraction moves them."""

from collections.abc import Sequence
from typing import Any

import torch
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import functional as F

from cbsa._checks import check_int
from cbsa.analysis import ExtractionFactors, Representatives
from cbsa.analysis.projection import principal
from cbsa.objective import coding_rate
from cbsa.report.pixels import enlarge, show_picture, to_pixels
from cbsa.report.places import place_colours
from cbsa.report.style import FAINT, INK, QUIET, bare, new_figure, shorten

_OPACITY = 0.72  # of a region over the image


def plot_regions(
    images: Tensor, factors: ExtractionFactors, *, head: int = 0, titles: Sequence[str] = ()
) -> Figure:
    """Draw which representative gathers each patch most: a row per image, a column per layer.

    Patches of one colour have one representative, with lines between those of different ones. Colours tell
    where lies what a representative gathers, on average, so that those of one neighbourhood look alike.

    Args:
        images: the images (B, 1 or 3, height, width), uint8 or in [0, 1].
        factors: what :func:`cbsa.analysis.extraction_factors` returns for them.
        head: which head, from 0.
        titles: a label for each image.
    """
    pixels, (rows, columns) = enlarge(to_pixels(images)), factors.grid
    layers, count, heads, m, _ = factors.factors.shape
    if count != len(pixels):
        raise ValueError(f"factors are of {count} images, but there are {len(pixels)} images")
    if check_int("head", head, at_least=0) >= heads:
        raise ValueError(f"head must be below the number of heads, {heads}, got {head}")
    height, width = pixels.shape[1:3]
    figure = new_figure(1.55 * (layers + 1) + 0.3, 1.7 * count * min(height / width, 3) + 0.6)
    axes = figure.subplots(count, layers + 1, squeeze=False)
    for i in range(count):
        show_picture(axes[i, 0], pixels[i])
        bare(axes[i, 0])
        for place in range(layers):
            weights = factors.factors[place, i, head, :, -rows * columns :].double().cpu()  # (m, h·w)
            panel = axes[i, place + 1]
            region = draw_regions(panel, pixels[i], weights, factors.grid)
            panel.set_xlabel(f"{len(set(region.flatten().tolist()))} of {m}", fontsize=8, color=QUIET)
            bare(panel)
            if i == 0:
                panel.set_title(f"layer {factors.layers[place] + 1}", fontsize=9, color=QUIET)
    axes[0, 0].set_title("image", fontsize=9, color=INK)
    for row, title in enumerate(titles):
        axes[row, 0].set_ylabel(shorten(title, 20), fontsize=9, color=INK, parse_math=False)
    what = f"Which representative gathers each patch most, head {head + 1}; below: how many do"
    figure.suptitle(what, x=0.01, ha="left", fontsize=10.5, fontweight="bold", color=INK)
    return figure


def draw_regions(panel: Any, picture: Tensor, weights: Tensor, grid: tuple[int, int]) -> Tensor:
    """Paint each patch of a picture (height, width, 3) in the colour of what gathers it most.

    Args:
        panel: matplotlib axes.
        picture: the image, in [0, 1].
        weights: attention of the representatives over the patches (m, h·w).
        grid: (h, w) patches.

    Returns:
        The representative of each patch (h, w).
    """
    (rows, columns), (height, width) = grid, picture.shape[:2]
    region = weights.argmax(0).view(rows, columns)
    colours = region_colours(weights, grid)[region]  # (h, w, 3)
    large = F.interpolate(colours.permute(2, 0, 1)[None], (height, width), mode="nearest")[0]
    grey = (picture * torch.tensor([0.299, 0.587, 0.114])).sum(-1, keepdim=True)
    painted = (1 - _OPACITY) * grey + _OPACITY * large.permute(1, 2, 0)
    panel.imshow(painted.clamp(0, 1).numpy(), extent=(0, columns, rows, 0), aspect="auto")
    panel.set_box_aspect(height / width)
    panel.add_collection(LineCollection(_borders(region), colors=INK, linewidths=0.7))
    return region


def region_colours(weights: Tensor, grid: tuple[int, int]) -> Tensor:
    """A colour (m, 3) for each representative, by where on the grid (h, w) lies what it gathers."""
    return place_colours(_centres(weights, *grid), 0.85)


def plot_contraction(found: Representatives, *, image: int = 0) -> Figure:
    """Draw where the representatives of one image lie before (hollow) and after (full) their contraction.

    A row per layer, a column per head; each panel is the plane of the two principal directions of both
    together, the same scale on both axes, with the coding rate in nats (ε = 0.1) before and after above it.

    Args:
        found: what :func:`cbsa.analysis.representatives` returns; its ``layers=`` chooses what is drawn.
        image: which image, from 0.
    """
    count, heads = found.extracted[0].shape[:2]
    if check_int("image", image, at_least=0) >= count:
        raise ValueError(f"image must be below the number of images, {count}, got {image}")
    figure = new_figure(2.2 * heads + 0.3, 2.4 * len(found.layers) + 0.5)
    grid = figure.subplots(len(found.layers), heads, squeeze=False)
    for row, layer in enumerate(found.layers):
        before, after = (part[row][image].double().cpu() for part in (found.extracted, found.contracted))
        rates = [coding_rate(part).tolist() for part in (before, after)]  # by head
        for head, panel in enumerate(grid[row]):
            plane, shares = principal(torch.cat([before[head], after[head]]), 2)
            before_plane, after_plane = plane.chunk(2)
            draw_moves(panel, before_plane, after_plane, place_colours(before_plane, 0.85))
            panel.set_title(
                f"{rates[0][head]:.1f} → {rates[1][head]:.1f} nats", loc="left", fontsize=8.5, color=INK
            )
            panel.set_xlabel(f"{100 * sum(shares):.0f} % of the variance", fontsize=8, color=QUIET)
            if row == 0:
                panel.annotate(
                    f"head {head + 1}",
                    (0.5, 1),
                    xytext=(0, 18),
                    xycoords="axes fraction",
                    textcoords="offset points",
                    ha="center",
                    fontsize=9,
                    color=QUIET,
                )
        grid[row, 0].set_ylabel(f"layer {layer + 1}", fontsize=9, color=QUIET)
    what = "Representatives: extracted (hollow), contracted (full)"
    figure.suptitle(what, x=0.01, ha="left", fontsize=10.5, fontweight="bold", color=INK)
    return figure


def draw_moves(axes: Any, before: Tensor, after: Tensor, shades: Tensor) -> None:
    """Lines from points (m, 2) to others, in colours (m, 3)."""
    colours = shades.numpy()
    axes.axhline(0, color=FAINT, linewidth=0.8, zorder=0)
    axes.axvline(0, color=FAINT, linewidth=0.8, zorder=0)
    lines = torch.stack([before, after], dim=1).tolist()  # (m, 2 ends, 2)
    axes.add_collection(LineCollection(lines, colors=colours, linewidths=0.9, alpha=0.75, zorder=1))
    axes.scatter(*before.T.numpy(), s=16, facecolors="white", edgecolors=colours, linewidths=1.2, zorder=2)
    axes.scatter(*after.T.numpy(), s=20, color=colours, zorder=3)
    axes.set_aspect("equal", adjustable="datalim")
    axes.margins(0.08)
    bare(axes, FAINT)


def _centres(weights: Tensor, rows: int, columns: int) -> Tensor:
    """Where lies what representatives gather, on average, by weights (m, h·w): (m, 2) around the middle."""
    places = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).to(weights)
    centres = weights @ places / weights.sum(-1, keepdim=True)
    return centres - centres.mean(0)


def _borders(region: Tensor) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Lines (x, y) to (x, y) between neighbouring patches of different regions (h, w)."""
    across = (region[:, 1:] != region[:, :-1]).nonzero().tolist()
    down = (region[1:] != region[:-1]).nonzero().tolist()
    lines = [((x + 1, y), (x + 1, y + 1)) for y, x in across]
    return lines + [((x, y + 1), (x + 1, y + 1)) for y, x in down]
