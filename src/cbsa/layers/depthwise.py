"""Depth-wise convolution of tokens on their grid."""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from cbsa._checks import check_grid, check_int

_CONVOLUTIONS: dict[int, type[nn.Conv1d] | type[nn.Conv2d] | type[nn.Conv3d]] = {
    1: nn.Conv1d,
    2: nn.Conv2d,
    3: nn.Conv3d,
}


class DepthwiseConv(nn.Module):
    """A filter for each channel over the neighbours of a patch, without bias; prefix tokens get 0.

    What attention through few representatives blurs, it puts back: local detail, in O(N).

    Args:
        channels: width of the tokens.
        kernel_size: side of the filters, odd.
        rank: rank of the grid, from 1 to 3.
        num_prefix_tokens: tokens before the patches.
    """

    def __init__(
        self, channels: int, kernel_size: int = 3, *, rank: int = 2, num_prefix_tokens: int = 1
    ) -> None:
        super().__init__()
        check_int("kernel_size", kernel_size)
        if kernel_size % 2 == 0:
            raise ValueError(f"kernel_size={kernel_size}: expected an odd number, so that it has a centre")
        if rank not in _CONVOLUTIONS:
            raise ValueError(f"rank={rank}: expected the rank of a grid, from 1 to 3")
        self.kernel_size, self.rank, self.num_prefix_tokens = kernel_size, rank, num_prefix_tokens
        self.conv = _CONVOLUTIONS[rank](
            channels, channels, kernel_size, padding=kernel_size // 2, groups=channels, bias=False
        )

    def forward(self, x: Tensor, grid: Sequence[int] | None = None) -> Tensor:
        """Filter tokens x (B, N, C), prefix first; ``grid=None`` stands for equal sides."""
        patches = x[:, self.num_prefix_tokens :]
        sizes = check_grid(grid, patches.shape[1], self.rank)
        if len(sizes) != self.rank:
            raise ValueError(f"grid={sizes}: the convolution runs over {self.rank} axes")
        maps = patches.transpose(1, 2).reshape(x.shape[0], x.shape[2], *sizes)  # (B, C, *grid)
        out = self.convolve(maps).flatten(2).transpose(1, 2)
        return F.pad(out, (0, 0, self.num_prefix_tokens, 0))

    def convolve(self, maps: Tensor) -> Tensor:
        """Filter maps (B, C, *grid)."""
        out: Tensor = self.conv(maps)
        return out

    def extra_repr(self) -> str:
        """Describe the layer in ``print(model)``."""
        return f"num_prefix_tokens={self.num_prefix_tokens}"
