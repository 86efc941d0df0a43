"""What the loaders yield, and their common face."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from cbsa.data.order import EpochOrder


@dataclass
class Batch:
    """Images of one size with their classes.

    Attributes:
        images: (B, C, S, S) values from 0 to 255: bytes, or float32 where a crop was resampled on the device.
        targets: (B,) int64 classes; 0 for padding.
        indices: (B,) int64 positions in the source, on the CPU; -1 for padding.
        valid: (B,) bool; False for padding and, in evaluation, for images that could not be read.
    """

    images: Tensor
    targets: Tensor
    indices: Tensor
    valid: Tensor


class TrainLoader(ABC):
    """Training batches in an order and with augmentation that depend on seed and epoch alone.

    Attributes:
        store: ``"host"`` or ``"device"``, where the images are kept and augmented.
        order: which images make which batch.
    """

    store: str
    order: EpochOrder

    @property
    def batch_size(self) -> int:
        """Images of an optimizer step, over all ranks and micro-batches."""
        return self.order.batch_size

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of an epoch; images left over that do not fill a batch are dropped."""
        return self.order.steps

    def batch_indices(self, epoch: int, step: int) -> Tensor:
        """Return the positions of an optimizer step's images, over all ranks, without reading them."""
        return self.order.batch(epoch, step)

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        """Iterate over this rank's micro-batches from an optimizer step on; one iteration at a time.

        Args:
            epoch: number of the epoch.
            start_step: optimizer step to start at; earlier ones are skipped without reading them.

        Returns:
            ``accumulate`` micro-batches for each optimizer step.
        """
        return self._batches(epoch, self.order.shares(epoch, start_step))

    @abstractmethod
    def _batches(self, epoch: int, shares: Tensor) -> Iterator[Batch]:
        """Yield the batch of each row of ``shares``, (micro-batches, B) positions."""


class EvalLoader(ABC):
    """Batches that hold every image of a source once over all ranks.

    All ranks yield the same number of batches of the same size, padded where images run out.

    Attributes:
        store: ``"host"`` or ``"device"``, where the images are kept.
        num_batches: batches of one pass, on each rank.
    """

    store: str
    num_batches: int

    def __len__(self) -> int:
        return self.num_batches

    @abstractmethod
    def __iter__(self) -> Iterator[Batch]:
        """Iterate over this rank's batches."""
