"""The convolutional stem of images whose rows are spread over processes."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from cbsa.layers import ConvStem
from cbsa.layers.tiles import embed_in_tiles
from cbsa.parallel.collectives import shift
from cbsa.parallel.convert import as_class
from cbsa.parallel.group import ContextGroup
from cbsa.parallel.halo import rows_above


class ShardedConvStem(ConvStem):
    """ConvStem on some rows of an image: each stage gets one row from the process above.

    A 3×3 convolution with stride 2 reads one row above those that a process has, and none below: every
    process but the last has a multiple of ``patch_size`` rows, and so an even number in each stage.
    """

    group: ContextGroup

    def _convolve(self, x: Tensor, index: int) -> Tensor:
        """Convolution and BatchNorm of x (B, C, rows, width)."""
        conv: Any = self.proj[index][0]  # type: ignore[index]
        norm: Any = self.proj[index][1]  # type: ignore[index]
        below = x.shape[2] % 2  # a row of zeros, at the bottom of the image alone
        x = F.pad(torch.cat([rows_above(x, 1, self.group), x], 2), (1, 1, 0, below))
        if self.fused:
            return F.conv2d(x, *self._folded(index), stride=2)
        out: Tensor = norm(F.conv2d(x, conv.weight, stride=2))
        return out

    def _runs_on_kernels(self, x: Tensor, index: int) -> bool:
        """Kernels of our own know no rows of other processes."""
        return False

    def in_tiles(self, images: Tensor, rows: int) -> Tensor:
        """The map of this process's rows, so many rows of patches at a time.

        The patches above them come from the process above, at once and as pixels: tiles then need no other.
        """
        p = self.patch_size
        lowest = images[:, :, -p:]  # the last process has none below, and may have fewer
        above = shift(F.pad(lowest, (0, 0, 0, p - lowest.shape[2])), self.group)
        alone = as_class(self, ConvStem)
        return embed_in_tiles(alone, images, rows, above if self.group.rank > 0 else None)
