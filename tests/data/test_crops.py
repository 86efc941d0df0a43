"""Crops on the device against torchvision's and against padding proper."""

import pytest
import torch
import torch.nn.functional as F
from torchvision.transforms import v2

from cbsa.data.crops import crop_padded, crop_resized, random_boxes, random_flips, random_offsets
from tests.compare import assert_close


def draw(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("padding", [0, 1, 4, 6])
def test_padded_crops_are_windows_of_the_reflected_image(padding):
    images = torch.randint(0, 256, (5, 3, 7, 7), dtype=torch.uint8)
    padded = F.pad(images.float(), (padding,) * 4, mode="reflect").byte() if padding else images
    index = torch.randint(0, 5, (64,))
    offsets = random_offsets(64, padding, draw())
    flips = random_flips(64, 0.5, draw())
    crops = crop_padded(images, index, offsets, flips, padding)
    assert crops.dtype == torch.uint8
    for crop, i, (top, left), flip in zip(crops, index, offsets.tolist(), flips, strict=True):
        window = padded[i, :, top : top + 7, left : left + 7]
        assert torch.equal(crop, window.flip(-1) if flip else window)


def test_offsets_reach_every_window():
    offsets = random_offsets(5000, 2, draw())
    assert sorted(set(map(tuple, offsets.tolist()))) == [(i, j) for i in range(5) for j in range(5)]


@pytest.mark.parametrize("side", [5, 8, 32])
def test_resized_crops_agree_with_torchvision(side):
    images = torch.randint(0, 256, (4, 3, side, side), dtype=torch.uint8)
    boxes = random_boxes(60, side, (0.02, 1.0), (0.5, 2.0), draw())
    boxes[0] = torch.tensor([0, 0, side, side])
    boxes[1] = torch.tensor([side - 1, 2, 1, 1])
    boxes[2] = torch.tensor([1, side - 1, 2, 1])
    index, flips = torch.randint(0, 4, (60,)), random_flips(60, 0.5, draw())
    crops = crop_resized(images, index, boxes, flips)
    for crop, i, box, flip in zip(crops, index, boxes.tolist(), flips, strict=True):
        expected = v2.functional.resized_crop(images[i].float(), *box, [side, side], antialias=False)
        assert_close(crop, expected.flip(-1) if flip else expected, 1e-4)
    whole = crop_resized(images, torch.tensor([2]), boxes[:1], torch.tensor([0]))
    assert_close(whole[0], images[2].float(), 0)


def test_antialiasing_would_change_nothing():
    image = torch.rand(3, 16, 16)
    for box in random_boxes(20, 16, (0.08, 1.0), (3 / 4, 4 / 3), draw()).tolist():
        plain, antialiased = (
            v2.functional.resized_crop(image, *box, [16, 16], antialias=how) for how in (False, True)
        )
        assert_close(plain, antialiased, 1e-5)


@pytest.mark.parametrize(
    ("scale", "ratio"),
    [
        ((0.08, 1.0), (3 / 4, 4 / 3)),
        ((0.6, 1.0), (0.3, 3.0)),
        ((0.9, 1.0), (1.5, 2.0)),
        ((1.0, 1.0), (0.4, 0.5)),
    ],
)
def test_boxes_are_distributed_as_torchvision_draws_them(scale, ratio):
    side, count = 32, 4000
    boxes = random_boxes(count, side, scale, ratio, draw()).double()
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, 2:] >= 1).all()
    assert (boxes[:, :2] + boxes[:, 2:] <= side).all()
    theirs = v2.RandomResizedCrop(side, scale, ratio)
    image = torch.empty(3, side, side)
    drawn = [theirs.make_params([image]) for _ in range(count)]
    expected = torch.tensor(
        [[box[name] for name in ("top", "left", "height", "width")] for box in drawn], dtype=torch.float64
    )
    for power in (1, 2):  # means and second moments, to five standard errors of their difference
        left, right = boxes**power, expected**power
        error = ((left.var(0) + right.var(0)) / count).sqrt()
        assert ((left.mean(0) - right.mean(0)).abs() <= 5 * error + 1e-9).all()


@pytest.mark.parametrize(("ratio", "box"), [((4.0, 5.0), [12, 0, 8, 32]), ((0.2, 0.25), [0, 12, 32, 8])])
def test_a_box_that_never_fits_is_the_middle(ratio, box):
    """The whole area cannot have such a ratio."""
    assert random_boxes(3, 32, (1.0, 1.0), ratio, draw()).tolist() == [box] * 3


def test_boxes_are_the_only_one_there_is():
    assert random_boxes(3, 32, (1.0, 1.0), (1.0, 1.0), draw()).tolist() == [[0, 0, 32, 32]] * 3


@pytest.mark.parametrize("probability", [0.0, 0.3, 1.0])
def test_flips_have_their_probability(probability):
    flips = random_flips(10_000, probability, draw()).double()
    assert abs(flips.mean() - probability) <= 5 * (probability * (1 - probability) / 10_000) ** 0.5
