"""Images and masks of a batch resized, cropped and flipped together, by arithmetic on their device.

What :class:`cbsa.data.joint.JointTransform` does to one image, for a whole batch in which every image has a
size, a scale and a crop of its own. Resizing is two matrix products, one along each axis: the weights of an
antialiased bilinear filter are a matrix from the pixels of the image to those of the crop.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from cbsa.data.label_sets import IGNORE

_LOOKED_AT = 32  # rows and columns of a crop whose classes are counted


@dataclass(frozen=True)
class Stored:
    """All images of a split with their masks, each in the upper left corner of a canvas of one size.

    Attributes:
        images: (n, 3, H, W) bytes.
        masks: (n, H, W) bytes, classes or 255.
        sizes: (n, 2) int64 heights and widths.
    """

    images: Tensor
    masks: Tensor
    sizes: Tensor


@dataclass(frozen=True)
class Crops:
    """Crops of resized images.

    Attributes:
        index: (B,) which images.
        scaled: (B, 2) int64 heights and widths that they are resized to.
        corners: (B, 2) int64 tops and lefts of the crops; what lies outside of the image is padding.
        flips: (B,) bool, which crops are mirrored.
        size: height and width of the crops.
    """

    index: Tensor
    scaled: Tensor
    corners: Tensor
    flips: Tensor
    size: tuple[int, int]

    def places(self, axis: int) -> Tensor:
        """(B, side) where the rows (0) or columns (1) of the crops lie in the resized images."""
        steps = torch.arange(self.size[axis], device=self.index.device)
        along = torch.where(self.flips[:, None], steps.flip(0), steps) if axis else steps
        return self.corners[:, axis, None] + along


def scaled_sizes(sizes: Tensor, factors: Tensor, short_side: int) -> Tensor:
    """(B, 2) heights and widths after resizing ``sizes`` to ``short_side`` (0: not) and by factors (B,)."""
    factors = factors.double()
    if short_side:
        factors = factors * (short_side / sizes.amin(1))
    return (factors[:, None] * sizes).round().long().clamp(min=1)


def choose_corners(uniform: Tensor, scaled: Tensor, size: tuple[int, int]) -> Tensor:
    """(B, tries, 2) tops and lefts of crops within images, from numbers (B, tries, 2) of 0 to below 1."""
    room = torch.stack([scaled[:, axis] - size[axis] for axis in (0, 1)], 1).clamp(min=0)  # (B, 2)
    return (uniform * (room[:, None] + 1)).long()


def first_varied(
    stored: Stored,
    index: Tensor,
    scaled: Tensor,
    corners: Tensor,
    size: tuple[int, int],
    ratio: float,
    classes: int,
) -> Tensor:
    """(B, 2) the first of some corners (B, tries, 2) whose crop is not mostly of one class, or else the last.

    The share of a class is estimated by at most 32 × 32 of the labelled pixels.
    """
    tries = corners.shape[1]
    rows, columns = (_some(side, corners.device) for side in size)
    labels = _labels_at(
        stored,
        index.repeat_interleave(tries),
        scaled.repeat_interleave(tries, 0),
        corners.flatten(0, 1)[:, 0, None] + rows,
        corners.flatten(0, 1)[:, 1, None] + columns,
    )
    known = torch.arange(classes, device=labels.device)
    counts = (labels.flatten(1)[:, :, None] == known).sum(1).view(-1, tries, classes)
    varied = (counts.amax(2) <= ratio * counts.sum(2)) & (counts.sum(2) > 0)
    chosen = torch.where(varied.any(1), varied.int().argmax(1), tries - 1)
    return corners[torch.arange(len(corners), device=corners.device), chosen]


def crop_images(stored: Stored, crops: Crops, fill: Tensor) -> Tensor:
    """(B, 3, h, w) float32 crops, not rounded, padded with a colour (3,)."""
    places = [crops.places(axis) for axis in (0, 1)]
    down, across = (
        _weights(
            places[axis],
            stored.sizes[crops.index, axis],
            crops.scaled[:, axis],
            stored.images.shape[2 + axis],
        )
        for axis in (0, 1)
    )
    resized = down[:, None] @ stored.images[crops.index].float() @ across[:, None].mT
    return torch.where(_inside(places, crops.scaled)[:, None], resized, fill[:, None, None])


def crop_masks(stored: Stored, crops: Crops) -> Tensor:
    """(B, h, w) bytes, the nearest pixel of the mask; 255 outside of it."""
    return _labels_at(stored, crops.index, crops.scaled, crops.places(0), crops.places(1))


def _labels_at(stored: Stored, index: Tensor, scaled: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """(B, h, w) labels where rows (B, h) and columns (B, w) of resized masks cross."""
    sizes = stored.sizes[index]
    near = [
        # As nearest-exact interpolation, which lines up with the bilinear one.
        ((places + 0.5) * (sizes[:, axis] / scaled[:, axis])[:, None])
        .long()
        .minimum(sizes[:, axis, None] - 1)
        for axis, places in enumerate((rows, columns))
    ]
    labels = stored.masks[index[:, None, None], near[0][:, :, None], near[1][:, None, :]]
    return torch.where(_inside([rows, columns], scaled), labels, IGNORE)


def _inside(places: list[Tensor], scaled: Tensor) -> Tensor:
    """(B, h, w) which places lie in the resized images."""
    rows, columns = (place < scaled[:, axis, None] for axis, place in enumerate(places))
    return rows[:, :, None] & columns[:, None, :]


def _weights(places: Tensor, length: Tensor, scaled: Tensor, side: int) -> Tensor:
    """(B, places, side) share of each of ``side`` pixels in the pixel at each place (B, places).

    A triangle around the place, as wide as two pixels, or two pixels of the result where these are coarser:
    what ``torch.nn.functional.interpolate(..., mode="bilinear", antialias=True)`` does.

    Args:
        places: along an axis of the resized images.
        length: (B,) pixels that each image has along it before.
        scaled: (B,) pixels after.
        side: pixels of the canvas.
    """
    step = (length / scaled).float()[:, None, None]  # pixels of the image for one of the result
    pixels = torch.arange(side, device=places.device)
    distance = (pixels + 0.5 - (places[:, :, None] + 0.5) * step).abs() / step.clamp(min=1)
    weights = (1 - distance).clamp(min=0) * (pixels < length[:, None, None])
    return weights / weights.sum(-1, keepdim=True).clamp(min=1e-6)


def _some(side: int, device: torch.device) -> Tensor:
    """Evenly spaced places on a side, at most 32."""
    count = min(side, _LOOKED_AT)
    return ((torch.arange(count, device=device) + 0.5) * side / count).long()
