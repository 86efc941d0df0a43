"""Decoded images to square byte tensors, and these to what a model takes.

Random transforms draw from the global generators of torch, ``random`` and NumPy: call them inside
:func:`cbsa.data.seeding.seeded`.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from cbsa.data.config import AugmentConfig, DataConfig
from cbsa.data.decode import to_channels

ImageTransform = Callable[[Image.Image], Tensor]


class EvalTransform:
    """Bring an image to ``img_size`` as in evaluation: (C, S, S) bytes.

    Args:
        config: size, channels and way of resizing.
        keep_fitting: leave an image that has this size already as it is, where ``resize="crop"`` would
            enlarge it and cut off its border.
    """

    def __init__(self, config: DataConfig, keep_fitting: bool = False) -> None:
        self.config, self.keep_fitting = config, keep_fitting

    def __call__(self, image: Image.Image) -> Tensor:
        """Resize an image of any mode and size."""
        return _to_tensor(self.fit(to_channels(image, self.config.in_chans)))

    def fit(self, image: Image.Image) -> Image.Image:
        """Return the image in its new size, still as a Pillow image."""
        from torchvision.transforms.v2 import InterpolationMode, functional  # type: ignore[import-untyped]

        side = self.config.img_size
        if self.keep_fitting and image.size == (side, side):
            return image
        mode = InterpolationMode(self.config.interpolation)
        if self.config.resize == "squash":
            squashed: Image.Image = functional.resize(image, [side, side], mode)
            return squashed
        shorter = math.floor(side / self.config.crop_pct)
        longer = shorter * max(image.size) / min(image.size)
        if Image.MAX_IMAGE_PIXELS is not None and shorter * longer > Image.MAX_IMAGE_PIXELS:
            raise ValueError(f"the image is too long to be resized: {image.width}×{image.height} pixels")
        centre: Image.Image = functional.center_crop(functional.resize(image, [shorter], mode), [side])
        return centre


class TrainTransform:
    """Augment an image: crop, flip, RandAugment and erasing, in this order: (C, S, S) bytes."""

    def __init__(self, config: DataConfig, augment: AugmentConfig) -> None:
        check_padding(config, augment)
        self.config = config
        self._channels, self._steps = config.in_chans, _pillow_steps(config, augment)
        self._erase = _Erase(augment.erase, config) if augment.erase > 0 else None

    def __call__(self, image: Image.Image) -> Tensor:
        """Augment an image of any mode and size."""
        image = to_channels(image, self._channels)
        for step in self._steps:
            image = step(image)
        pixels = _to_tensor(image)
        return pixels if self._erase is None else self._erase(pixels)


class _Erase:
    """timm's random erasing: a box of normal noise, which is drawn for normalised images."""

    def __init__(self, probability: float, config: DataConfig) -> None:
        from timm.data.random_erasing import RandomErasing

        self._erase = RandomErasing(  # type: ignore[no-untyped-call]
            probability, mode="pixel", device="cpu"
        )
        self._mean, self._std = config.mean, config.std

    def __call__(self, image: Tensor) -> Tensor:
        erased: Tensor = self._erase(normalise(image, self._mean, self._std))
        scale, shift = _affine(tuple(self._mean), tuple(self._std), image.device)
        return ((erased - shift) / scale).round().clamp(0, 255).to(torch.uint8)


def check_padding(config: DataConfig, augment: AugmentConfig) -> None:
    """Raise if an image would have to be reflected more than once."""
    if augment.crop == "pad" and augment.padding >= config.img_size:
        raise ValueError(
            f"augment.padding={augment.padding} must be below data.img_size={config.img_size}, "
            "since the image is padded by its reflection"
        )


def normalise(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Return ``(images / 255 - mean) / std`` in float32.

    Args:
        images: (…, C, H, W) values from 0 to 255, of any real dtype.
        mean: per channel.
        std: per channel.
    """
    if images.dim() < 3 or images.shape[-3] != len(mean) or len(mean) != len(std):
        raise ValueError(
            f"images must have shape (…, {len(mean)}, H, W) for {len(mean)} means and {len(std)} standard "
            f"deviations, got {tuple(images.shape)}"
        )
    scale, shift = _affine(tuple(mean), tuple(std), images.device)
    return torch.addcmul(shift, images.to(torch.float32), scale)


@lru_cache(maxsize=64)
def _affine(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return scale and shift, each (C, 1, 1); kept on the device, as copying them makes it wait."""
    with torch.inference_mode(False):  # kept tensors must serve autograd too
        values = torch.tensor([mean, std], dtype=torch.float64)[:, :, None, None]
        scale, shift = 1 / (255 * values[1]), -values[0] / values[1]
        return scale.to(device, torch.float32), shift.to(device, torch.float32)


def _to_tensor(image: Image.Image) -> Tensor:
    from torchvision.transforms.v2 import functional

    pixels: Tensor = functional.pil_to_tensor(image)
    return pixels


def _pillow_steps(config: DataConfig, augment: AugmentConfig) -> list[Callable[[Any], Any]]:
    from torchvision.transforms import v2  # type: ignore[import-untyped]

    side, mode = config.img_size, v2.InterpolationMode(config.interpolation)
    steps: list[Callable[[Any], Any]] = []
    if augment.crop == "resized":
        steps.append(v2.RandomResizedCrop(side, augment.scale, augment.ratio, mode))
    elif augment.crop == "pad":
        steps.append(EvalTransform(config, keep_fitting=True).fit)
        steps.append(v2.RandomCrop(side, augment.padding or None, padding_mode="reflect"))
    else:
        steps.append(EvalTransform(config).fit)
    if augment.flip > 0:
        steps.append(v2.RandomHorizontalFlip(augment.flip))
    if augment.randaugment:
        steps.append(_randaugment(config, augment.randaugment))
    return steps


def _randaugment(config: DataConfig, notation: str) -> Callable[[Any], Any]:
    from timm.data.auto_augment import rand_augment_transform

    fill = tuple(min(255, round(255 * mean)) for mean in config.mean)
    options = {"translate_const": int(config.img_size * 0.45), "img_mean": fill if len(fill) > 1 else fill[0]}
    try:
        transform: Callable[[Any], Any] = rand_augment_transform(notation, options)
    except (AssertionError, ValueError, KeyError) as error:
        raise ValueError(
            f"augment.randaugment={notation!r} is not RandAugment in timm's notation, e.g. 'rand-m9-mstd0.5'"
            + (f" ({error})" if str(error) else "")
        ) from error
    return transform
