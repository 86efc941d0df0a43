"""The convolutional stem of images whose rows are spread over processes."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from cbsa._checks import check_images
from cbsa.layers import ConvStem
from cbsa.parallel.collectives import shift
from cbsa.parallel.group import ContextGroup


class ShardedConvStem(ConvStem):
    """ConvStem on some rows of an image: each stage gets one row from the process above.

    A 3×3 convolution with stride 2 reads one row above those that a process has, and none below: every
    process but the last has a multiple of ``patch_size`` rows, and so an even number in each stage.
    """

    group: ContextGroup

    def forward(self, images: Tensor) -> Tensor:
        """Embed rows of images (B, in_chans, rows, width) as rows of patches (B, dim, h, w)."""
        check_images(images, self.in_chans)
        x = images
        for index in range(0, len(self.proj), 2):
            x = self._stage(x, index)
            x = x if index == len(self.proj) - 1 else self.proj[index + 1](x)
        return x

    def _stage(self, x: Tensor, index: int) -> Tensor:
        """Convolution and BatchNorm of x (B, C, rows, width)."""
        conv: Any = self.proj[index][0]  # type: ignore[index]
        norm: Any = self.proj[index][1]  # type: ignore[index]
        below = x.shape[2] % 2  # a row of zeros, at the bottom of the image alone
        x = F.pad(torch.cat([shift(x[:, :, -1:], self.group), x], 2), (1, 1, 0, below))
        if self.fused:
            return F.conv2d(x, *self._folded(index), stride=2)
        out: Tensor = norm(F.conv2d(x, conv.weight, stride=2))
        return out
