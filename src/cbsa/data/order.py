"""Which images make which batch: arithmetic on a permutation, the same on every rank."""

import torch
from torch import Tensor

from cbsa._checks import check_int
from cbsa.data.seeding import generator


class EpochOrder:
    """The order of training images.

    Epoch ``e`` visits a permutation drawn from ``(seed, e)``. Optimizer step ``s`` takes the s-th run of
    ``batch_size`` positions, micro-batch ``a`` the a-th part of that and rank ``r`` the r-th part of this, so
    that neither ranks nor micro-batches change what a step learns from.

    Args:
        length: number of images.
        batch_size: images of an optimizer step, over all ranks and micro-batches.
        accumulate: micro-batches of an optimizer step.
        seed: seed of the run.
        rank: this process.
        world_size: number of processes.
    """

    def __init__(
        self,
        length: int,
        batch_size: int,
        accumulate: int = 1,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.length = length
        self.batch_size = check_int("batch_size", batch_size)
        self.accumulate = check_int("accumulate", accumulate)
        self.rank, self.world_size = check_rank(rank, world_size)
        self.seed = check_int("seed", seed, at_least=0)
        if batch_size % (world_size * accumulate):
            raise ValueError(
                f"batch_size={batch_size} is over all ranks and micro-batches: it must be divisible by "
                f"world_size * accumulate = {world_size} * {accumulate} = {world_size * accumulate}"
            )
        self.steps = length // batch_size
        if self.steps == 0:
            raise ValueError(f"batch_size={batch_size} is larger than the training set of {length} images")
        self._drawn: tuple[int, Tensor] | None = None

    def permutation(self, epoch: int) -> Tensor:
        """Return the order of all images in an epoch."""
        if self._drawn is None or self._drawn[0] != epoch:
            check_int("epoch", epoch, at_least=0)
            order = torch.randperm(self.length, generator=generator("order", self.seed, epoch))
            self._drawn = epoch, order
        return self._drawn[1]

    def batch(self, epoch: int, step: int) -> Tensor:
        """Return the positions of an optimizer step, over all ranks."""
        if not 0 <= step < self.steps:
            raise ValueError(f"step={step}: expected 0 to {self.steps - 1}")
        return self.permutation(epoch)[step * self.batch_size : (step + 1) * self.batch_size]

    def shares(self, epoch: int, start_step: int = 0) -> Tensor:
        """Return this rank's positions from an optimizer step on, one row for each micro-batch."""
        if not 0 <= start_step <= self.steps:
            raise ValueError(f"start_step={start_step}: expected 0 to {self.steps}, the steps of an epoch")
        used = self.permutation(epoch)[: self.steps * self.batch_size]
        micro = self.batch_size // (self.accumulate * self.world_size)
        parts = used.view(self.steps, self.accumulate, self.world_size, micro)
        return parts[start_step:, :, self.rank].reshape(-1, micro)


def eval_shares(length: int, batch_size: int, rank: int = 0, world_size: int = 1) -> Tensor:
    """Return a rank's positions for one pass in order, one row for each batch, padded by -1.

    Args:
        length: number of images.
        batch_size: images of one batch of one rank.
        rank: this process.
        world_size: number of processes.
    """
    check_int("batch_size", batch_size)
    check_rank(rank, world_size)
    count = -(-length // (batch_size * world_size))
    positions = torch.full((count * world_size * batch_size,), -1)
    positions[:length] = torch.arange(length)
    return positions.view(count, world_size, batch_size)[:, rank]


def check_rank(rank: int, world_size: int) -> tuple[int, int]:
    """Return both if ``rank`` is one of ``world_size`` processes."""
    check_int("rank", rank, at_least=0)
    check_int("world_size", world_size)
    if rank >= world_size:
        raise ValueError(f"rank={rank} must be below world_size={world_size}")
    return rank, world_size
