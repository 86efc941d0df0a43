"""A loader that keeps images with masks on the training device and augments them there."""

import torch
from torch import Tensor

from cbsa.data import photometric
from cbsa.data.batch import EvalLoader
from cbsa.data.joint import BRIGHTNESS, CONTRAST, HUE, TRIES, mean_colour
from cbsa.data.joint_crops import (
    Crops,
    Stored,
    choose_corners,
    crop_images,
    crop_masks,
    first_varied,
    scaled_sizes,
)
from cbsa.data.mask_config import MaskAugmentConfig, MaskDataConfig
from cbsa.data.order import EpochOrder
from cbsa.data.resident import Progress, ResidentLoader

# Uniform numbers that an image takes: scale, flip, corners of the crops that are tried; then what each change
# of colour is and whether it is made, and when the contrast is changed.
_CROP, _COLOUR = 2 + 2 * TRIES, 2 * 4 + 1


class ResidentMaskLoader(ResidentLoader):
    """Augments as :class:`cbsa.data.joint.JointTransform` does, whole batches at once.

    Differences: crops are not rounded to bytes, the share of a class in a crop is estimated, and contrast is
    changed before or after saturation and hue, as in SSD, instead of anywhere among them.

    Args:
        decoded: every image with its mask, a batch each, on the device; a pass over them is made now.
        order: which images make which batch.
        config: sizes, and the mean colour.
        augment: the random part.
        num_classes: number of classes.
        progress: called while the images are decoded.
    """

    def __init__(
        self,
        decoded: EvalLoader,
        order: EpochOrder,
        config: MaskDataConfig,
        augment: MaskAugmentConfig,
        num_classes: int,
        progress: Progress | None = None,
    ) -> None:
        self._config, self._augment, self._num_classes = config, augment, num_classes
        self._stored, readable = _store(decoded, order.length, progress)
        super().__init__(order, readable, self._stored.images.device)
        self._fill = torch.tensor(mean_colour(config), dtype=torch.float32, device=self._device)

    def _draw(self, draw: torch.Generator) -> Tensor:
        """Draw uniform numbers: (n, 31)."""
        return torch.rand((self.order.length, _CROP + _COLOUR), generator=draw, dtype=torch.float64)

    def _make(self, index: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Resize, crop, flip and change the colours."""
        crops = self._crops(index, numbers[:, :_CROP])
        images = crop_images(self._stored, crops, self._fill)
        if self._augment.photometric > 0:
            images = self._change_colours(images, numbers[:, _CROP:])
        return images, crop_masks(self._stored, crops)

    def _crops(self, index: Tensor, numbers: Tensor) -> Crops:
        augment, size = self._augment, self._config.crop
        factors = _between(augment.scale, numbers[:, 0])
        scaled = scaled_sizes(self._stored.sizes[index], factors, self._config.short_side)
        corners = choose_corners(numbers[:, 2:].reshape(-1, TRIES, 2), scaled, size)
        if augment.category_ratio == 1:
            corner = corners[:, 0]
        else:
            ratio = augment.category_ratio
            corner = first_varied(self._stored, index, scaled, corners, size, ratio, self._num_classes)
        return Crops(index, scaled, corner, numbers[:, 1] < augment.flip, size)

    def _change_colours(self, images: Tensor, numbers: Tensor) -> Tensor:
        made = numbers[:, :4] < self._augment.photometric
        ranges = (BRIGHTNESS, CONTRAST, CONTRAST, HUE)
        # A factor of 1 changes nothing, nor does a turn by 0.
        brightness, contrast, saturation, hue = (
            torch.where(made[:, i], _between(ranges[i], numbers[:, 4 + i]), float(i < 3)).float()
            for i in range(4)
        )
        early = numbers[:, 8] < 0.5
        images = photometric.adjust_brightness(images, brightness)
        images = photometric.adjust_contrast(images, torch.where(early, contrast, 1.0))
        images = photometric.adjust_saturation(images, saturation)
        images = photometric.adjust_hue(images, hue)
        return photometric.adjust_contrast(images, torch.where(early, 1.0, contrast))


def _between(bounds: tuple[float, float], uniform: Tensor) -> Tensor:
    low, high = bounds
    return low + (high - low) * uniform


def _store(decoded: EvalLoader, count: int, progress: Progress | None) -> tuple[Stored, Tensor]:
    """Return all images with their masks and, on the CPU, (n,) which could be read."""
    pairs = []
    readable = torch.zeros(count, dtype=torch.bool)
    for place, batch in enumerate(decoded):
        pairs.append((batch.images[0], batch.targets[0]))  # one pixel, all ignored, if it could not be read
        readable[place] = bool(batch.valid.all())
        if progress is not None:
            progress(place + 1, count)
    device = pairs[0][0].device
    sizes = torch.tensor([mask.shape for _, mask in pairs])
    height, width = sizes.amax(0).tolist()
    images = torch.zeros((count, 3, height, width), dtype=torch.uint8, device=device)
    masks = torch.zeros((count, height, width), dtype=torch.uint8, device=device)
    for place, (image, mask) in enumerate(pairs):
        images[place, :, : image.shape[1], : image.shape[2]] = image
        masks[place, : mask.shape[0], : mask.shape[1]] = mask
    return Stored(images, masks, sizes.to(device)), readable
