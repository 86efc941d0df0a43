"""Channels scaled by token statistics: what ToST's attention computes within each head."""

import torch
from torch import Tensor

from cbsa.ops.precision import accumulation_dtype, no_autocast
from cbsa.ops.sums import HERE, TokenSums

_SMALLEST_SQUARE = 1e-24  # of a channel's norm over the tokens, which is divided by


def token_statistics(w: Tensor, temp: Tensor, mask: Tensor | None, sums: TokenSums = HERE) -> Tensor:
    """−(w∘Π) / (1 + Σ_n Π̂(n)·w²), with the assignment Π of :class:`cbsa.layers.TSSA`.

    Args:
        w: projected tokens (B, H, N, p).
        temp: temperature of each head (H, 1).
        mask: (B, N) boolean, True = a real token.
        sums: where the tokens lie.

    Returns:
        (B, H, N, p) in the dtype of ``w``.
    """
    dtype, w = w.dtype, w.to(accumulation_dtype(w.dtype))
    if mask is not None:
        w = w.masked_fill(~mask[:, None, :, None], 0)
    square = w.square()
    norms = sums.total(sums.counted(square).sum(-2, keepdim=True)).clamp_min(_SMALLEST_SQUARE)  # (B, H, 1, p)
    energy = (square / norms).sum(-1)  # (B, H, N)
    membership = (energy * temp).softmax(1).unsqueeze(-1)  # Π, (B, H, N, 1)
    if mask is not None:
        membership = membership.masked_fill(~mask[:, None, :, None], 0)
    mine = sums.counted(membership)
    with no_autocast(w.device):
        gathered = torch.cat([mine.mT @ sums.counted(square), mine.sum(-2, keepdim=True)], -1)
    gathered = sums.total(gathered)  # Σ Π w² and Σ Π, (B, H, 1, p + 1)
    moments = gathered[..., :-1] / (gathered[..., -1:] + 1e-8)
    return (-(w * membership) / (1 + moments)).to(dtype)
