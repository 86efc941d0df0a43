"""Resampling of token grids: position embeddings at another resolution."""

from collections.abc import Sequence

import torch
from torch import Tensor

from cbsa._checks import check_floating, check_grid, check_sizes
from cbsa.ops.precision import accumulation_dtype, no_autocast


def resample_tokens(
    x: Tensor, grid: Sequence[int], size: Sequence[int], rows: tuple[int, int] | None = None
) -> Tensor:
    """Resample tokens (B, h·w, C) on a grid (h, w) to another (p, q), bicubic and antialiased.

    The same as ``torch.nn.functional.interpolate(mode="bicubic", antialias=True)`` on the map of tokens, as
    one small matrix per axis: unlike that, it exports to ONNX with a dynamic size.

    Args:
        x: tokens (B, h·w, C).
        grid: their layout (h, w).
        size: the layout (p, q) wanted.
        rows: first row and the one after the last, if not all p rows are wanted: others are not computed.

    Returns:
        (B, p·q, C), or those of the rows, in the dtype of ``x``.
    """
    check_floating("x", x)
    old, new = check_sizes("grid", grid), check_sizes("size", size)
    if x.dim() != 3 or len(old) != 2 or len(new) != 2:
        raise ValueError(f"expected x (B, N, C) and two sizes each, got {tuple(x.shape)}, {old}, {new}")
    check_grid(old, x.shape[1])
    batch, _, channels = x.shape
    wide = accumulation_dtype(x.dtype)
    with no_autocast(x.device):
        down, across = (_cubic_weights(n, o, wide, x.device) for n, o in zip(old, new, strict=True))
        down = down if rows is None else down[rows[0] : rows[1]]
        maps = across @ x.to(wide).reshape(batch, old[0], old[1], channels)  # (B, h, q, C)
        maps = down @ maps.reshape(batch, old[0], new[1] * channels)  # (B, p, q C)
        return maps.reshape(batch, down.shape[0] * new[1], channels).to(x.dtype)


def _cubic_weights(old: int, new: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Weights (new, old) of antialiased cubic interpolation with a = −½; shrinking widens the kernel."""
    scale = old / new
    stretch: float = torch.sym_max(scale, 1.0)  # type: ignore[assignment]
    center = scale * (torch.arange(new, dtype=dtype, device=device).unsqueeze(-1) + 0.5)
    t: Tensor = (torch.arange(old, dtype=dtype, device=device) + 0.5 - center).abs() / stretch  # (new, old)
    near = (1.5 * t - 2.5) * t * t + 1
    far = ((-0.5 * t + 2.5) * t - 4) * t + 2
    weights = torch.where(t < 1, near, torch.where(t < 2, far, 0.0))
    return weights / weights.sum(-1, keepdim=True)
