"""The convolutional stem on an image in tiles, so that its activations need not be held at once."""

import torch
from torch import Tensor

from cbsa.layers.conv_stem import ConvStem
from cbsa.ops.precision import autocast_dtype


def tile_rows(stem: ConvStem, images: Tensor, most_bytes: int) -> int:
    """Rows of patches of which the stem's widest stage, input and output of GELU, takes ``most_bytes``."""
    batch, _, _, width = images.shape
    itemsize = (autocast_dtype(images.device) or images.dtype).itemsize
    channels: int = stem.proj[0][0].out_channels  # type: ignore[index, assignment, union-attr]
    row = 2 * batch * channels * (stem.patch_size // 2) * -(-width // 2) * itemsize
    return max(1, most_bytes // max(1, row))  # an empty batch takes nothing


def embed_in_tiles(stem: ConvStem, images: Tensor, rows: int, above: Tensor | None = None) -> Tensor:
    """The map (B, dim, h, w) of images (B, C, height, width), so many rows of patches at a time.

    Exact for statistics that do not depend on the image. A tile gets the patches above it as well: of a 3×3
    convolution with stride 2 after the other, the first row of patches alone sees what is above the tile.
    Those ``above`` the images (B, C, patch_size, width) are given if the images are a part of larger ones.
    """
    p = stem.patch_size
    height = -(-images.shape[2] // p)
    first = images[:, :, : rows * p]
    first = stem(first) if above is None else stem(torch.cat([above, first], 2))[:, :, 1:]
    batch, dim, _, width = first.shape
    layout = torch.channels_last if first.stride(1) == 1 else torch.contiguous_format
    maps = torch.empty(
        (batch, dim, height, width), dtype=first.dtype, device=first.device, memory_format=layout
    )
    maps[:, :, :rows] = first
    for start in range(rows, height, rows):
        maps[:, :, start : start + rows] = stem(images[:, :, (start - 1) * p : (start + rows) * p])[:, :, 1:]
    return maps
