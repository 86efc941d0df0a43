"""Segmenting images of any size: overlapping windows, several scales, mirror images."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cbsa._checks import check_floating, check_int, check_positive_number


@dataclass(frozen=True)
class WindowConfig:
    """How an image is looked at when it is evaluated.

    Attributes:
        size: height and width of a window; one that is larger than the image is as large as the image.
        stride: steps down and to the right between windows, at most ``size``; the last window of a row or
            column ends with the image.
        scales: factors by which the image is resized; the probabilities of all scales are averaged.
        flip: average with the mirror image too.
        batch_size: windows that go through the model at a time.
    """

    size: tuple[int, int] = (512, 512)
    stride: tuple[int, int] = (384, 384)
    scales: tuple[float, ...] = (1.0,)
    flip: bool = False
    batch_size: int = 16

    def __post_init__(self) -> None:
        for name in ("size", "stride"):
            pair = getattr(self, name)
            if not isinstance(pair, Sequence) or len(pair) != 2:
                raise ValueError(f"windows.{name} must be two integers, height and width, got {pair}")
            for value in pair:
                check_int(f"windows.{name}", value)
        if any(step > side for step, side in zip(self.stride, self.size, strict=True)):
            raise ValueError(
                f"windows.stride={self.stride} must be at most windows.size={self.size}, else pixels between "
                "windows are never seen"
            )
        if not self.scales:
            raise ValueError("windows.scales is empty: give at least one factor, such as 1")
        for scale in self.scales:
            check_positive_number("windows.scales", scale)
        check_int("windows.batch_size", self.batch_size)


def window_starts(length: int, size: int, stride: int) -> list[int]:
    """Where windows of ``size`` begin that cover ``length`` in steps of ``stride``, the last one at the end.

    >>> window_starts(10, 4, 3)
    [0, 3, 6]
    >>> window_starts(11, 4, 3)
    [0, 3, 6, 7]
    """
    if size >= length:
        return [0]
    return [*range(0, length - size, stride), length - size]


def slide(model: nn.Module, images: Tensor, config: WindowConfig) -> Tensor:
    """Mean of the logits of all windows that a pixel lies in.

    Windows of all images go through the model ``config.batch_size`` at a time and are added up on their
    device, in float32. If one window covers the image, the result is ``model(images)``.

    Args:
        model: maps (b, C, h, w) to logits (b, classes, h, w).
        images: (B, C, H, W), normalised.
        config: size, stride and number of windows.

    Returns:
        (B, classes, H, W) float32 logits.
    """
    if check_floating("images", images).dim() != 4 or images.numel() == 0:
        raise ValueError(f"images must have shape (B, C, H, W) with pixels, got {tuple(images.shape)}")
    height, width = images.shape[-2:]
    size = min(config.size[0], height), min(config.size[1], width)
    rows, columns = (
        window_starts(n, s, t) for n, s, t in zip((height, width), size, config.stride, strict=True)
    )
    places = [(image, top, left) for image in range(len(images)) for top in rows for left in columns]
    total: Tensor | None = None
    seen = images.new_zeros((height, width), dtype=torch.float32)
    for top in rows:
        for left in columns:
            seen[top : top + size[0], left : left + size[1]] += 1
    for first in range(0, len(places), config.batch_size):
        some = places[first : first + config.batch_size]
        windows = torch.stack([images[i, :, t : t + size[0], s : s + size[1]] for i, t, s in some])
        logits = model(windows).float()
        if logits.dim() != 4 or logits.shape[0] != len(some) or logits.shape[-2:] != windows.shape[-2:]:
            raise ValueError(
                f"the model made {tuple(logits.shape)} of windows {tuple(windows.shape)}; expected logits "
                f"({len(some)}, classes, {size[0]}, {size[1]})"
            )
        if total is None:
            total = logits.new_zeros((len(images), logits.shape[1], height, width))
        for (i, top, left), part in zip(some, logits, strict=True):
            total[i, :, top : top + size[0], left : left + size[1]] += part
    assert total is not None  # there is at least one window
    return total / seen


@torch.no_grad()
def segment(
    model: nn.Module, images: Tensor, config: WindowConfig, size: Sequence[int] | None = None
) -> Tensor:
    """Class probabilities of every pixel, averaged over scales and mirror images.

    Args:
        model: as for :func:`slide`; in evaluation mode.
        images: (B, C, H, W), normalised.
        config: windows, scales and flip.
        size: height and width of the result; by default that of the images. Logits are resized to it.

    Returns:
        (B, classes, h, w) float32 probabilities.
    """
    height, width = images.shape[-2:]
    out = (height, width) if size is None else (int(size[0]), int(size[1]))
    total: Tensor | None = None
    for scale in config.scales:
        scaled = max(1, round(scale * height)), max(1, round(scale * width))
        resized = images if scaled == (height, width) else _resize(images, scaled)
        for mirrored in (False, True) if config.flip else (False,):
            logits = slide(model, resized.flip(-1) if mirrored else resized, config)
            logits = logits.flip(-1) if mirrored else logits
            if logits.shape[-2:] != out:
                logits = F.interpolate(logits, out, mode="bilinear", align_corners=False)
            probabilities = logits.softmax(1)
            total = probabilities if total is None else total.add_(probabilities)
    assert total is not None  # there is at least one scale
    return total / (len(config.scales) * (2 if config.flip else 1))


def _resize(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Bilinear, as data sets are resized: smoothed where images shrink."""
    return F.interpolate(images, size, mode="bilinear", align_corners=False, antialias=True)
