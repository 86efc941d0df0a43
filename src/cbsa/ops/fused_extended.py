"""Extraction and broadcasts of CBSA one by one in Triton kernels, as ``extended_sdpa.py`` has them.

The kernels are those of ``contract_broadcast`` and of Agent attention. The log-sum-exp is to the base 2 here.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from cbsa.ops import fused
from cbsa.ops.custom import (
    differentiate,
    differentiate_all,
    empty_broadcast,
    empty_broadcast_gradients,
    empty_extraction,
    empty_extraction_gradients,
    launched_on,
    token_major,
)
from cbsa.ops.extended_sdpa import carried_channels, carry_bias, product_flops
from cbsa.ops.kernels import launch, launch_agent

_LOG2_E = math.log2(math.e)


def refuse(w: Tensor, scale: float, contraction: str, broadcast: str) -> None:
    """Raise an error that names what keeps the kernels from being used, if anything does."""
    fused.refuse(fused.why_not(w, scale, contraction))
    d, most = w.shape[-1], fused.MAX_HEAD_DIM
    if broadcast == "per_token" and d + carried_channels(w) > most:
        fused.refuse(
            f"with broadcast='per_token' supports heads of up to {most} dimensions, {carried_channels(w)} of "
            f"which it takes for itself in {w.dtype}, not {d}"
        )


def gather(w: Tensor, reps: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """D = A w (B, H, m, d)."""
    return extract(w, reps, mask, scale)[0]


def extract(w: Tensor, reps: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """D = A w (B, H, m, d) and the log₂-sum-exp of A's rows (B, H, m), with gradients through both."""
    delta, lse = _extract(w, reps, mask, scale)
    return delta, lse


def broadcast_transposed(
    w: Tensor, reps: Tensor, c: Tensor, lse: Tensor, mask: Tensor | None, scale: float
) -> Tensor:
    """AᵀC (B, H, N, d); gradients are those through A, log-sum-exp included."""
    out: Tensor = _broadcast(w, reps, c, lse.detach(), mask, scale)
    return out


def broadcast_per_token(
    w: Tensor, reps: Tensor, c: Tensor, lse: Tensor, mask: Tensor | None, scale: float
) -> Tensor:
    """Aᵀ with rows of sum 1, times C."""
    out: Tensor = _read(*carry_bias(w, reps, c, lse / -_LOG2_E, scale), mask, scale)
    return out[..., : w.shape[-1]]


def broadcast_by_softmax(
    w: Tensor, reps: Tensor, c: Tensor, lse: Tensor | None, mask: Tensor | None, scale: float
) -> Tensor:
    """softmax_r(s·w Qᵀ) C, as Agent attention broadcasts; ``lse`` is of no use to it."""
    out: Tensor = _read(w, reps, c.to(w.dtype), mask, scale)
    return out


