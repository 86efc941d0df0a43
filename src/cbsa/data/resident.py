"""Loaders that keep the decoded images on the training device and augment them there.

For small images, decoding and augmenting on the CPU is what limits training on a GPU: 100,000 images of
64×64 pixels take 1.2 GB as bytes, and their crops are a few kernels.
"""

from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from cbsa.data.batch import Batch, EvalLoader, TrainLoader
from cbsa.data.config import AugmentConfig
from cbsa.data.corrupt import TooManyCorruptImages
from cbsa.data.crops import crop_padded, crop_resized, random_boxes, random_flips, random_offsets
from cbsa.data.order import EpochOrder
from cbsa.data.seeding import generator

Progress = Callable[[int, int], None]  # images done, images in all
Decoded = tuple[Tensor, Tensor, Tensor]  # images (n, C, S, S), targets (n,), which could be read (n,)
_kept: dict[Hashable, Decoded] | None = None  # inside keep_decoded()


@contextmanager
def keep_decoded() -> Iterator[None]:
    """Inside, the training images that one run has decoded are there for the next one, if it has the same.

    The last set of images is kept, if all of them could be read: others are to be reported by every run.
    """
    global _kept
    before, _kept = _kept, {}
    try:
        yield
    finally:
        _kept = before


class ResidentLoader(TrainLoader):
    """Makes batches of images that are on the device; nothing waits for the CPU within an epoch.

    The random numbers of all images are drawn for an epoch at once, so that an image's augmentation is a
    function of seed, epoch and image.

    Args:
        order: which images make which batch.
        readable: (n,) bool on the CPU, images that could be read; the next of them stands in for another.
        device: where the images are.
    """

    store = "device"

    def __init__(self, order: EpochOrder, readable: Tensor, device: torch.device) -> None:
        if not readable.any():
            raise TooManyCorruptImages(f"none of the {order.length} training images can be read")
        self.order, self._device = order, device
        self._stand_in = _next_readable(readable)

    def _batches(self, epoch: int, shares: Tensor) -> Iterator[Batch]:
        shares_used = self._stand_in[shares]  # (micro-batches, B)
        numbers = self._draw(generator("resident", self.order.seed, epoch))[shares]
        numbers, used = numbers.to(self._device), shares_used.to(self._device)
        valid = torch.ones(shares.shape[1], dtype=torch.bool, device=self._device)
        for row in range(len(shares)):
            yield Batch(*self._make(used[row], numbers[row]), shares_used[row], valid)

    @abstractmethod
    def _draw(self, draw: torch.Generator) -> Tensor:
        """Draw the random numbers of all images for an epoch: (n, numbers of an image)."""

    @abstractmethod
    def _make(self, index: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Return images and targets of the positions (B,), augmented by their numbers (B, …)."""


class ResidentTrainLoader(ResidentLoader):
    """Augments images of one size with their classes.

    Args:
        decoded: batches of all images, at their final size, on the device; a pass over them is made now.
        order: which images make which batch.
        augment: crop and flip.
        progress: called while the images are decoded.
        key: what the decoded images depend on, for :func:`keep_decoded`.
    """

    def __init__(
        self,
        decoded: EvalLoader,
        order: EpochOrder,
        augment: AugmentConfig,
        progress: Progress | None = None,
        key: Hashable = None,
    ) -> None:
        self._augment = augment
        self._images, self._targets, readable = _decode_once(decoded, order.length, progress, key)
        super().__init__(order, readable, self._images.device)

    def _draw(self, draw: torch.Generator) -> Tensor:
        """Draw flips and crops: (n, 1 + numbers of the crop)."""
        count = self.order.length
        flips = random_flips(count, self._augment.flip, draw)[:, None]
        if self._augment.crop == "resized":
            side = self._images.shape[-1]
            crops = random_boxes(count, side, self._augment.scale, self._augment.ratio, draw)
        else:
            crops = random_offsets(count, self._padding, draw)
        return torch.cat([flips, crops], 1)

    @property
    def _padding(self) -> int:
        return self._augment.padding if self._augment.crop == "pad" else 0

    def _make(self, index: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Crop and flip."""
        flips, crops = numbers[:, 0], numbers[:, 1:]
        if self._augment.crop == "resized":
            images = crop_resized(self._images, index, crops, flips)
        else:
            images = crop_padded(self._images, index, crops, flips, self._padding)
        return images, self._targets[index]


class ResidentEvalLoader(EvalLoader):
    """Keeps this rank's batches on the device.

    Args:
        decoded: batches on the device; a pass over them is made now.
        progress: called with the batches decoded and their number.
    """

    store = "device"

    def __init__(self, decoded: EvalLoader, progress: Progress | None = None) -> None:
        self.num_batches = len(decoded)
        self._batches: list[Batch] = []
        for batch in decoded:
            self._batches.append(batch)
            if progress is not None:
                progress(len(self._batches), self.num_batches)

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._batches)


def _decode_once(decoded: EvalLoader, count: int, progress: Progress | None, key: Hashable) -> Decoded:
    """As :func:`_decode`, or what :func:`keep_decoded` has kept."""
    if _kept is not None and key is not None and key in _kept:
        return _kept[key]
    if _kept is not None:
        _kept.clear()  # before the memory is needed
    found = _decode(decoded, count, progress)
    if _kept is not None and key is not None and bool(found[2].all()):
        _kept[key] = found
    return found


def _decode(decoded: EvalLoader, count: int, progress: Progress | None) -> Decoded:
    """Return all images (n, C, S, S), targets (n,) on their device and, on the CPU, which are readable."""
    images = targets = torch.empty(0)
    readable = torch.zeros(count, dtype=torch.bool)
    start = 0
    for batch in decoded:
        if start == 0:
            device = batch.images.device
            images = torch.empty((count, *batch.images.shape[1:]), dtype=torch.uint8, device=device)
            targets = torch.empty(count, dtype=torch.int64, device=device)
        stop = min(start + len(batch.indices), count)
        images[start:stop] = batch.images[: stop - start]
        targets[start:stop] = batch.targets[: stop - start]
        readable[start:stop] = batch.valid[: stop - start].cpu()
        start = stop
        if progress is not None:
            progress(start, count)
    return images, targets, readable


def _next_readable(readable: Tensor) -> Tensor:
    """Return for each position itself or, if it cannot be read, the next that can, going round."""
    good = readable.nonzero()[:, 0]
    following = torch.searchsorted(good, torch.arange(len(readable)))
    return good[following % len(good)]
