"""Rows of maps that a convolution reads and that lie in other processes."""

import torch
from torch import Tensor

from cbsa.parallel.collectives import shift
from cbsa.parallel.group import ContextGroup


def rows_above(x: Tensor, count: int, group: ContextGroup) -> Tensor:
    """The ``count`` rows above maps x (B, C, rows, …), from the processes before; zeros above the first row.

    Every process has the same shape but for its rows, and at least one. Where a process has fewer than are
    asked for, rows come through it from those before it: one exchange for each row.
    """
    found, lowest = x[:, :, :0], x[:, :, -count:]
    for row in range(1, count + 1):
        known = torch.cat([found, lowest], 2)
        found = torch.cat([shift(known.narrow(2, known.shape[2] - row, 1), group), found], 2)
    return found


def rows_below(x: Tensor, count: int, group: ContextGroup) -> Tensor:
    """The same below maps x, from the processes after."""
    found, highest = x[:, :, :0], x[:, :, :count]
    for row in range(count):
        known = torch.cat([highest, found], 2)
        found = torch.cat([found, shift(known.narrow(2, row, 1), group, by=-1)], 2)
    return found
