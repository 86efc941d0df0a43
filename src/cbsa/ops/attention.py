"""Softmax attention that also returns its log-sum-exp, on PyTorch's fused kernels.

``torch.nn.functional.scaled_dot_product_attention`` hides the log-sum-exp, which the broadcast and the
backward of CBSA are built on; the ATen kernels under it return it. One kernel serves each platform:

- CPU: the flash kernel, every dtype;
- CUDA, float32/bfloat16/float16: the memory-efficient kernel, the one that takes a bias;
- anything else (float64 on CUDA, MPS, …): plain PyTorch, which does hold the matrix of weights.

Shapes: q (B, H, n, d), k and v (B, H, l, d), bias (B, 1 or H, 1, l), added to the scaled scores, in the dtype
of q or in :func:`bias_dtype`'s.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

aten = torch.ops.aten

# Alignments the memory-efficient kernel asks of its operands, in elements.
_CHANNELS = 8
_BIAS = 16
_LSE = 32


def attention(
    q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return softmax(scale·qkᵀ + bias) v (B, H, n, d) and the log-sum-exp of the scores (B, H, n)."""
    if q.device.type == "cpu":
        return aten._scaled_dot_product_flash_attention_for_cpu(  # type: ignore[no-any-return]
            *map(_dense_channels, (q, k, v)), attn_mask=_expand(_dense(bias), q, k), scale=scale
        )
    if _on_efficient_kernel(q):
        d = q.shape[-1]
        out, lse, _, _ = aten._scaled_dot_product_efficient_attention(
            *map(_pad_channels, (q, k, v)), _expand(_align(bias), q, k), True, scale=scale
        )
        return out[..., :d], lse[..., : q.shape[-2]]
    scores = _scores(q, k, scale, bias)
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def attention_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    scale: float,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of :func:`attention`'s first output with respect to q, k and v."""
    if q.device.type == "cpu":
        return aten._scaled_dot_product_flash_attention_for_cpu_backward(  # type: ignore[no-any-return]
            *map(_dense_channels, (grad, q, k, v, out)),
            lse,
            0.0,
            False,
            attn_mask=_expand(_dense(bias), q, k),
            scale=scale,
        )
    if _on_efficient_kernel(q):
        d, n = q.shape[-1], q.shape[-2]
        no_dropout = torch.zeros((), dtype=torch.int64, device=q.device)
        dq, dk, dv, _ = aten._scaled_dot_product_efficient_attention_backward(
            *map(_pad_channels, (grad, q, k, v)),
            _expand(_align(bias), q, k),
            _pad_channels(out).transpose(1, 2).contiguous().transpose(1, 2),  # the layout it was written in
            F.pad(lse, (0, -n % _LSE), value=torch.inf).contiguous(),
            no_dropout,
            no_dropout,
            0.0,
            (True, True, True, False),
            scale=scale,
        )
        return dq[..., :d], dk[..., :d], dv[..., :d]
    weights = (_scores(q, k, scale, bias) - lse.unsqueeze(-1)).exp().to(q.dtype)
    rowdot = (grad * out).sum(-1, keepdim=True)
    ds = scale * weights * (grad @ v.mT - rowdot)
    return ds @ k, ds.mT @ q, weights.mT @ grad


def bias_dtype(q: Tensor) -> torch.dtype:
    """The widest dtype that the bias of attention with queries q may have."""
    return torch.promote_types(q.dtype, torch.float32) if q.device.type == "cpu" else q.dtype


def _on_efficient_kernel(q: Tensor) -> bool:
    return q.device.type == "cuda" and q.dtype != torch.float64 and q.numel() > 0


def _scores(q: Tensor, k: Tensor, scale: float, bias: Tensor | None) -> Tensor:
    scores = (q * scale) @ k.mT
    return scores if bias is None else scores + bias


def _expand(bias: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    """Give the bias its full shape (B, H, n, l) without memory for it."""
    return None if bias is None else bias.expand(*q.shape[:-1], k.shape[-2])


def _dense(bias: Tensor | None) -> Tensor | None:
    """Pack the bias: the CPU kernel copies one with gaps, in its full shape."""
    return None if bias is None else bias.contiguous()


def _align(bias: Tensor | None) -> Tensor | None:
    """Lay the bias out with rows of an aligned length, of which the result shows the first part."""
    return None if bias is None else F.pad(bias, (0, -bias.shape[-1] % _BIAS))[..., : bias.shape[-1]]


def _dense_channels(x: Tensor) -> Tensor:
    """Make the channels of a token adjacent in memory."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _pad_channels(x: Tensor) -> Tensor:
    """Zero channels up to an aligned number, which change neither scores nor results."""
    return F.pad(x, (0, -x.shape[-1] % _CHANNELS)) if x.shape[-1] % _CHANNELS else _dense_channels(x)
