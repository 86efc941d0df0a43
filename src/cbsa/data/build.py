"""Loaders from a configuration."""

from dataclasses import replace

import torch

from cbsa.data.batch import EvalLoader, TrainLoader
from cbsa.data.config import AugmentConfig, DataConfig
from cbsa.data.corrupt import CorruptLog
from cbsa.data.host import BatchDecoder, HostEvalLoader, HostTrainLoader
from cbsa.data.order import EpochOrder
from cbsa.data.resident import Progress, ResidentEvalLoader, ResidentTrainLoader
from cbsa.data.source import ImageSource
from cbsa.data.transforms import EvalTransform, TrainTransform, check_padding

_DECODED_AT_ONCE = 256  # images of a batch while a resident set is decoded
_MOST_RESIDENT_BYTES = 16 << 30
_LARGEST_RESIDENT_SIDE = 128


def build_train_loader(
    config: DataConfig,
    augment: AugmentConfig,
    source: ImageSource,
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
    """Build the loader of training batches.

    Args:
        config: size of the images, store and workers.
        augment: augmentation; mixup and CutMix are left to the training step.
        source: the images.
        batch_size: images of an optimizer step, over all ranks and micro-batches.
        accumulate: micro-batches of an optimizer step.
        seed: seed of the run; order and augmentation depend on it and the epoch alone.
        device: where batches go.
        rank: this process.
        world_size: number of processes.
        corrupt: account of unreadable images; by default one that allows ``config.max_corrupt``.
        progress: called with the images decoded and their number while a resident set is decoded.

    Returns:
        The loader.
    """
    order = EpochOrder(len(source), batch_size, accumulate, seed, rank, world_size)
    check_padding(config, augment)
    corrupt = corrupt or CorruptLog(config.max_corrupt)
    if choose_store(config, augment, source, device) == "device":
        transform = EvalTransform(config, keep_fitting=augment.crop != "none")
        decoder = BatchDecoder(source, transform, _shape(config))
        decoded = HostEvalLoader(decoder, _DECODED_AT_ONCE, config.workers, device, corrupt)
        key = (
            replace(config, workers=0, store="auto", max_corrupt=0),
            augment.crop != "none",
            len(source),
            device,
        )
        return ResidentTrainLoader(decoded, order, augment, progress, key)
    decoder = BatchDecoder(
        source, TrainTransform(config, augment), _shape(config), tries=config.max_corrupt + 1, seed=seed
    )
    return HostTrainLoader(decoder, order, config.workers, device, corrupt)


def build_eval_loader(
    config: DataConfig,
    source: ImageSource,
    *,
    batch_size: int,
    device: torch.device,
    rank: int = 0,
    world_size: int = 1,
    corrupt: CorruptLog | None = None,
    progress: Progress | None = None,
) -> EvalLoader:
    """Build the loader of evaluation batches.

    Args:
        config: size of the images, store and workers.
        source: the images.
        batch_size: images of one batch of one rank.
        device: where batches go.
        rank: this process.
        world_size: number of processes.
        corrupt: account of unreadable images; by default one that allows ``config.max_corrupt``.
        progress: called with the batches decoded and their number while a resident set is decoded.

    Returns:
        The loader.
    """
    corrupt = corrupt or CorruptLog(config.max_corrupt)
    decoder = BatchDecoder(source, EvalTransform(config), _shape(config))
    loader = HostEvalLoader(decoder, batch_size, config.workers, device, corrupt, rank, world_size)
    if choose_store(config, None, source, device) == "device":
        return ResidentEvalLoader(loader, progress)
    return loader


def choose_store(
    config: DataConfig, augment: AugmentConfig | None, source: ImageSource, device: torch.device
) -> str:
    """Return ``"host"`` or ``"device"``, what ``config.store`` asks for or, for ``"auto"``, what suits.

    The device is taken for a GPU if it can do the augmentation, images have at most 128 pixels a side and all
    of them take at most 16 GiB and a quarter of the free memory.
    """
    unsupported = augment is not None and bool(augment.randaugment or augment.erase)
    if config.store == "device" and unsupported:
        raise ValueError(
            "data.store='device' has no RandAugment and no random erasing: use data.store='host', or empty "
            "augment.randaugment and set augment.erase=0"
        )
    if config.store != "auto":
        return config.store
    if device.type != "cuda" or unsupported or config.img_size > _LARGEST_RESIDENT_SIDE:
        return "host"
    size = len(source) * config.in_chans * config.img_size**2
    return "device" if fits_on_gpu(size, device) else "host"


def fits_on_gpu(size: int, device: torch.device) -> bool:
    """Whether so many bytes of images take at most 16 GiB and a quarter of a GPU's free memory."""
    return size <= min(_MOST_RESIDENT_BYTES, torch.cuda.mem_get_info(device)[0] // 4)


def _shape(config: DataConfig) -> tuple[int, int, int]:
    return config.in_chans, config.img_size, config.img_size
