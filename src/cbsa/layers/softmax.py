"""Softmax attention within each head, by the faster of PyTorch's fused kernels and plain products."""

import torch
from torch import Tensor
from torch.nn import functional as F

_PLAIN_WEIGHTS = 1 << 26  # numbers in the matrix of weights up to which plain products may hold it


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attend from q (B, H, M, p) to k and v (B, H, N, p) of real tokens, ``mask`` (B, N), by fused kernels.

    In 16 bits on a CPU the backward of PyTorch's kernel takes two to seven times as long as plain products
    (docs/benchmarks.md): training takes these while the weights are few, with a softmax in float32.
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
        and q.dtype in (torch.bfloat16, torch.float16)
        and q.shape[:-1].numel() * k.shape[-2] <= _PLAIN_WEIGHTS
    )


def _key_mask(mask: Tensor | None) -> Tensor | None:
    """(B, N) token mask as (B, 1, 1, N) for SDPA; a row without any real token lets all (zero) tokens in."""
    if mask is None:
        return None
    return (mask | ~mask.any(-1, keepdim=True))[:, None, None, :]
