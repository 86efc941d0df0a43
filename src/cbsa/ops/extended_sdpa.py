"""Extraction and broadcasts of CBSA one by one, on PyTorch's fused attention: nothing of size N×m is stored.

What happens among the representatives in between is up to the caller, and differentiated by PyTorch.
README.md beside this file derives the gradients.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import register_flop_formula

from cbsa.ops.adapted_sdpa import gather_values, read_values
from cbsa.ops.attention import attention, attention_backward
from cbsa.ops.custom import (
    differentiate,
    differentiate_all,
    empty_broadcast,
    empty_broadcast_gradients,
    empty_extraction,
    empty_extraction_gradients,
)
from cbsa.ops.precision import accumulation_dtype
from cbsa.ops.sdpa import broadcast, hide_padding, write_gradient

_BIAS_PARTS = {torch.bfloat16: 3, torch.float16: 2}  # that make up a number of 22 bits or more
_ALIGNED = 8  # channels that attention kernels like to have a multiple of


def gather(w: Tensor, reps: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """D = A w (B, H, m, d) for tokens w (B, H, N, d) and representatives (B, H, m, d)."""
    return gather_values(w, w, reps, mask, scale)


def extract(w: Tensor, reps: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """D = A w (B, H, m, d) and the log-sum-exp of A's rows (B, H, m), with gradients through both."""
    delta, lse = _extract(w, reps, mask, scale)
    return delta, lse


def broadcast_transposed(
    w: Tensor, reps: Tensor, c: Tensor, lse: Tensor, mask: Tensor | None, scale: float
) -> Tensor:
    """AᵀC (B, H, N, d) for contractions c (B, H, m, d) in float32 or wider.

    ``lse`` only saves computing it again: gradients of w and reps are those through A, log-sum-exp included.
    """
    out: Tensor = _broadcast(w, reps, c, lse.detach(), mask, scale)
    return out


def broadcast_per_token(
    w: Tensor, reps: Tensor, c: Tensor, lse: Tensor, mask: Tensor | None, scale: float
) -> Tensor:
    """Aᵀ with rows of sum 1, times C: softmax_r(s·w Qᵀ − lse) C, also where a row of Aᵀ underflows."""
    return read_values(*carry_bias(w, reps, c, -lse, scale), mask, scale)[..., : w.shape[-1]]


def broadcast_by_softmax(
    w: Tensor, reps: Tensor, c: Tensor, lse: Tensor | None, mask: Tensor | None, scale: float
) -> Tensor:
    """softmax_r(s·w Qᵀ) C, as Agent attention broadcasts; ``lse`` is of no use to it."""
    return read_values(w, reps, c.to(w.dtype), mask, scale)


