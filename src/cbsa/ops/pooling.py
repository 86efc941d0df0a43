"""Average pooling of tokens on a grid of any rank: the initial guess of the representatives."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from cbsa._checks import check_floating, check_grid, check_mask, check_sizes
from cbsa.ops.precision import accumulation_dtype, no_autocast


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

    It is computed as one small matrix product per axis. Unlike PyTorch's own pooling this exports to ONNX
    with a dynamic grid, and its backward is deterministic on every device.

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
    if x.dim() != 3:
        raise ValueError(f"x must have shape (B, N, C), got {tuple(x.shape)}")
    sizes, bins = check_sizes("grid", grid), check_sizes("size", size)
    if len(sizes) != len(bins):
        raise ValueError(f"grid={sizes} and size={bins} must have the same rank")
    batch, num_tokens, _ = x.shape
    check_grid(sizes, num_tokens)
    check_mask(mask, batch, num_tokens)

    accumulate = accumulation_dtype(x.dtype)
    with no_autocast(x.device):
        if mask is None:
            windows = [_windows(n, o, x.device) for n, o in zip(sizes, bins, strict=True)]  # (o, n)
            counts = windows[0].sum(-1)
            for axis in windows[1:]:
                counts = (counts.unsqueeze(-1) * axis.sum(-1)).flatten()
            counts = counts.unsqueeze(-1)  # (m, 1)
        else:
            real = mask.reshape(batch, *sizes)  # (B, *grid)
            x = x.masked_fill(~mask.unsqueeze(-1), 0)
            windows = [_masked_windows(real, axis, o) for axis, o in enumerate(bins)]  # (B, 1, o, n)
            counts = _window_sums(mask.to(accumulate).unsqueeze(-1), sizes, windows)  # (B, m, 1)
            counts = counts.clamp_min(1)
        sums = _window_sums(x, sizes, windows)  # (B, m, C)
        return (sums / counts).to(x.dtype)


def _windows(n: int, bins: int, device: torch.device) -> Tensor:
    """Membership (bins, n) of ``n`` cells in the windows: ⌊i·n/o⌋ ≤ r < ⌈(i+1)·n/o⌉, without a division."""
    r = torch.arange(n, device=device)
    i = torch.arange(bins, device=device).unsqueeze(-1)
    return ((r + 1) * bins > i * n) & (r * bins < (i + 1) * n)


def _masked_windows(real: Tensor, axis: int, bins: int) -> Tensor:
    """Membership (B, 1, bins, n) along one axis of ``real`` (B, *grid); slices of padding do not count."""
    others = [a + 1 for a in range(real.dim() - 1) if a != axis]
    alive = real.any(dim=others) if others else real  # (B, n)
    r = (alive.cumsum(-1) - 1).unsqueeze(-2)  # (B, 1, n): rank among the slices that count
    n = alive.sum(-1)[:, None, None]  # (B, 1, 1)
    i = torch.arange(bins, device=real.device).unsqueeze(-1)
    member = ((r + 1) * bins > i * n) & (r * bins < (i + 1) * n) & alive.unsqueeze(-2)
    return member.unsqueeze(1)


def _window_sums(x: Tensor, grid: tuple[int, ...], windows: Sequence[Tensor]) -> Tensor:
    """Sum x (B, N, C) over the windows, one axis at a time, the fastest-running axis first.

    The 0/1 memberships are exact in every dtype. The first product stays in the dtype of ``x`` (it is the
    only one that reads all tokens), the rest accumulates in float32 or wider.
    """
    batch, _, channels = x.shape
    accumulate = accumulation_dtype(x.dtype)
    trailing = channels
    for axis in reversed(range(len(grid))):
        rows = x.reshape(batch, math.prod(grid[:axis]), grid[axis], trailing)
        x = (windows[axis].to(rows.dtype) @ rows).to(accumulate)  # (B, slices, o, trailing)
        trailing *= x.shape[-2]
    return x.reshape(batch, trailing // channels, channels)
