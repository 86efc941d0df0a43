"""Brightness, contrast, saturation and hue of a batch, each image by factors of its own.

The formulas are torchvision's, whose functions take one factor for all images.
"""

import torch
from torch import Tensor

_GREY = (0.2989, 0.587, 0.114)  # share of red, green and blue


def adjust_brightness(images: Tensor, factors: Tensor) -> Tensor:
    """Images (B, 3, h, w) with values from 0 to 255, times factors (B,)."""
    return (images * _wide(factors)).clamp(0, 255)


def adjust_contrast(images: Tensor, factors: Tensor) -> Tensor:
    """Away from the mean grey of each image, or towards it."""
    return _blend(images, _grey(images).mean((1, 2, 3), keepdim=True), factors)


def adjust_saturation(images: Tensor, factors: Tensor) -> Tensor:
    """Away from the grey of each pixel, or towards it."""
    return _blend(images, _grey(images), factors)


def adjust_hue(images: Tensor, turns: Tensor) -> Tensor:
    """Turn the hue by shares (B,) of the circle."""
    red, green, blue = images.unbind(1)  # each (B, h, w)
    value, low = images.amax(1), images.amin(1)
    spread = value - low
    safe = spread.clamp(min=1e-6)
    of_blue = torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe)
    hue = torch.where(value == red, (green - blue) / safe, of_blue)  # in sixths of the circle
    hue = hue + 6 * turns[:, None, None]

    def channel(offset: int) -> Tensor:
        place = (hue + offset) % 6
        return value - spread * torch.minimum(place, 4 - place).clamp(0, 1)

    return torch.stack([channel(5), channel(3), channel(1)], 1)


def _grey(images: Tensor) -> Tensor:
    """(B, 1, h, w)."""
    red, green, blue = images.unbind(1)
    return (_GREY[0] * red + _GREY[1] * green + _GREY[2] * blue)[:, None]


def _blend(images: Tensor, other: Tensor, factors: Tensor) -> Tensor:
    return torch.lerp(other.expand_as(images), images, _wide(factors)).clamp(0, 255)


def _wide(factors: Tensor) -> Tensor:
    return factors[:, None, None, None]
