"""Grids of examples and attention maps: the right pictures in the right places."""

import pytest
import torch
from matplotlib.colors import to_hex

from cbsa.analysis import AttentionMaps
from cbsa.report import plot_attention, plot_examples, plot_heads
from cbsa.report.pixels import overlay, to_pixels
from cbsa.report.style import WRONG

CLASSES = ["zero", "$one$", "_two"]


def shades(count, *size):
    """Images, each of one grey: its index over 10."""
    return (torch.arange(count) / 10)[:, None, None, None].expand(count, 1, *size)


def drawn(axes):
    """Index of the image that an axes shows."""
    return round(10 * float(axes.images[0].get_array().mean()))


def examples(**kwargs):
    truth, predicted = torch.tensor([0, 1, 2, 0, 1]), torch.tensor([0, 2, 2, 1, 1])
    confidence = torch.tensor([0.9, 0.4, 0.5, 0.8, 0.99])
    figure = plot_examples(shades(5, 6, 9), truth, predicted, confidence, CLASSES, **kwargs)
    figure.draw_without_rendering()
    return figure


def test_errors_come_first_most_confident_leading():
    axes = [a for a in examples(columns=3).axes if a.images]
    assert [drawn(a) for a in axes] == [3, 1, 0, 2, 4]
    assert axes[0].get_title() == "$one$  80 %"
    assert axes[0].get_xlabel() == "true: zero"
    assert axes[2].get_title() == "zero  90 %"
    assert axes[2].get_xlabel() == ""
    frames = [to_hex(a.spines["left"].get_edgecolor()) for a in axes]
    assert [frame == WRONG for frame in frames] == [True, True, False, False, False]


def test_no_more_than_asked_for():
    assert len([a for a in examples(count=3).axes if a.images]) == 3
    assert len(examples(count=1, columns=8).axes) == 1


def test_lengths_must_agree():
    with pytest.raises(ValueError, match="must have the same length, got 2, 3, 2, 2"):
        plot_examples(shades(2, 4, 4), torch.zeros(3), torch.zeros(2), torch.zeros(2), CLASSES)


@pytest.mark.parametrize("channels", [1, 3])
def test_pixels_of_both_kinds(channels):
    images = torch.randint(0, 256, (2, channels, 5, 7), dtype=torch.uint8)
    expected = (images.expand(2, 3, 5, 7) / 255).permute(0, 2, 3, 1)
    assert torch.equal(to_pixels(images), expected)
    assert torch.equal(to_pixels(images / 255), expected)


def test_normalised_images_are_refused():
    with pytest.raises(ValueError, match=r"lie in \[0, 1\], got values from -1 to 0: undo their normal"):
        to_pixels(torch.tensor([-1.0, 0.0]).view(1, 1, 1, 2))
    with pytest.raises(ValueError, match=r"shape \(B, 1 or 3, height, width\), got \(2, 4, 5, 5\)"):
        to_pixels(torch.zeros(2, 4, 5, 5))


def attention(layers=(0, 3), batch=2, heads=3, grid=(4, 6)):
    return AttentionMaps(torch.rand(len(layers), batch, heads, *grid), layers, grid, 0)


def test_a_row_per_image_and_a_column_per_layer():
    figure = plot_attention(shades(2, 24, 36), attention(), titles=["$a", "_b"])
    figure.draw_without_rendering()
    assert len(figure.axes) == 2 * 3
    assert [a.get_title() for a in figure.axes[:3]] == ["image", "layer 1", "layer 4"]
    assert [figure.axes[i].get_ylabel() for i in (0, 3)] == ["$a", "_b"]
    assert [drawn(figure.axes[i]) for i in (0, 3)] == [0, 1]


def test_maps_are_means_over_heads():
    maps = attention()
    shown = plot_attention(shades(2, 24, 36), maps).axes[4].images[0].get_array()  # image 1, layer 1
    pixels = to_pixels(shades(2, 24, 36)).repeat_interleave(5, 1).repeat_interleave(5, 2)
    mean = (maps.maps[0, :, 0] + maps.maps[0, :, 1] + maps.maps[0, :, 2]) / 3
    assert torch.allclose(torch.as_tensor(shown), overlay(pixels, mean)[1], atol=1e-6)


def test_heads_of_the_last_layer():
    figure = plot_heads(shades(2, 24, 36), attention())
    assert [a.get_title() for a in figure.axes[:4]] == ["image", "head 1", "head 2", "head 3"]
    assert "layer 4" in figure.get_suptitle()
    assert "layer 1" in plot_heads(shades(2, 24, 36), attention(), layer=0).get_suptitle()


def test_heat_is_where_the_map_is_high():
    heat = torch.zeros(1, 4, 4)
    heat[0, 1, 2] = 1.0
    bright = overlay(torch.zeros(1, 64, 64, 3), heat)[0].sum(-1)
    row, column = divmod(int(bright.argmax()), 64)
    assert 16 <= row < 32
    assert 32 <= column < 48
    assert overlay(torch.zeros(1, 8, 8, 3), torch.zeros(1, 4, 4)).isfinite().all()  # an empty map


def test_maps_must_belong_to_the_images():
    with pytest.raises(ValueError, match="layer 1 has maps of 2 images, but there are 3 images"):
        plot_attention(shades(3, 24, 36), attention())
