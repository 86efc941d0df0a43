"""Batches of images with the masks of :mod:`cbsa.data.sources.masks`."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from cbsa._checks import check_int
from cbsa.data.config import DataConfig
from cbsa.data.corrupt import CorruptLog
from cbsa.data.host import as_it_is, at_most_one_a_core
from cbsa.data.sources.masks import MaskSource
from cbsa.data.transforms import EvalTransform, normalise


class _Item(NamedTuple):
    """A decoded image (C, S, S) and mask, or why it could not be read."""

    image: Tensor | None
    mask: Tensor | None
    failure: tuple[str, str] | None


class _Items(Dataset[_Item]):
    """Reads single images; runs in the workers."""

    def __init__(self, source: MaskSource, config: DataConfig) -> None:
        self.source, self.transform = source, EvalTransform(config)

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> _Item:
        try:
            image, mask = self.source.read(index)
            return _Item(self.transform(image), torch.from_numpy(mask), None)
        except Exception as error:  # a file from outside may break its reader in any way
            return _Item(None, None, (self.source.identify(index), f"{type(error).__name__}: {error}"))


class SegmentationLoader:
    """Batches of normalised images (B, C, S, S) with their masks, each in its own size.

    Unreadable images are recorded and left out, so that a batch may be smaller, or empty.

    Args:
        source: the images.
        config: size, normalisation and workers; ``resize`` must be ``"squash"``, since the masks keep all of
            the image.
        batch_size: images of a batch.
        corrupt: account of unreadable images; by default one that allows ``config.max_corrupt``.
    """

    def __init__(
        self, source: MaskSource, config: DataConfig, batch_size: int = 32, corrupt: CorruptLog | None = None
    ) -> None:
        if config.resize != "squash":
            raise ValueError(
                f"data.resize={config.resize!r} cuts off parts of the image that the mask has: "
                "use data.resize='squash'"
            )
        self.source, self.config = source, config
        self._corrupt = corrupt or CorruptLog(config.max_corrupt)
        self._loader = DataLoader(
            _Items(source, config),
            batch_size=check_int("batch_size", batch_size),
            num_workers=at_most_one_a_core(config.workers),
            collate_fn=as_it_is,
            generator=torch.Generator(),  # else each pass draws from the global one
        )

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[tuple[Tensor, list[Tensor]]]:
        for items in self._loader:
            self._corrupt.record_all([item.failure for item in items if item.failure is not None])
            images = [item.image for item in items if item.image is not None]
            masks = [item.mask for item in items if item.mask is not None]
            if images:
                yield normalise(torch.stack(images), self.config.mean, self.config.std), masks
            else:
                side = self.config.img_size
                yield torch.empty(0, self.config.in_chans, side, side), []


def segmentation_loader(
    source: MaskSource, config: DataConfig, batch_size: int = 32, corrupt: CorruptLog | None = None
) -> SegmentationLoader:
    """Build the loader of images and masks; see :class:`SegmentationLoader`."""
    return SegmentationLoader(source, config, batch_size, corrupt)
