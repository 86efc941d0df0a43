"""Loaders that decode images in worker processes."""

import os
import signal
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from cbsa.data.batch import Batch, EvalLoader, TrainLoader
from cbsa.data.corrupt import CorruptLog, TooManyCorruptImages
from cbsa.data.order import EpochOrder, eval_shares
from cbsa.data.seeding import seeded
from cbsa.data.source import ImageSource
from cbsa.data.transforms import ImageTransform

_Key = tuple[int, list[int]]  # epoch and positions of a batch


class Loaded(NamedTuple):
    """A batch on its way from a worker, with the images that could not be read and why."""

    images: Tensor
    targets: Tensor
    indices: Tensor
    valid: Tensor
    failures: list[tuple[str, str]]

    @classmethod
    def unread(cls, images: Tensor, targets: Tensor, positions: list[int]) -> "Loaded":
        """A batch in which nothing is valid yet."""
        indices = torch.tensor(positions, dtype=torch.int64)
        return cls(images, targets, indices, torch.zeros(len(positions), dtype=torch.bool), [])


class Source(Protocol):
    """What a decoder reads from: images by position, with a name for each."""

    def __len__(self) -> int: ...

    def identify(self, index: int) -> str:
        """Return the path or name of an image, for messages."""


class Decoder(Dataset[Loaded]):
    """Reads whole batches; runs in the workers.

    Args:
        source: the images.
        tries: images to try for one place of the batch: one that cannot be read is replaced by the next of
            the source. The place stays empty, and invalid, if none of them can.
        seed: seed of the run, if reading is random.
    """

    def __init__(self, source: Source, tries: int = 1, seed: int | None = None) -> None:
        self.source, self.tries, self.seed = source, tries, seed

    @abstractmethod
    def blank(self, positions: list[int]) -> Loaded:
        """Make a batch in which nothing is valid yet."""

    @abstractmethod
    def read(self, index: int) -> tuple[Tensor, Tensor | int]:
        """Read an image and its target; raise if they cannot be read."""

    def __getitem__(self, key: _Key) -> Loaded:
        epoch, positions = key
        batch = self.blank(positions)
        for place, position in enumerate(positions):
            if position >= 0:
                self._fill(batch, place, epoch, position)
        return batch

    def _fill(self, batch: Loaded, place: int, epoch: int, position: int) -> None:
        for ahead in range(min(self.tries, len(self.source))):
            index = (position + ahead) % len(self.source)
            try:
                with nullcontext() if self.seed is None else seeded("augment", self.seed, epoch, position):
                    image, target = self.read(index)
                batch.images[place] = image
            except Exception as error:  # a file from outside may break its reader in any way
                batch.failures.append((self.source.identify(index), f"{type(error).__name__}: {error}"))
                continue
            batch.targets[place], batch.indices[place], batch.valid[place] = target, index, True
            return


class BatchDecoder(Decoder):
    """Reads images with their classes.

    Args:
        source: the images.
        transform: makes (C, S, S) bytes of an image.
        shape: (C, S, S).
        tries: see :class:`Decoder`.
        seed: seed of the run, if the transform is random.
    """

    def __init__(
        self,
        source: ImageSource,
        transform: ImageTransform,
        shape: tuple[int, int, int],
        tries: int = 1,
        seed: int | None = None,
    ) -> None:
        super().__init__(source, tries, seed)
        self.images, self.transform, self.shape = source, transform, shape

    def blank(self, positions: list[int]) -> Loaded:
        """Make a batch of black images, with the classes of those that are to be read."""
        images = torch.zeros((len(positions), *self.shape), dtype=torch.uint8)
        classes = [int(self.images.labels[p]) if p >= 0 else 0 for p in positions]
        return Loaded.unread(images, torch.tensor(classes, dtype=torch.int64), positions)

    def read(self, index: int) -> tuple[Tensor, int]:
        """Read an image and its class."""
        image, label = self.images.read(index)
        return self.transform(image), label


class _Schedule:
    """The batches that the data loader asks its workers for; set anew before each pass."""

    def __init__(self) -> None:
        self.epoch = 0
        self.shares = torch.empty((0, 0), dtype=torch.int64)

    def __iter__(self) -> Iterator[_Key]:
        epoch = self.epoch
        return ((epoch, row.tolist()) for row in self.shares)


