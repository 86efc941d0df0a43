"""Batches of images with masks: crops of one size to train on, whole images one by one to evaluate on."""

from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor

from cbsa.data.batch import EvalLoader, TrainLoader
from cbsa.data.build import fits_on_gpu
from cbsa.data.corrupt import CorruptLog
from cbsa.data.host import Decoder, HostEvalLoader, HostTrainLoader, Loaded
from cbsa.data.joint import EvalImage, JointTransform
from cbsa.data.label_sets import IGNORE
from cbsa.data.mask_config import MaskAugmentConfig, MaskDataConfig
from cbsa.data.mask_resident import ResidentMaskLoader
from cbsa.data.order import EpochOrder
from cbsa.data.resident import Progress, ResidentEvalLoader
from cbsa.data.segmentation_source import SegmentationSource

_JUDGED_BY = 8  # images that say how large those of a set are


class CropDecoder(Decoder):
    """Reads augmented crops: images (B, 3, h, w) and classes (B, h, w), both as bytes.

    Args:
        source: the images.
        transform: makes the crops.
        tries: see :class:`cbsa.data.host.Decoder`.
        seed: seed of the run.
    """

    def __init__(self, source: SegmentationSource, transform: JointTransform, tries: int, seed: int) -> None:
        super().__init__(source, tries, seed)
        self.masks, self.transform = source, transform

    def blank(self, positions: list[int]) -> Loaded:
        """Make a batch of black images, all ignored."""
        return _blank(positions, self.transform.config.crop)

    def read(self, index: int) -> tuple[Tensor, Tensor]:
        """Read an image with its mask and augment both."""
        return self.transform(*self.masks.read(index))


class WholeDecoder(Decoder):
    """Reads batches of one image, in its own size, with its mask, which may be of another size.

    Args:
        source: the images.
        transform: resizes the image.
    """

    def __init__(self, source: SegmentationSource, transform: EvalImage) -> None:
        super().__init__(source)
        self.masks, self.transform = source, transform

    def blank(self, positions: list[int]) -> Loaded:
        """Make a batch of one ignored pixel."""
        return _blank(positions, (1, 1))

    def read(self, index: int) -> tuple[Tensor, Tensor]:
        """Read an image with its mask."""
        image, mask = self.masks.read(index)
        return self.transform(image), torch.from_numpy(mask)

    def __getitem__(self, key: tuple[int, list[int]]) -> Loaded:
        _, positions = key
        nothing = self.blank(positions)
        (position,) = positions
        if position < 0:
            return nothing
        try:
            image, mask = self.read(position)
        except Exception as error:  # a file from outside may break its reader in any way
            failure = self.source.identify(position), f"{type(error).__name__}: {error}"
            return nothing._replace(failures=[failure])
        return nothing._replace(images=image[None], targets=mask[None], valid=torch.tensor([True]))


def _blank(positions: list[int], size: tuple[int, int]) -> Loaded:
    """Black images of a size (height, width), all their pixels ignored."""
    images = torch.zeros((len(positions), 3, *size), dtype=torch.uint8)
    classes = torch.full((len(positions), *size), IGNORE, dtype=torch.uint8)
    return Loaded.unread(images, classes, positions)


def mask_train_loader(
    config: MaskDataConfig,
    augment: MaskAugmentConfig,
    source: SegmentationSource,
    *,
    batch_size: int,
    accumulate: int = 1,
    seed: int = 0,
    device: torch.device,
    rank: int = 0,
    world_size: int = 1,
    corrupt: CorruptLog | None = None,
    progress: Progress | None = None,
) -> TrainLoader:
    """Build the loader of training batches; the arguments are those of :func:`build_train_loader`.

    The order of the images is a function of seed and epoch, their augmentation of seed, epoch and image.
    """
    order = EpochOrder(len(source), batch_size, accumulate, seed, rank, world_size)
    corrupt = corrupt or CorruptLog(config.max_corrupt)
    if choose_mask_store(config, source, device) == "device":
        whole = WholeDecoder(source, EvalImage(replace(config, short_side=0)))
        decoded = HostEvalLoader(whole, 1, config.workers, device, corrupt)
        return ResidentMaskLoader(decoded, order, config, augment, len(source.classes), progress)
    decoder = CropDecoder(source, JointTransform(config, augment), config.max_corrupt + 1, seed)
    return HostTrainLoader(decoder, order, config.workers, device, corrupt)


def mask_eval_loader(
    config: MaskDataConfig,
    source: SegmentationSource,
    *,
    device: torch.device,
    rank: int = 0,
    world_size: int = 1,
    corrupt: CorruptLog | None = None,
    progress: Progress | None = None,
) -> EvalLoader:
    """Build the loader of evaluation images, each a batch of its own; see :func:`build_eval_loader`."""
    decoder = WholeDecoder(source, EvalImage(config))
    corrupt = corrupt or CorruptLog(config.max_corrupt)
    loader = HostEvalLoader(decoder, 1, config.workers, device, corrupt, rank, world_size)
    if choose_mask_store(config, source, device) == "device":
        return ResidentEvalLoader(loader, progress)
    return loader


def choose_mask_store(config: MaskDataConfig, source: SegmentationSource, device: torch.device) -> str:
    """Return ``"host"`` or ``"device"``, what ``config.store`` asks for or, for ``"auto"``, what suits.

    How large the images are is judged by a few of them.
    """
    if config.store != "auto":
        return config.store
    if device.type != "cuda":
        return "host"
    pixels = [0]
    for index in range(0, len(source), -(-len(source) // _JUDGED_BY)):
        with suppress(Exception):  # what cannot be read is reported where it is needed
            image, _ = source.read(index)
            pixels.append(image.width * image.height)
    return "device" if fits_on_gpu(4 * max(pixels) * len(source), device) else "host"