def carry_bias(
    w: Tensor, reps: Tensor, c: Tensor, bias: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, representatives and values with channels by which scores s·w Qᵀ get a bias (B, H, m).

    Attention kernels take no bias per key that has a gradient, and one in the dtype of the tokens alone: a
    log-sum-exp rounded to bfloat16 would spoil the weights. Here tokens have a constant in channels of their
    own, a power of 2, and representatives the bias over it, in as many rounded parts as it takes: products of
    attention add it up in float32, and its gradient is one of the representatives' channels.
    """
    parts, more = _BIAS_PARTS.get(w.dtype, 1), carried_channels(w)
    constant = 2.0 ** math.ceil(-math.log2(scale))  # the bias over s·constant is no larger than itself
    ones = torch.arange(more, device=w.device).lt(parts).to(w.dtype) * constant
    rest, channels = bias / (scale * constant), []
    for _ in range(parts):
        channels.append(rest.to(w.dtype))
        rest = (rest - channels[-1]).detach()  # the first part has the gradient of all
    tokens = torch.cat([w, ones.expand(*w.shape[:-1], more)], -1)
    carried = F.pad(torch.stack(channels, -1), (0, more - parts))  # (B, H, m, more)
    return tokens, torch.cat([reps, carried], -1), F.pad(c.to(w.dtype), (0, more))


def carried_channels(w: Tensor) -> int:
    """Channels that :func:`carry_bias` adds to those of tokens w: the bias, and what alignment takes."""
    parts = _BIAS_PARTS.get(w.dtype, 1)
    return parts + -(w.shape[-1] + parts) % _ALIGNED


@torch.library.custom_op("cbsa::extract_sdpa", mutates_args=())
def _extract(w: Tensor, reps: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """Return D (B, H, m, d) and the log-sum-exp of A's rows (B, H, m)."""
    w, bias = hide_padding(w, mask)
    delta, lse = attention(reps, w, w, scale, bias)
    return delta.to(w.dtype).contiguous(), lse.contiguous()


_extract.register_fake(empty_extraction)


@torch.library.custom_op("cbsa::extract_sdpa_backward", mutates_args=())
def _extract_backward(
    grad: Tensor | None,
    grad_lse: Tensor | None,
    w: Tensor,
    reps: Tensor,
    mask: Tensor | None,
    delta: Tensor,
    lse: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Return the gradients with respect to w and reps: dS = A∘(dD wᵀ − δ + dlse)."""
    grad = torch.zeros_like(delta) if grad is None else grad
    tokens, bias = hide_padding(w, mask)
    dq, dk, dv = backward_of_extraction(grad, grad_lse, tokens, reps, mask, bias, delta, lse, scale)
    return write_gradient(w, mask, dk, dv), dq.to(reps.dtype).contiguous()


def backward_of_extraction(
    grad: Tensor,
    grad_lse: Tensor | None,
    tokens: Tensor,
    reps: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    delta: Tensor,
    lse: Tensor,
    scale: float,
    share: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the scores' queries (the representatives), keys and values, the last two of the tokens.

    With D and the log-sum-exp over more tokens than these, the first is what these tokens add to it, and of
    what depends on D alone a ``share``.
    """
    wide = accumulation_dtype(tokens.dtype)
    dq, dk, dv = attention_backward(grad, reps, tokens, tokens, delta, lse, scale, bias)
    if grad_lse is not None:
        along = scale * grad_lse.unsqueeze(-1)  # (B, H, m, 1)
        dq = dq.to(wide) + share * along * delta
        dk = dk.to(wide) + broadcast(tokens, reps, along * reps, lse, None, mask, scale)
    return dq, dk, dv


_extract_backward.register_fake(empty_extraction_gradients)
differentiate_all(_extract, _extract_backward)


@torch.library.custom_op("cbsa::broadcast_sdpa", mutates_args=())
def _broadcast(w: Tensor, reps: Tensor, c: Tensor, lse: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Return AᵀC (B, H, N, d)."""
    return broadcast(hide_padding(w, mask)[0], reps, c, lse, None, mask, scale)


_broadcast.register_fake(empty_broadcast)


@torch.library.custom_op("cbsa::broadcast_sdpa_backward", mutates_args=())
def _broadcast_backward(
    grad: Tensor,
    w: Tensor,
    reps: Tensor,
    c: Tensor,
    lse: Tensor,
    mask: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients with respect to w, reps and c: dS = A∘(C Gᵀ − C·U), U = A G = dC."""
    tokens, bias = hide_padding(w, mask)
    grad, _ = hide_padding(grad, mask)
    u, _ = attention(reps, tokens, grad, scale, bias)
    dq, dk, _ = attention_backward(c.to(w.dtype), reps, tokens, grad, u, lse, scale, bias)
    return write_gradient(w, mask, dk), dq.contiguous(), u.to(c.dtype).contiguous()


_broadcast_backward.register_fake(empty_broadcast_gradients)
differentiate(_broadcast, _broadcast_backward)


def product_flops(w: Any, reps: Any) -> int:
    """Operations of one product of tokens (B, H, N, d) and representatives (B, H, m, d)."""
    batch, heads, n, d = w
    return int(2 * batch * heads * n * reps[2] * d)


@register_flop_formula([torch.ops.cbsa.extract_sdpa, torch.ops.cbsa.broadcast_sdpa])
def _flops(w: Any, reps: Any, *others: Any, **kwargs: Any) -> int:
    """An attention each way: two products."""
    return 2 * product_flops(w, reps)


@register_flop_formula(torch.ops.cbsa.extract_sdpa_backward)
def _extract_flops(grad: Any, grad_lse: Any, w: Any, reps: Any, *others: Any, **kwargs: Any) -> int:
    """The backward of an attention, and one more attention for the gradient of the log-sum-exp."""
    return (5 if grad_lse is None else 7) * product_flops(w, reps)


@register_flop_formula(torch.ops.cbsa.broadcast_sdpa_backward)
def _broadcast_flops(grad: Any, w: Any, reps: Any, *others: Any, **kwargs: Any) -> int:
    """An attention, which gathers U, and the backward of one."""
    return 7 * product_flops(w, reps)
