"""Windows, scales and mirror images, beside a loop over pixels and models whose result is known."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from cbsa.segmentation.windows import WindowConfig, segment, slide, window_starts


class Pointwise(nn.Module):
    """Logits of a pixel depend on this pixel alone: windows must not change them."""

    def __init__(self):
        super().__init__()
        self.batches = []
        self.mix = nn.Conv2d(2, 3, 1)

    def forward(self, images):
        self.batches.append(tuple(images.shape))
        return self.mix(images)


class Local(nn.Module):
    """Logits depend on the window: its mean is added, so that overlaps must be averaged."""

    def forward(self, images):
        mean = images.mean((1, 2, 3), keepdim=True)
        return torch.cat([images[:, :1] + mean, images[:, 1:] * mean, images[:, :1] * 0 + mean], 1)


@given(length=st.integers(1, 60), size=st.integers(1, 40), stride=st.integers(1, 40))
def test_windows_cover_everything_and_stay_inside(length, size, stride):
    stride = min(stride, size)
    starts = window_starts(length, size, stride)
    size = min(size, length)
    assert starts == sorted(set(starts))
    assert starts[0] == 0
    assert starts[-1] + size == length
    assert all(b - a <= stride for a, b in itertools.pairwise(starts))
    assert set(range(length)) == {p for start in starts for p in range(start, start + size)}


@pytest.mark.parametrize("size", [(9, 12), (9, 40), (64, 12), (100, 100)])
def test_one_window_is_the_whole_image(size):
    """To the last bit, whatever the rest of the settings."""
    images, model = torch.randn(3, 2, 9, 12), Local()
    config = WindowConfig(size, (1, 1), batch_size=3)
    assert torch.equal(slide(model, images, config), model(images))
    assert torch.equal(segment(model, images, config), model(images).softmax(1))


@pytest.mark.parametrize("batch_size", [1, 4, 100])
def test_overlaps_are_averaged(batch_size):
    """Against sums and counts pixel by pixel, in float64."""
    images, model = torch.randn(2, 2, 11, 7), Local()
    config = WindowConfig((5, 4), (3, 2), batch_size=batch_size)
    total, count = np.zeros((2, 3, 11, 7)), np.zeros((11, 7))
    for top in (0, 3, 6):
        for left in (0, 2, 3):
            window = images[:, :, top : top + 5, left : left + 4]
            total[:, :, top : top + 5, left : left + 4] += model(window.double()).numpy()
            count[top : top + 5, left : left + 4] += 1
    assert count.min() == 1
    assert count.max() > 3
    torch.testing.assert_close(
        slide(model, images, config).double(), torch.from_numpy(total / count), atol=1e-5, rtol=0
    )


def test_windows_are_batched_over_images():
    model = Pointwise()
    images = torch.randn(3, 2, 8, 8)
    out = slide(model, images, WindowConfig((4, 4), (4, 4), batch_size=5))
    assert model.batches == [(5, 2, 4, 4), (5, 2, 4, 4), (2, 2, 4, 4)]
    torch.testing.assert_close(out, model.mix(images))


def test_scales_and_mirrors_are_averaged_as_probabilities():
    images, model = torch.randn(2, 2, 8, 12), Local()
    config = WindowConfig((32, 32), (32, 32), scales=(0.5, 1.0, 1.75), flip=True)
    expected = torch.zeros(2, 3, 8, 12)
    for size in ((4, 6), (8, 12), (14, 21)):
        scaled = images if size == (8, 12) else F.interpolate(images, size, mode="bilinear", antialias=True)
        for view in (lambda x: x, lambda x: x.flip(-1)):
            logits = F.interpolate(view(model(view(scaled))), (8, 12), mode="bilinear")
            expected += logits.softmax(1) / 6
    out = segment(model, images, config)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(out.sum(1), torch.ones(2, 8, 12))


def test_a_mirror_image_gives_a_mirrored_result():
    images = torch.randn(1, 2, 9, 10)
    config = WindowConfig((4, 4), (3, 3), flip=True)
    plain, mirrored = (segment(Local(), x, config) for x in (images, images.flip(-1)))
    torch.testing.assert_close(mirrored.flip(-1), plain)


def test_the_result_has_the_size_asked_for():
    images, model = torch.randn(1, 2, 6, 8), Local()
    out = segment(model, images, WindowConfig(), size=(13, 5))
    torch.testing.assert_close(out, F.interpolate(model(images), (13, 5), mode="bilinear").softmax(1))
    assert not out.requires_grad


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"size": (4, 4), "stride": (5, 4)},
            r"windows.stride=\(5, 4\) must be at most windows.size=\(4, 4\)",
        ),
        ({"size": 64}, "windows.size must be two integers, height and width, got 64"),
        ({"size": (0, 4)}, "windows.size must be at least 1, got 0"),
        ({"size": (4,)}, "must be two integers"),
        ({"scales": ()}, "windows.scales is empty"),
        ({"scales": (1.0, -0.5)}, "windows.scales must be above 0"),
        ({"batch_size": 0}, "windows.batch_size must be at least 1"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        WindowConfig(**settings)


def test_wrong_input_is_refused():
    with pytest.raises(
        ValueError, match=r"images must have shape \(B, C, H, W\) with pixels, got \(0, 2, 4, 4\)"
    ):
        slide(Local(), torch.zeros(0, 2, 4, 4), WindowConfig())
    with pytest.raises(TypeError, match="floating-point"):
        slide(Local(), torch.zeros(1, 2, 4, 4).byte(), WindowConfig())
    with pytest.raises(ValueError, match=r"the model made \(1, 2, 1, 1\) of windows \(1, 2, 4, 4\)"):
        slide(nn.AdaptiveAvgPool2d(1), torch.zeros(1, 2, 4, 4), WindowConfig())
