"""The operator in four panels: tokens, what representatives gather of them, contraction, broadcast."""

import torch
from matplotlib.figure import Figure
from torch import Tensor

from cbsa._checks import check_int
from cbsa.analysis import ExtractionFactors, Representatives
from cbsa.analysis.projection import principal
from cbsa.objective import coding_rate
from cbsa.report.pixels import enlarge, overlay, show_picture, to_pixels
from cbsa.report.representatives import draw_moves, draw_regions, region_colours
from cbsa.report.style import INK, QUIET, bare, new_figure

_STEPS = ("1  Tokens", "2  Gather", "3  Contract", "4  Broadcast")


def plot_overview(
    image: Tensor,
    factors: ExtractionFactors,
    found: Representatives,
    *,
    head: int = 0,
    patch: tuple[int, int] | None = None,
) -> Figure:
    """Draw what one head of one layer does with an image: the steps of eq. CBSA, from left to right.

    A representative has the same colour in the second panel, on the patches that it gathers most, and in the
    third, on the plane of the two principal directions of all of them, before (hollow) and after (full) the
    contraction. The last panel is the row of A_k A_kᵀ of one patch (with other broadcasts the layer's own):
    the patches whose content reaches it by way of the representatives.

    Args:
        image: the image (1 or 3, height, width), uint8 or in [0, 1].
        factors: what :func:`cbsa.analysis.extraction_factors` returns for it and one layer.
        found: what :func:`cbsa.analysis.representatives` returns for it and that layer.
        head: which head, from 0.
        patch: row and column, from 0, of the patch that receives; by default the middle one.
    """
    layers, count, heads, m, _ = factors.factors.shape
    if (layers, count) != (1, 1) or factors.layers != found.layers or len(found.extracted[0]) != 1:
        raise ValueError(
            "factors and found must be of one image and the same single layer, got "
            f"{count} images of layers {factors.layers}, and {len(found.extracted[0])} of {found.layers}"
        )
    if check_int("head", head, at_least=0) >= heads:
        raise ValueError(f"head must be below the number of heads, {heads}, got {head}")
    rows, columns = factors.grid
    row, column = (rows // 2, columns // 2) if patch is None else patch
    if not (0 <= row < rows and 0 <= column < columns):
        raise ValueError(f"patch must lie on the grid of {rows}×{columns} patches, got {(row, column)}")

    picture = enlarge(to_pixels(image[None]))[0]
    shape = min(picture.shape[0] / picture.shape[1], 3)
    figure = new_figure(11.2, 2.6 * shape + 1.05)
    panels = figure.subplots(1, len(_STEPS), squeeze=False)[0]
    weights = factors.factors[0, 0, head, :, -rows * columns :].double().cpu()  # (m, h·w)
    before, after = (part[0][0, head].double().cpu() for part in (found.extracted, found.contracted))
    rates = [coding_rate(part).item() for part in (before, after)]
    plane, _ = principal(torch.cat([before, after]), 2)

    show_picture(panels[0], picture)
    draw_regions(panels[1], picture, weights, factors.grid)
    before_plane, after_plane = plane.chunk(2)
    draw_moves(panels[2], before_plane, after_plane, region_colours(weights, factors.grid))
    panels[2].set_box_aspect(shape)
    reached = factors.row(factors.factors.shape[-1] - rows * columns + row * columns + column)[0, 0, head]
    heat = reached[-rows * columns :].view(1, rows, columns)
    show_picture(panels[3], overlay(picture[None], heat)[0])
    place = ((column + 0.5) / columns * picture.shape[1], (row + 0.5) / rows * picture.shape[0])
    panels[3].plot(*place, marker="s", markersize=7, markerfacecolor="none", color="white", mew=2.6)
    panels[3].plot(*place, marker="s", markersize=7, markerfacecolor="none", color=INK, mew=1.0)

    captions = (
        f"{rows * columns:,} patches",
        f"{m} representatives; colours: which\none attends to a patch most",
        f"they move together: coding rate\n{rates[0]:.1f} → {rates[1]:.1f} nats (hollow → full)",
        "the contractions go back to all patches;\nwhat reaches the marked one",
    )
    for panel, title, caption in zip(panels, _STEPS, captions, strict=True):
        bare(panel, None if panel is not panels[2] else "#d1d5db", 0.8)
        panel.set_title(title, loc="left", fontsize=11.5, fontweight="bold", color=INK)
        panel.set_xlabel(caption, fontsize=9, color=QUIET)
    return figure
