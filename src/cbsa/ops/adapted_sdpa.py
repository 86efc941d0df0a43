"""``impl="sdpa"`` of the operators of an adapted ViT.

CBSA* is an operator of its own around the two directions of ``sdpa.py``; Agent attention, and CBSA* with a
softmax on the way back, are attentions one after another, which PyTorch differentiates by itself.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import register_flop_formula

from cbsa.ops.custom import differentiate, empty_gradients_kv, empty_results
from cbsa.ops.reference import contract, per_head
from cbsa.ops.sdpa import (
    backward,
    backward_flops,
    extracted,
    forward,
    forward_flops,
    hide_both,
    hide_padding,
    write_gradient,
)


def agent_attention(
    q: Tensor, k: Tensor, v: Tensor, reps: Tensor, mask: Tensor | None, scale: float, sharpness: float
) -> Tensor:
    """Gather, then read; see :func:`cbsa.ops.agent_attention`."""
    return read_values(q, reps, gather_values(k, v, reps, mask, scale), mask, sharpness)  # (B, H, N, d)


def gather_values(k: Tensor, v: Tensor, reps: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """D = softmax_n(s·Q Kᵀ) V (B, H, m, d)."""
    k, v, bias = hide_both(k, v, mask)
    return F.scaled_dot_product_attention(reps, k, v, attn_mask=bias, scale=scale)


def read_values(q: Tensor, reps: Tensor, values: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """softmax_r(s·X_q Qᵀ) V (B, H, N, d) for values (B, H, m, d) of the representatives; padding gets 0."""
    out = F.scaled_dot_product_attention(hide_padding(q, mask)[0], reps, values, scale=scale)
    return out if mask is None else out.masked_fill(~mask[:, None, :, None], 0)


def contract_broadcast_by_softmax(
    k: Tensor,
    v: Tensor,
    reps: Tensor,
    step_rep: Tensor,
    step_out: Tensor,
    mask: Tensor | None,
    scale: float,
    contraction: str,
    eps: float,
) -> Tensor:
    """Gather, contract, read; :func:`cbsa.ops.contract_broadcast_kv` with ``broadcast="softmax"``."""
    r = extracted(reps, gather_values(k, v, reps, mask, scale), step_rep)  # float32 or wider
    if contraction == "softmax":
        c = F.scaled_dot_product_attention(r, r, r, scale=scale)
    else:
        c = contract(r, contraction, scale, eps)
    return read_values(k, reps, (per_head(step_out, c.dtype) * c).to(k.dtype), mask, scale)


def contract_broadcast_kv(
    k: Tensor,
    v: Tensor,
    reps: Tensor,
    step_rep: Tensor,
    step_out: Tensor,
    mask: Tensor | None,
    scale: float,
    contraction: str,
    eps: float,
) -> Tensor:
    """Extract, contract, broadcast; see :func:`cbsa.ops.contract_broadcast_kv`."""
    out: Tensor = _forward(k, v, reps, step_rep, step_out, mask, scale, contraction, eps)[0]
    return out


@torch.library.custom_op("cbsa::contract_broadcast_kv_sdpa", mutates_args=())
def _forward(
    k: Tensor,
    v: Tensor,
    reps: Tensor,
    step_rep: Tensor,
    step_out: Tensor,
    mask: Tensor | None,
    scale: float,
    contraction: str,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output (B, H, N, d), D = AV (B, H, m, d) and the log-sum-exp of A's rows (B, H, m)."""
    return forward(k, v, reps, step_rep, step_out, mask, scale, contraction, eps)


@_forward.register_fake
def _(k: Tensor, v: Tensor, reps: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    return empty_results(k, reps)


@torch.library.custom_op("cbsa::contract_broadcast_kv_sdpa_backward", mutates_args=())
def _backward(
    grad: Tensor,
    k: Tensor,
    v: Tensor,
    reps: Tensor,
    step_rep: Tensor,
    step_out: Tensor,
    mask: Tensor | None,
    delta: Tensor,
    lse: Tensor,
    scale: float,
    contraction: str,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of the output with respect to k, v, reps, step_rep and step_out."""
    dk, dv, grad_reps, grad_step_rep, grad_step_out = backward(
        grad, k, v, reps, step_rep, step_out, mask, delta, lse, scale, contraction, eps
    )
    grad_k, grad_v = write_gradient(k, mask, dk), write_gradient(v, mask, dv)
    return grad_k, grad_v, grad_reps, grad_step_rep, grad_step_out


_backward.register_fake(empty_gradients_kv)
differentiate(_forward, _backward)


@register_flop_formula(torch.ops.cbsa.contract_broadcast_kv_sdpa)
def _flops(k: Any, v: Any, reps: Any, *others: Any, **kwargs: Any) -> int:
    """Count what the fused kernels do, as for ``contract_broadcast``."""
    *_, contraction, _ = others
    return forward_flops(k, reps, contraction)


@register_flop_formula(torch.ops.cbsa.contract_broadcast_kv_sdpa_backward)
def _backward_flops(grad: Any, k: Any, v: Any, reps: Any, *others: Any, **kwargs: Any) -> int:
    """Count the backward, as for ``contract_broadcast``."""
    *_, contraction, _ = others
    return backward_flops(k, reps, contraction)
