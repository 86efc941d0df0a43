"""The operator in four panels: its numbers and pixels, had in another way."""

import pytest
import torch

from cbsa.analysis import ExtractionFactors, Representatives
from cbsa.report import plot_overview


@pytest.fixture
def layer():
    """One image of 4×6 patches and a CLS token, in a layer of two heads with five representatives."""
    torch.manual_seed(0)
    a = torch.randn(1, 1, 2, 5, 1 + 24).mul(3).softmax(-1)
    before, after = torch.randn(1, 2, 5, 3), 0.3 * torch.randn(1, 2, 5, 3)
    return ExtractionFactors(a, a, (2,), (4, 6)), Representatives((before,), (after,), (2,))


def coding_rate(points):
    m, d = points.shape
    return 0.5 * torch.logdet(torch.eye(m) + d / (m * 0.01) * points @ points.T)


def test_panels_show_the_steps_of_the_head_that_is_asked_for(layer):
    factors, found = layer
    figure = plot_overview(torch.full((1, 40, 60), 0.5), factors, found, head=1, patch=(3, 2))
    figure.draw_without_rendering()
    tokens, gather, contract, broadcast = figure.axes
    assert tokens.get_xlabel() == "24 patches"
    assert gather.get_xlabel().startswith("5 representatives")

    # Colours of the even image, one a region; those of the points are of the same representatives.
    region = factors.factors[0, 0, 1, :, 1:].argmax(0)
    shown = torch.as_tensor(gather.images[0].get_array())
    height, width = shown.shape[:2]
    colours = shown[height // 8 :: height // 4, width // 12 :: width // 6].reshape(24, 3)
    assert torch.equal((colours[:, None] - colours).abs().amax(-1) < 1e-6, region[:, None] == region[None])
    before, after = found.extracted[0][0, 1], found.contracted[0][0, 1]
    assert f"{coding_rate(before):.1f} → {coding_rate(after):.1f} nats" in contract.get_xlabel()
    places = torch.cat([torch.tensor(c.get_offsets().tolist()) for c in contract.collections[1:]])
    centred = torch.cat([before, after]).double()
    _, _, directions = torch.linalg.svd(centred - centred.mean(0))
    flat = (centred - centred.mean(0)) @ directions[:2].T
    torch.testing.assert_close(torch.cdist(places, places), torch.cdist(flat, flat).float())

    # The brightest pixel lies in the patch with the largest weight of A Aᵀ in the row of the marked one.
    dense = factors.factors[0, 0, 1].T @ factors.factors[0, 0, 1]
    row = dense[1 + 3 * 6 + 2, 1:]
    heat = torch.as_tensor(broadcast.images[0].get_array()).float()[..., 0]
    y, x = divmod(heat.argmax().item(), heat.shape[1])
    assert (y * 4 // heat.shape[0]) * 6 + x * 6 // heat.shape[1] == row.argmax()
    mark = broadcast.lines[0].get_xydata()[0] * [6 / heat.shape[1], 4 / heat.shape[0]]
    assert mark.tolist() == pytest.approx([2.5, 3.5])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"head": 2}, "head must be below the number of heads, 2, got 2"),
        ({"head": -1}, "head must be at least 0"),
        ({"patch": (4, 0)}, "on the grid of 4×6 patches, got \\(4, 0\\)"),
    ],
)
def test_what_is_not_there_is_named(layer, options, message):
    with pytest.raises(ValueError, match=message):
        plot_overview(torch.rand(3, 40, 60), *layer, **options)


def test_factors_and_representatives_must_be_of_one_layer_and_image(layer):
    factors, found = layer
    with pytest.raises(ValueError, match=r"one image and the same single layer.*\(2,\).*\(3,\)"):
        plot_overview(
            torch.rand(3, 40, 60), factors, Representatives(found.extracted, found.contracted, (3,))
        )
