"""Softmax attention within each head, by the faster of PyTorch's fused kernels and plain products."""

import torch
from torch import Tensor
from torch.nn import functional as F

_SHORT = 512  # tokens up to which plain products are faster
_HELD = 1 << 26  # numbers in the matrix of weights that they may hold


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attend from q (B, H, M, p) to k and v (B, H, N, p) of real tokens, ``mask`` (B, N), by fused kernels.

    In bfloat16 on a CPU the backward of PyTorch's kernel takes two to eight times as long as plain products
    while tokens are few (docs/benchmarks.md): training takes these then, with a softmax in float32.
    """
    keys = _key_mask(mask)
    if not _trains_faster_plainly(q, k):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=keys)
    scores = (q * q.shape[-1] ** -0.5) @ k.mT  # (B, H, M, N)
    if keys is not None:
        scores = scores.masked_fill(~keys, -torch.inf)
    weights: Tensor = scores.softmax(-1, dtype=torch.float32).to(v.dtype)
    return weights @ v


def _trains_faster_plainly(q: Tensor, k: Tensor) -> bool:
    return (
        q.requires_grad
        and torch.is_grad_enabled()
        and q.device.type == "cpu"
        and q.dtype == torch.bfloat16
        and k.shape[-2] <= _SHORT
        and q.shape[:-1].numel() * k.shape[-2] <= _HELD
    )


def _key_mask(mask: Tensor | None) -> Tensor | None:
    """(B, N) token mask as (B, 1, 1, N) for SDPA; a row without any real token lets all (zero) tokens in."""
    if mask is None:
        return None
    return (mask | ~mask.any(-1, keepdim=True))[:, None, None, :]
