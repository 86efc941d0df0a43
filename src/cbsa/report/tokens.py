"""Tokens through the layers: in a plane, and as colours of their patches."""

from matplotlib.figure import Figure
from torch import Tensor

from cbsa._checks import check_int
from cbsa.analysis.projection import token_planes
from cbsa.report.places import place_colours
from cbsa.report.style import FAINT, INK, QUIET, bare, new_figure


def plot_tokens(states: Tensor, grid: tuple[int, int], *, image: int = 0) -> Figure:
    """Draw the tokens of one image before the first layer and after each one.

    Above: along the two principal directions of each state's patches, all tokens scaled to one length and
    each state turned towards the one before it; squares are the prefix tokens, such as CLS. Below: the same
    positions, and the third direction, as colours of the patches, so that patches of like colour are alike
    to that layer. The number is how far patches lie from their mean, in their length.

    Args:
        states: what :func:`cbsa.analysis.token_states` returns, (1 + depth, B, N, dim).
        grid: rows and columns of patches.
        image: which image, from 0.
    """
    rows, columns = grid
    if states.dim() != 4 or states.shape[2] < rows * columns:
        raise ValueError(
            f"states must have shape (1 + depth, B, N, dim) with the {rows}×{columns} patches of grid= among "
            f"the N tokens, got {tuple(states.shape)}"
        )
    if check_int("image", image, at_least=0) >= states.shape[1]:
        raise ValueError(f"image must be below the number of images, {states.shape[1]}, got {image}")
    prefix = states.shape[2] - rows * columns
    points, variance, spread = token_planes(states[:, image].cpu(), prefix)
    figure = new_figure(1.7 * len(points) + 0.3, 1.7 * (1 + min(rows / columns, 3)) + 0.9)
    above, below = figure.subplots(2, len(points), squeeze=False, height_ratios=(1, min(rows / columns, 3)))
    reach = points[:, prefix:, :2].abs().max().item() or 1.0
    for number, (places, plane, sheet) in enumerate(zip(points, above, below, strict=True)):
        colours = place_colours(places[prefix:]).numpy()
        plane.axhline(0, color=FAINT, linewidth=0.8, zorder=0)
        plane.axvline(0, color=FAINT, linewidth=0.8, zorder=0)
        plane.scatter(*places[prefix:, :2].T.numpy(), s=14 if len(colours) <= 500 else 5, color=colours)
        ends = places[:prefix, :2].clamp(-1.1 * reach, 1.1 * reach)  # CLS may lie far off
        plane.scatter(*ends.T.numpy(), s=26, marker="s", facecolors="none", edgecolors=INK)
        plane.set(xlim=(-1.2 * reach, 1.2 * reach), ylim=(-1.2 * reach, 1.2 * reach), box_aspect=1)
        plane.set_title(f"after layer {number}" if number else "before layer 1", fontsize=9, color=QUIET)
        share = 100 * sum(variance[number][:2])
        plane.set_xlabel(f"{spread[number]:.2f} · {share:.0f} %", fontsize=8, color=QUIET)
        sheet.imshow(colours.reshape(rows, columns, 3), interpolation="nearest")
        for axes in (plane, sheet):
            bare(axes, FAINT)
    what = "Tokens through the layers: spread · share of the variance in the plane"
    figure.suptitle(what, x=0.01, ha="left", fontsize=10.5, fontweight="bold", color=INK)
    return figure