@torch.library.custom_op("cbsa::extract_triton", mutates_args=())
def _extract(w: Tensor, reps: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """Return D (B, H, m, d) and the log₂-sum-exp of A's rows (B, H, m)."""
    delta, lse = empty_extraction(w, reps)
    if w.numel() > 0:
        with launched_on(w.device):
            launch.extract_all(launch.Problem(w, None, reps, mask, scale, False), delta, lse)
    return delta, lse


_extract.register_fake(empty_extraction)


@torch.library.custom_op("cbsa::extract_triton_backward", mutates_args=())
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
    grad_w, grad_reps = empty_extraction_gradients(grad, grad_lse, w, reps)
    if w.numel() > 0:
        grad = torch.zeros_like(delta) if grad is None else grad.contiguous()
        row_dot = (grad.float() * delta).sum(-1)
        if grad_lse is not None:
            row_dot = row_dot - _LOG2_E * grad_lse
        with launched_on(w.device):
            call = launch.Problem(w, None, reps, mask, scale, False)
            of_reps = (lse, grad, grad, row_dot)  # dD in the place of κC, which is not read
            launch.spread(call, None, of_reps, None, (grad_w, None), grad_reps, call.ahead)
    return grad_w, grad_reps


_extract_backward.register_fake(empty_extraction_gradients)
differentiate_all(_extract, _extract_backward)


@torch.library.custom_op("cbsa::broadcast_triton", mutates_args=())
def _broadcast(w: Tensor, reps: Tensor, c: Tensor, lse: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Return AᵀC (B, H, N, d)."""
    out = token_major(w)
    if w.numel() > 0:
        with launched_on(w.device):
            call = launch.Problem(w, None, reps, mask, scale, False)
            launch.broadcast(call, lse, c.to(w.dtype).contiguous(), out)
    return out


_broadcast.register_fake(empty_broadcast)


@torch.library.custom_op("cbsa::broadcast_triton_backward", mutates_args=())
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
    grad_w, grad_reps, u = empty_broadcast_gradients(grad, w, reps, c)
    if w.numel() > 0:
        grad, c = launch.unit_rows(grad), c.to(w.dtype).contiguous()
        with launched_on(w.device):
            call = launch.Problem(w, None, reps, mask, scale, False)
            launch.add_splits(launch.gather(call, grad, lse), None, u)
            of_reps = (lse, c, torch.zeros_like(c), (c * u).sum(-1))  # nothing is gathered here: dD is 0
            launch.spread(call, grad, of_reps, None, (grad_w, None), grad_reps, call.ahead)
    return grad_w, grad_reps, u


_broadcast_backward.register_fake(empty_broadcast_gradients)
differentiate(_broadcast, _broadcast_backward)


@torch.library.custom_op("cbsa::read_triton", mutates_args=())
def _read(w: Tensor, reps: Tensor, values: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Return softmax_r(s·w Qᵀ) V (B, H, N, d) for values (B, H, m, d) of the representatives."""
    out = token_major(w)
    if w.numel() > 0:
        with launched_on(w.device):
            call = launch.Problem(w, None, reps, mask, scale, False)
            launch_agent.broadcast(call, call.w, values.contiguous(), scale, out)
    return out


_read.register_fake(empty_broadcast)


@torch.library.custom_op("cbsa::read_triton_backward", mutates_args=())
def _read_backward(
    grad: Tensor, w: Tensor, reps: Tensor, values: Tensor, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients with respect to w, reps and values."""
    grad_w, *_ = empty = empty_broadcast_gradients(grad, w, reps, values)
    if w.numel() == 0:
        return empty
    with launched_on(w.device):
        call = launch.Problem(w, None, reps, mask, scale, False)
        grad_values, grad_reps, _ = launch_agent.broadcast_backward(
            call, launch.unit_rows(grad), call.w, values.contiguous(), scale, grad_w
        )
    return grad_w, grad_reps.to(reps.dtype), grad_values


_read_backward.register_fake(empty_broadcast_gradients)
differentiate(_read, _read_backward)


@register_flop_formula(
    [torch.ops.cbsa.extract_triton, torch.ops.cbsa.broadcast_triton, torch.ops.cbsa.read_triton]
)
def _flops(w: Any, reps: Any, *others: Any, **kwargs: Any) -> int:
    """Scores, and a product with their weights."""
    return 2 * product_flops(w, reps)


@register_flop_formula(torch.ops.cbsa.extract_triton_backward)
def _extract_flops(grad: Any, grad_lse: Any, w: Any, reps: Any, *others: Any, **kwargs: Any) -> int:
    """Scores, their gradient, and a product with it for each of its operands and for the values."""
    return 5 * product_flops(w, reps)


@register_flop_formula([torch.ops.cbsa.broadcast_triton_backward, torch.ops.cbsa.read_triton_backward])
def _broadcast_flops(grad: Any, w: Any, reps: Any, *others: Any, **kwargs: Any) -> int:
    """The same five products."""
    return 5 * product_flops(w, reps)
