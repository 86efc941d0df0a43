"""Random crops and flips of a whole batch at once, by index arithmetic on the images' device.

Images are square, so a crop is described by integers: the numbers are drawn on the CPU for a whole epoch, and
each batch then costs a handful of kernels and no copy of a padded image.
"""

import torch
from torch import Tensor

_TRIES = 10  # torchvision's


def random_flips(count: int, probability: float, draw: torch.Generator) -> Tensor:
    """Draw (count,) int64, 1 where an image is to be flipped."""
    return (torch.rand(count, generator=draw, dtype=torch.float64) < probability).long()


def random_offsets(count: int, padding: int, draw: torch.Generator) -> Tensor:
    """Draw (count, 2) top and left edges of a window of an image's own size in the padded image."""
    return torch.randint(0, 2 * padding + 1, (count, 2), generator=draw)


def random_boxes(
    count: int,
    side: int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    draw: torch.Generator,
) -> Tensor:
    """Draw boxes as torchvision's ``RandomResizedCrop`` does, for square images.

    Args:
        count: number of boxes.
        side: of the images.
        scale: bounds of the area, as a share of the image's.
        ratio: bounds of the aspect ratio.
        draw: generator on the CPU.

    Returns:
        (count, 4) int64: top, left, height, width.
    """
    uniform = torch.rand((2, _TRIES, count), generator=draw, dtype=torch.float64)
    low, high = torch.tensor(ratio, dtype=torch.float64).log()
    areas = side * side * (scale[0] + (scale[1] - scale[0]) * uniform[0])
    ratios = (low + (high - low) * uniform[1]).exp()
    widths, heights = (areas * ratios).sqrt().round(), (areas / ratios).sqrt().round()  # (tries, count)
    fits = (widths >= 1) & (widths <= side) & (heights >= 1) & (heights <= side)
    first = fits.int().argmax(0, keepdim=True)  # the first that fits
    sizes = torch.stack([heights.gather(0, first)[0], widths.gather(0, first)[0]], 1)  # (count, 2)
    corners = (torch.rand((count, 2), generator=draw, dtype=torch.float64) * (side - sizes + 1)).floor()
    # None fits: the largest box in the middle whose ratio is allowed.
    middle = torch.tensor(
        [round(side / max(ratio[0], 1.0)), round(side * min(ratio[1], 1.0))], dtype=torch.float64
    )
    found = fits.any(0)[:, None]
    sizes = torch.where(found, sizes, middle)
    corners = torch.where(found, corners, ((side - middle) / 2).floor())
    return torch.cat([corners, sizes], 1).long()


def crop_padded(images: Tensor, index: Tensor, offsets: Tensor, flips: Tensor, padding: int) -> Tensor:
    """Cut windows out of images padded by reflection.

    Args:
        images: (n, C, S, S).
        index: (B,) which of them.
        offsets: (B, 2) top and left of the window in the padded image, from 0 to ``2 * padding``.
        flips: (B,) 1 to flip the window left to right.
        padding: pixels on each side, below S.

    Returns:
        (B, C, S, S) of the images' dtype.
    """
    side = images.shape[-1]
    places = torch.arange(-padding, side - padding, device=images.device)
    rows = _reflect(offsets[:, :1] + places, side)  # (B, S)
    cols = _reflect(offsets[:, 1:] + _flip(places, flips), side)
    return _gather(images, index, rows, cols)


def crop_resized(images: Tensor, index: Tensor, boxes: Tensor, flips: Tensor) -> Tensor:
    """Cut boxes out and resize them bilinearly to the images' size.

    A box is never larger than the result, so there is nothing to antialias.

    Args:
        images: (n, C, S, S).
        index: (B,) which of them.
        boxes: (B, 4) top, left, height, width.
        flips: (B,) 1 to flip the result left to right.

    Returns:
        (B, C, S, S) float32, not rounded.
    """
    side = images.shape[-1]
    places = torch.arange(side, device=images.device)
    top, left, height, width = boxes[:, :, None].unbind(1)  # each (B, 1)
    up, down, y = _neighbours(places[None], top, height, side)  # each (B, S)
    before, after, x = _neighbours(_flip(places, flips), left, width, side)
    x, y = x[:, None, None, :], y[:, None, :, None]
    upper = torch.lerp(
        _gather(images, index, up, before).float(), _gather(images, index, up, after).float(), x
    )
    lower = torch.lerp(
        _gather(images, index, down, before).float(), _gather(images, index, down, after).float(), x
    )
    return torch.lerp(upper, lower, y)


def _flip(places: Tensor, flips: Tensor) -> Tensor:
    """Return (B, S): the places, in reverse order for a flipped image."""
    return torch.where(flips[:, None] > 0, places.flip(0), places)


def _reflect(places: Tensor, side: int) -> Tensor:
    """Reflect places from -side + 1 to 2 side - 2 at the first and last pixel."""
    return (side - 1) - ((side - 1) - places.abs()).abs()


def _neighbours(places: Tensor, start: Tensor, length: Tensor, side: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the two pixels around each place of the resized box along one axis, and the second's weight."""
    position = ((places + 0.5) * (length / side) - 0.5).clamp(min=0)
    first = position.long()
    second = torch.minimum(first + 1, length - 1)
    return start + first, start + second, position - first


def _gather(images: Tensor, index: Tensor, rows: Tensor, cols: Tensor) -> Tensor:
    channels = torch.arange(images.shape[1], device=images.device)
    return images[
        index[:, None, None, None], channels[:, None, None], rows[:, None, :, None], cols[:, None, None, :]
    ]