class HostTrainLoader(TrainLoader):
    """Decodes and augments in worker processes that live as long as the loader.

    Args:
        decoder: reads the batches; must be seeded.
        order: which images make which batch.
        workers: processes that decode; 0 for this one.
        device: where the batches go.
        corrupt: account of unreadable images.
    """

    store = "host"

    def __init__(
        self,
        decoder: Decoder,
        order: EpochOrder,
        workers: int,
        device: torch.device,
        corrupt: CorruptLog,
    ) -> None:
        self.order = order
        self._device, self._corrupt, self._schedule = device, corrupt, _Schedule()
        self._loader = _make_loader(decoder, self._schedule, workers, device)

    def _batches(self, epoch: int, shares: Tensor) -> Iterator[Batch]:
        self._schedule.epoch, self._schedule.shares = epoch, shares
        for loaded, batch in _deliver(self._loader, self._device, self._corrupt):
            if not loaded.valid.all():
                raise TooManyCorruptImages(f"none of the {self.order.length} training images can be read")
            yield batch


class HostEvalLoader(EvalLoader):
    """Decodes in worker processes, in order.

    Args:
        decoder: reads the batches.
        batch_size: images of one batch of this rank.
        workers: processes that decode; 0 for this one.
        device: where the batches go.
        corrupt: account of unreadable images.
        rank: this process.
        world_size: number of processes.
    """

    store = "host"

    def __init__(
        self,
        decoder: Decoder,
        batch_size: int,
        workers: int,
        device: torch.device,
        corrupt: CorruptLog,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self._device, self._corrupt, self._schedule = device, corrupt, _Schedule()
        self._schedule.shares = eval_shares(len(decoder.source), batch_size, rank, world_size)
        self.num_batches = len(self._schedule.shares)
        self._loader = _make_loader(decoder, self._schedule, min(workers, self.num_batches), device)

    def __iter__(self) -> Iterator[Batch]:
        for _, batch in _deliver(self._loader, self._device, self._corrupt):
            yield batch


def at_most_one_a_core(workers: int) -> int:
    """So many worker processes as there are cores for; more would only wait for each other."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    return min(workers, cores)


def _make_loader(
    decoder: Decoder, schedule: _Schedule, workers: int, device: torch.device
) -> DataLoader[Loaded]:
    workers = at_most_one_a_core(workers)
    return DataLoader(
        decoder,
        batch_size=None,  # a key is a whole batch already
        sampler=schedule,
        num_workers=workers,
        collate_fn=as_it_is,
        worker_init_fn=_leave_signals_to_the_run,
        pin_memory=device.type == "cuda",
        persistent_workers=workers > 0,
        generator=torch.Generator(),  # else each pass draws from the global one
    )


def _leave_signals_to_the_run(worker: int) -> None:
    """Ctrl-C reaches workers too, but the run decides when they stop; SIGTERM ends them at once."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def as_it_is(loaded: Any) -> Any:
    """What a data loader does with what is a batch already."""
    return loaded


def _deliver(
    loader: Iterable[Loaded], device: torch.device, corrupt: CorruptLog
) -> Iterator[tuple[Loaded, Batch]]:
    """Record what could not be read, and copy batches to the device, on a GPU one ahead of their use."""
    if device.type != "cuda":
        for loaded in loader:
            corrupt.record_all(loaded.failures)
            yield loaded, _copy(loaded, device)
        return
    copying = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    ahead: tuple[Loaded, Batch, torch.cuda.Event] | None = None
    for loaded in loader:
        corrupt.record_all(loaded.failures)
        with torch.cuda.stream(copying):
            batch, done = _copy(loaded, device), copying.record_event()
        if ahead is not None:
            yield _release(*ahead)
        ahead = loaded, batch, done
    if ahead is not None:
        yield _release(*ahead)


def _copy(loaded: Loaded, device: torch.device) -> Batch:
    images, targets, valid = (
        tensor.to(device, non_blocking=True) for tensor in (loaded.images, loaded.targets, loaded.valid)
    )
    return Batch(images, targets, loaded.indices, valid)


def _release(loaded: Loaded, batch: Batch, done: torch.cuda.Event) -> tuple[Loaded, Batch]:
    """Let the current stream wait for the copy, and keep the memory until that stream is done with it."""
    stream = torch.cuda.current_stream(batch.images.device)
    stream.wait_event(done)
    for tensor in (batch.images, batch.targets, batch.valid):
        tensor.record_stream(stream)
    return loaded, batch
