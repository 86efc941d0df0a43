"""Average pooling of tokens on a grid of any rank: the initial guess of the representatives."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from cbsa._checks import check_floating, check_grid, check_mask, check_sizes
from cbsa._tracing import is_exporting, is_transformed
from cbsa.ops.availability import kernels_run_on
from cbsa.ops.precision import accumulation_dtype, no_autocast, solve_dtype

# Up to so many windows along an axis a matrix is cheap, and weighs little beside the tokens.
_MATRIX_WINDOWS = 32


def pool_tokens(
    x: Tensor,
    grid: int | Sequence[int],
    size: int | Sequence[int],
    mask: Tensor | None = None,
) -> Tensor:
    """Average tokens over the windows of adaptive average pooling.

    Along an axis of ``n`` tokens and ``o`` windows, window ``i`` is ``[⌊i·n/o⌋, ⌈(i+1)·n/o⌉)``: the rule of
    ``torch.nn.AdaptiveAvgPool*d``, for any ``n`` and ``o`` (windows overlap when ``o`` does not divide
    ``n`` and repeat tokens when ``o > n``).

    On a GPU, sequences and images without a mask are pooled by a Triton kernel (not in float64, in exported
    graphs, under ``torch.func`` transforms or in forward-mode differentiation, nor if the environment has
    CBSA_KERNELS=0 when cbsa is imported). Elsewhere windows that divide the grid are reduced directly.
    Otherwise, along an axis of few windows it is a product with a small 0/1 matrix, along one of many it goes
    by prefix sums: nothing of size N×m. Unlike PyTorch's own pooling this exports to ONNX with a dynamic
    grid, and its backward is deterministic on every device.

    Args:
        x: tokens (B, N, C), N = prod(grid), the last axis of the grid running fastest.
        grid: layout of the tokens: ``(h, w)``, ``(n,)`` or ``n`` for a sequence, ``(t, h, w)`` for a volume.
        size: layout of the windows, of the same rank.
        mask: (B, N) boolean, True = a real token. Padding never enters an average, and a row, column or
            slice of the grid that is all padding does not count for the windows: padding an image leaves
            its pooled tokens as they are. A window without a real token is 0.

    Returns:
        (B, prod(size), C), in the dtype of ``x``.
    """
    check_floating("x", x)
    if x.dim() != 3 or x.shape[2] < 1:
        raise ValueError(f"x must have shape (B, N, C) with C >= 1, got {tuple(x.shape)}")
    sizes, bins = check_sizes("grid", grid), check_sizes("size", size)
    if len(sizes) != len(bins):
        raise ValueError(f"grid={sizes} and size={bins} must have the same rank")
    batch, num_tokens, _ = x.shape
    check_grid(sizes, num_tokens)
    check_mask(mask, batch, num_tokens, x.device)

    with no_autocast(x.device):
        if mask is None and _kernels_serve(x, len(sizes)):
            from cbsa.ops import fused_pooling

            pooled: Tensor = fused_pooling.pool_tokens(x, sizes, bins)
            return pooled
        if mask is None and not is_exporting() and all(n % o == 0 for n, o in zip(sizes, bins, strict=True)):
            return _average_of_equal_windows(x, sizes, bins)
        if mask is None:
            axes = [Axis.whole(n, x.device) for n in sizes]
            sums, counts = window_sums(x, axes, bins), window_sizes(sizes, bins, x.device)
        else:
            axes = [Axis.of_slices(alive) for alive in alive_slices(mask.reshape(batch, *sizes))]
            sums = window_sums(x.masked_fill(~mask.unsqueeze(-1), 0), axes, bins)
            counts = window_sums(mask.to(torch.float32).unsqueeze(-1), axes, bins).clamp_min(1)
        return (sums / counts).to(x.dtype)


def pool_heads(
    w: Tensor,
    grid: Sequence[int],
    size: Sequence[int],
    first: int = 0,
    mask: Tensor | None = None,
) -> Tensor:
    """Representatives (B, H, m, d) pooled from the tokens of w (B, H, N, d) from ``first`` on.

    The mask (B, N) is that of all tokens. See :func:`pool_tokens`.
    """
    patches = slice(first, first + math.prod(grid))
    tokens = w.transpose(1, 2).flatten(2)[:, patches]  # (B, h·w, H d), a view of a projection's output
    pooled = pool_tokens(tokens, grid, size, None if mask is None else mask[:, patches])
    return pooled.view(*pooled.shape[:2], w.shape[1], w.shape[3]).transpose(1, 2)


def _kernels_serve(x: Tensor, rank: int) -> bool:
    """Whether the Triton kernels (``fused_pooling.py``) can pool x on a grid of this rank."""
    return (
        x.device.type == "cuda"
        and rank <= 2
        and x.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and not is_exporting()
        and not is_transformed(x)
        and kernels_run_on(x.device)
    )


def _average_of_equal_windows(x: Tensor, grid: Sequence[int], bins: Sequence[int]) -> Tensor:
    """Average x (B, N, C) over windows that divide the grid: a plain reduction, which compilers fuse."""
    sides = [(windows, n // windows) for n, windows in zip(grid, bins, strict=True)]
    tiles = x.reshape(x.shape[0], *(side for pair in sides for side in pair), x.shape[2])
    within, wide = tuple(range(2, 2 + 2 * len(sides), 2)), accumulation_dtype(x.dtype)
    if x.device.type == "cpu" and x.dtype != wide and not torch.compiler.is_compiling():
        # A CPU averages 16 bits by way of a wide copy: that of one row of windows at a time.
        rows = [row.mean([axis - 1 for axis in within], dtype=wide) for row in tiles.unbind(1)]
        average = torch.stack(rows, 1)
    else:
        average = tiles.mean(within, dtype=wide)  # (B, *bins, C)
    return average.reshape(x.shape[0], math.prod(bins), x.shape[2]).to(x.dtype)


class Axis(NamedTuple):
    """An axis of the grid, or the part of one that lies here: which slices count, and for which windows.

    Attributes:
        alive: (B or 1, n) boolean, which of the n slices here hold a real token.
        before: (B or 1, 1), how many such slices of the axis lie before these.
        total: (B or 1, 1), how many the whole axis has: they are what the windows divide.
    """

    alive: Tensor
    before: Tensor
    total: Tensor

    @classmethod
    def whole(cls, n: int, device: torch.device) -> "Axis":
        """All n slices of an axis without padding."""
        return cls.of_slices(torch.ones(1, n, dtype=torch.bool, device=device))

    @classmethod
    def of_slices(cls, alive: Tensor) -> "Axis":
        """All slices of an axis."""
        total = alive.sum(-1, keepdim=True)
        return cls(alive, torch.zeros_like(total), total)


def window_sizes(grid: Sequence[int], bins: Sequence[int], device: torch.device) -> Tensor:
    """How many tokens each window holds, (m, 1)."""
    sizes = torch.ones(1, dtype=torch.int64, device=device)
    for n, windows in zip(grid, bins, strict=True):
        i = torch.arange(windows, device=device)
        lengths = ((i + 1) * n + windows - 1) // windows - i * n // windows
        sizes = (sizes.unsqueeze(-1) * lengths).flatten()
    return sizes.unsqueeze(-1)


def alive_slices(real: Tensor) -> list[Tensor]:
    """For each axis of ``real`` (B, *grid), which of its slices hold a real token, (B, n)."""
    axes = range(1, real.dim())
    return [real.movedim(axis, 1).flatten(2).any(-1) if real.dim() > 2 else real for axis in axes]


def window_sums(x: Tensor, axes: Sequence[Axis], bins: Sequence[int]) -> Tensor:
    """Sum x (B, N, C) over the windows, one axis at a time, the fastest-running axis first."""
    batch, _, channels = x.shape
    grid = [axis.alive.shape[-1] for axis in axes]
    for i in reversed(range(len(grid))):
        leading, trailing = math.prod(grid[:i]), math.prod(bins[i + 1 :]) * channels
        rows = x.reshape(batch, leading, grid[i], trailing)
        sums = _sums_by_product if bins[i] <= _MATRIX_WINDOWS else _sums_by_prefix
        x = sums(rows, axes[i], bins[i])  # (B, leading, windows, trailing)
    return x.reshape(batch, math.prod(bins), channels)


def _sums_by_product(rows: Tensor, axis: Axis, windows: int) -> Tensor:
    """Window sums of rows (B, L, n, T) by a 0/1 matrix, which is exact in every dtype.

    The product stays in the dtype of the rows, accumulating in float32, except in float16, where sums of many
    tokens leave the range; what comes out is float32 or wider.
    """
    rank = (axis.before + axis.alive.cumsum(-1) - 1).unsqueeze(-2)  # (B, 1, n)
    count = axis.total.unsqueeze(-1)  # (B, 1, 1)
    i = torch.arange(windows, device=rows.device).unsqueeze(-1)
    # ⌊i·count/windows⌋ ≤ rank < ⌈(i+1)·count/windows⌉, without a division
    inside = ((rank + 1) * windows > i * count) & (rank * windows < (i + 1) * count)
    member = (inside & axis.alive.unsqueeze(-2)).unsqueeze(1)  # (B or 1, 1, windows, n)
    rows = rows.float() if rows.dtype == torch.float16 else rows
    return (member.to(rows.dtype) @ rows).to(accumulation_dtype(rows.dtype))


def _sums_by_prefix(rows: Tensor, axis: Axis, windows: int) -> Tensor:
    """Window sums of rows (B, L, n, T) as differences of prefix sums, in float64 where the device has it."""
    wide = solve_dtype(rows.device)
    rows, dtype = rows.to(wide), accumulation_dtype(rows.dtype)
    prefix = torch.cat([torch.zeros_like(rows[:, :, :1]), rows.cumsum(2)], dim=2)
    ranks = axis.alive.cumsum(-1)  # (B, n)
    i = torch.arange(windows, device=rows.device)
    first = i * axis.total // windows - axis.before  # (B, windows), counted from the first slice here
    last = ((i + 1) * axis.total + windows - 1) // windows - axis.before
    # Position of the slice of each rank: dead slices add nothing, wherever they are counted.
    start, stop = (torch.searchsorted(ranks, edge, right=True) for edge in (first, last))
    element = torch.arange(rows.shape[0], device=rows.device)[:, None, None]
    leading = torch.arange(rows.shape[1], device=rows.device)[:, None]
    sums = prefix[element, leading, stop[:, None]] - prefix[element, leading, start[:, None]]
    return sums.to(dtype)  # (B, L, windows, T)
