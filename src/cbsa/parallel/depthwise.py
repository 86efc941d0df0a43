"""Depth-wise convolution of tokens whose rows are spread over processes."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from cbsa.layers.depthwise import DepthwiseConv
from cbsa.parallel.group import ContextGroup
from cbsa.parallel.halo import rows_above, rows_below
from cbsa.parallel.shard import Shard

_CONVOLVE = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


class ShardedDepthwiseConv(DepthwiseConv):
    """DepthwiseConv on some rows of a grid: it gets those that its filters reach from other processes."""

    group: ContextGroup

    def forward(self, x: Tensor, grid: Sequence[int] | Shard | None = None) -> Tensor:
        """Filter tokens x (B, N, C) of this process, prefix first."""
        return super().forward(x, grid.sizes if isinstance(grid, Shard) else grid)

    def convolve(self, maps: Tensor) -> Tensor:
        """Filter maps (B, C, rows, …): padded along all axes but the first, where neighbours' rows are."""
        reach = self.kernel_size // 2
        above, below = (rows(maps, reach, self.group) for rows in (rows_above, rows_below))
        padding = [0, *[reach] * (self.rank - 1)]
        return _CONVOLVE[self.rank](
            torch.cat([above, maps, below], 2), self.conv.weight, padding=padding, groups=maps.shape[1]
        )
