"""Pictures of representatives and tokens: their places, colours and numbers, had in another way."""

import pytest
import torch

from cbsa.analysis import ExtractionFactors, Representatives
from cbsa.report import plot_contraction, plot_regions, plot_tokens
from cbsa.report.places import place_colours


def factors(weights, grid):
    """Of one layer and head: weights (m, h·w), with a CLS token that gets nothing, of two equal images."""
    a = torch.cat([torch.zeros(len(weights), 1), weights], 1).expand(1, 2, 1, -1, -1)
    return ExtractionFactors(a, a, (3,), grid)


def test_regions_are_those_of_the_largest_weight():
    region = torch.tensor([[0, 0, 2], [1, 0, 2]])
    weights = torch.full((4, 6), 0.1)
    weights[region.flatten(), torch.arange(6)] = 0.9
    figure = plot_regions(torch.full((2, 1, 20, 30), 0.5), factors(weights, (2, 3)), titles=["$a_", "b"])
    figure.draw_without_rendering()
    _, panel, *_ = figure.axes
    assert panel.get_title() == "layer 4"
    assert panel.get_xlabel() == "3 of 4"  # the last gathers no patch most
    assert figure.axes[0].get_ylabel() == "$a_"
    shown = torch.as_tensor(panel.images[0].get_array())  # the image is even: one colour each region
    height, width = shown.shape[:2]
    colours = shown[height // 4 :: height // 2, width // 6 :: width // 3].reshape(6, 3)
    same = (colours[:, None] - colours).abs().amax(-1) < 1e-6
    assert torch.equal(same, region.flatten()[:, None] == region.flatten())
    lines = {
        tuple(map(tuple, path.vertices.astype(int).tolist())) for path in panel.collections[0].get_paths()
    }
    assert lines == {((2, 0), (2, 1)), ((1, 1), (1, 2)), ((2, 1), (2, 2)), ((0, 1), (1, 1))}


def test_a_plane_shows_true_distances_where_there_are_two_dimensions():
    before, after = torch.randn(2, 3, 5, 2), 0.3 * torch.randn(2, 3, 5, 2)
    figure = plot_contraction(Representatives((before,), (after,), (1,)), image=1)
    figure.draw_without_rendering()
    assert len(figure.axes) == 3
    assert figure.axes[0].get_ylabel() == "layer 2"
    for head, panel in enumerate(figure.axes):
        places = torch.cat([torch.tensor(c.get_offsets().tolist()) for c in panel.collections[1:]])
        truth = torch.cat([before[1, head], after[1, head]])
        torch.testing.assert_close(
            torch.cdist(places, places), torch.cdist(truth, truth), atol=1e-5, rtol=1e-4
        )
        lines = torch.tensor([path.vertices.tolist() for path in panel.collections[0].get_paths()])
        torch.testing.assert_close(lines, torch.stack(places.chunk(2), 1))
        rates = [
            0.5 * torch.logdet(torch.eye(5) + 2 / (5 * 0.01) * w @ w.T)
            for w in (before[1, head], after[1, head])
        ]
        assert panel.get_title(loc="left") == f"{rates[0]:.1f} → {rates[1]:.1f} nats"
        assert panel.get_xlabel() == "100 % of the variance"


def test_tokens_lie_along_the_principal_directions_of_the_patches():
    states = torch.randn(3, 2, 1 + 12, 8)
    figure = plot_tokens(states, (3, 4), image=1)
    figure.draw_without_rendering()
    above, below = figure.axes[:3], figure.axes[3:]
    assert [axes.get_title() for axes in above] == ["before layer 1", "after layer 1", "after layer 2"]
    for number, (plane, sheet) in enumerate(zip(above, below, strict=True)):
        tokens = states[number, 1].double()
        tokens = (tokens - tokens.mean(-1, keepdim=True)) / tokens.std(-1, correction=0, keepdim=True)
        patches = tokens[1:] - tokens[1:].mean(0)
        _, values, directions = torch.linalg.svd(patches, full_matrices=False)
        points = torch.tensor(plane.collections[0].get_offsets().tolist()).double()
        if number == 0:  # the others are turned within their three directions
            truth = patches @ directions[:2].T
            torch.testing.assert_close(points.abs(), truth.abs(), atol=1e-3, rtol=1e-3)
        share = 100 * values[:2].square().sum() / values.square().sum()
        spread = patches.square().mean().sqrt()
        assert plane.get_xlabel() == f"{spread:.2f} · {share:.0f} %"
        colours = torch.tensor(plane.collections[0].get_facecolors()[:, :3].tolist())
        shown = torch.as_tensor(sheet.images[0].get_array()).float()
        torch.testing.assert_close(shown.reshape(12, 3), colours)


def test_colours_of_places():
    points = torch.tensor([[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [5.0, 0.0], [0.99, 0.02]])
    colours = place_colours(points, 0.5)
    grey = 1.055 * 0.64 ** (3 / 2.4) - 0.055  # OKLab's lightness 0.64 without a hue
    torch.testing.assert_close(colours[0], torch.full((3,), grey).double(), atol=1e-6, rtol=0)
    torch.testing.assert_close(colours[1], colours[3])  # beyond the reach: as at its end
    assert (colours[1] - colours[4]).abs().max() < 0.05 < (colours[1] - colours[2]).abs().max()
    assert place_colours(torch.zeros(3, 3)).isfinite().all()


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (
            lambda: plot_regions(torch.rand(1, 3, 8, 8), factors(torch.rand(2, 4), (2, 2))),
            "of 2 images, but .* 1",
        ),
        (
            lambda: plot_regions(torch.rand(2, 3, 8, 8), factors(torch.rand(2, 4), (2, 2)), head=1),
            "head must be below the number of heads, 1, got 1",
        ),
        (
            lambda: plot_contraction(
                Representatives((torch.rand(2, 1, 3, 2),) * 1, (torch.rand(2, 1, 3, 2),), (0,)), image=2
            ),
            "image must be below the number of images, 2, got 2",
        ),
        (lambda: plot_tokens(torch.rand(2, 1, 5, 4), (3, 3)), r"the 3×3 patches of grid= among"),
        (lambda: plot_tokens(torch.rand(2, 1, 5, 4), (2, 2), image=1), "number of images, 1, got 1"),
    ],
)
def test_bad_arguments_are_named(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()
