"""Augmentation of images together with their masks, by torchvision's transforms of ``tv_tensors``.

Random transforms draw from torch's global generator: call them inside :func:`cbsa.data.seeding.seeded`.
"""

from typing import Any

import torch
from PIL import Image
from torch import Tensor

from cbsa.data.decode import to_channels
from cbsa.data.label_sets import IGNORE, Mask
from cbsa.data.mask_config import MaskAugmentConfig, MaskDataConfig

TRIES = 10  # crops that are tried for one that is not mostly of one class
BRIGHTNESS, CONTRAST, HUE = (0.875, 1.125), (0.5, 1.5), (-0.05, 0.05)  # factors, and turns, as in SSD


class JointTransform:
    """Make an image (3, h, w) of bytes and its mask (h, w) for training, of the size ``config.crop``.

    In this order: resize by a random factor, crop (padded with the mean colour and ignored pixels where the
    image is too small), flip, photometric distortion.

    Args:
        config: sizes, and the mean colour.
        augment: the random part.
    """

    def __init__(self, config: MaskDataConfig, augment: MaskAugmentConfig) -> None:
        from torchvision.transforms import v2  # type: ignore[import-untyped]

        self.config, self.augment = config, augment
        self._fill = mean_colour(config)
        self._flip = v2.RandomHorizontalFlip(augment.flip)
        self._photometric = _photometric(augment.photometric)

    def __call__(self, image: Image.Image, mask: Mask) -> tuple[Tensor, Tensor]:
        """Augment an image of any mode and size with its classes per pixel."""
        pixels, labels = _to_tensors(image, mask)
        pixels, labels = self._resize(pixels, labels)
        pixels, labels = self._crop(pixels, labels)
        pixels, labels = self._photometric(*self._flip(pixels, labels))
        return pixels.as_subclass(Tensor), labels.as_subclass(Tensor)

    def _resize(self, pixels: Any, labels: Any) -> tuple[Any, Any]:
        low, high = self.augment.scale
        factor = low + (high - low) * torch.rand(()).item()
        return _resize(pixels, _scaled(pixels.shape, self.config.short_side, factor), labels)

    def _crop(self, pixels: Any, labels: Any) -> tuple[Any, Any]:
        from torchvision.transforms.v2 import functional  # type: ignore[import-untyped]

        height, width = self.config.crop
        missing = max(0, height - pixels.shape[-2]), max(0, width - pixels.shape[-1])
        if any(missing):  # at the right and the bottom
            border = [0, 0, missing[1], missing[0]]
            pixels = functional.pad(pixels, border, fill=self._fill)
            labels = functional.pad(labels, border, fill=IGNORE)
        rows, columns = pixels.shape[-2] - height + 1, pixels.shape[-1] - width + 1
        for _ in range(TRIES):
            top, left = int(torch.randint(rows, ())), int(torch.randint(columns, ()))
            box = top, left, height, width
            if self._is_varied(functional.crop(labels, *box)):
                break
        return functional.crop(pixels, *box), functional.crop(labels, *box)

    def _is_varied(self, labels: Tensor) -> bool:
        """Whether no class has more than its share of the labelled pixels."""
        if self.augment.category_ratio == 1:
            return True
        counts = torch.bincount(labels.as_subclass(Tensor).flatten().int(), minlength=256)[:IGNORE]
        return bool(counts.max() <= self.augment.category_ratio * counts.sum()) and bool(counts.any())


def mean_colour(config: MaskDataConfig) -> list[int]:
    """What small images are padded with: red, green and blue, which normalisation makes about 0.

    ImageNet's if ``config.mean`` is None; runs have filled it in by now.
    """
    from timm.data import IMAGENET_DEFAULT_MEAN

    return [min(255, round(255 * mean)) for mean in config.mean or IMAGENET_DEFAULT_MEAN]


class EvalImage:
    """Make an image (3, h, w) of bytes for evaluation: only ``config.short_side`` changes its size."""

    def __init__(self, config: MaskDataConfig) -> None:
        self.config = config

    def __call__(self, image: Image.Image) -> Tensor:
        """Resize an image of any mode and size."""
        from torchvision.transforms.v2 import functional  # type: ignore[import-untyped]

        pixels: Tensor = functional.pil_to_tensor(to_channels(image, 3))
        resized: Tensor = _resize(pixels, _scaled(pixels.shape, self.config.short_side, 1.0))[0]
        return resized


def _to_tensors(image: Image.Image, mask: Mask) -> tuple[Any, Any]:
    from torchvision import tv_tensors  # type: ignore[import-untyped]
    from torchvision.transforms.v2 import functional  # type: ignore[import-untyped]

    pixels = functional.pil_to_tensor(to_channels(image, 3))
    return tv_tensors.Image(pixels), tv_tensors.Mask(torch.from_numpy(mask))


def _scaled(shape: torch.Size, short_side: int, factor: float) -> list[int]:
    """Height and width after resizing; raises where that would be more pixels than Pillow allows."""
    height, width = shape[-2:]
    factor *= short_side / min(height, width) if short_side else 1.0
    size = [max(1, round(factor * height)), max(1, round(factor * width))]
    if Image.MAX_IMAGE_PIXELS is not None and size[0] * size[1] > Image.MAX_IMAGE_PIXELS:
        raise ValueError(
            f"the image is too large to be resized: {width}×{height} pixels to {size[1]}×{size[0]}"
        )
    return size


def _resize(pixels: Any, size: list[int], labels: Any = None) -> tuple[Any, Any]:
    """Bilinear for the image, nearest for the mask."""
    from torchvision.transforms.v2 import InterpolationMode, functional  # type: ignore[import-untyped]

    if list(pixels.shape[-2:]) == size:
        return pixels, labels
    resized = functional.resize(pixels, size, InterpolationMode.BILINEAR, antialias=True)
    nearest = InterpolationMode.NEAREST_EXACT  # lines up with the bilinear one
    return resized, None if labels is None else functional.resize(labels, size, nearest)


def _photometric(probability: float) -> Any:
    """Brightness, then contrast, saturation and hue in a random order, each with a probability."""
    from torchvision.transforms import v2  # type: ignore[import-untyped]

    if probability == 0:
        return v2.Identity()

    def sometimes(**settings: tuple[float, float]) -> Any:
        return v2.RandomApply([v2.ColorJitter(**settings)], probability)

    others = [sometimes(contrast=CONTRAST), sometimes(saturation=CONTRAST), sometimes(hue=HUE)]
    return v2.Compose([sometimes(brightness=BRIGHTNESS), v2.RandomOrder(others)])
