"""Pooling and contract-and-broadcast as one PyTorch operator on the Triton kernels.

Forward it is the one after the other. Backward, the gradient that reaches the tokens through their averages
is added where the operator's own gradient lies, instead of being written, read and added.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from cbsa.ops import fused
from cbsa.ops.custom import differentiate, empty_gradients, launched_on
from cbsa.ops.fused_pooling import as_image
from cbsa.ops.kernels import launch, pooling


def pooled_contract_broadcast(
    w: Tensor,
    step_rep: Tensor,
    step_out: Tensor,
    grid: Sequence[int],
    size: Sequence[int],
    first: int,
    scale: float,
    contraction: str,
) -> Tensor:
    """Contract and broadcast tokens w (B, H, N, d), representatives pooled from those from ``first`` on."""
    keep = not launch.is_whole(w, _count(size))
    softmax = contraction == "softmax"
    out: Tensor = _forward(w, step_rep, step_out, grid, size, first, scale, softmax, keep)[0]
    return out


@torch.library.custom_op("cbsa::pooled_contract_broadcast_triton", mutates_args=())
def _forward(
    w: Tensor,
    step_rep: Tensor,
    step_out: Tensor,
    grid: Sequence[int],
    size: Sequence[int],
    first: int,
    scale: float,
    softmax: bool,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return O, the initial representatives (B, m, H, d), and what :func:`fused._forward` keeps."""
    reps = _empty_reps(w, size)
    out, *kept = results = fused.empty_results(w, reps.transpose(1, 2), keep)
    if out.numel() > 0:
        w = launch.unit_rows(w)
        with launched_on(w.device):
            tokens = w.transpose(1, 2).flatten(2)[:, first : first + _count(grid)]
            pooling.run(tokens, reps.flatten(2), as_image(grid), as_image(size), spread=False)
            launch.run_forward(
                w, reps.transpose(1, 2), step_rep, step_out, None, scale, softmax, out, fused.if_kept(kept)
            )
    return results[0], reps, *results[1:]


@_forward.register_fake
def _(
    w: Tensor,
    step_rep: Tensor,
    step_out: Tensor,
    grid: Sequence[int],
    size: Sequence[int],
    *options: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    *_, keep = options
    reps = _empty_reps(w, size)
    out, delta, lse, c, lse_c = fused.empty_results(w, reps.transpose(1, 2), keep)
    return out, reps, delta, lse, c, lse_c


@torch.library.custom_op("cbsa::pooled_contract_broadcast_triton_backward", mutates_args=())
def _backward(
    grad: Tensor,
    w: Tensor,
    step_rep: Tensor,
    step_out: Tensor,
    reps: Tensor,
    delta: Tensor,
    lse: Tensor,
    c: Tensor,
    lse_c: Tensor,
    grid: Sequence[int],
    size: Sequence[int],
    first: int,
    scale: float,
    softmax: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients with respect to w, step_rep and step_out."""
    gradients = empty_gradients(grad, w, reps.transpose(1, 2), step_rep, step_out)
    grad_w, grad_reps, grad_step_rep, grad_step_out = gradients
    if grad_w.numel() == 0:
        return grad_w, grad_step_rep.zero_(), grad_step_out.zero_()
    kept = fused.if_kept((delta, lse, c, lse_c))
    with launched_on(w.device):
        launch.run_backward(
            grad, w, reps.transpose(1, 2), step_rep, step_out, None, kept, scale, softmax, gradients
        )
        sources = grad_reps.transpose(1, 2)  # (B, m, H, d)
        patches = grad_w.transpose(1, 2).flatten(2)[:, first : first + _count(grid)]  # of grad_w itself
        pooling.run(sources, patches, as_image(grid), as_image(size), spread=True, add=True)
    return grad_w, grad_step_rep, grad_step_out


@_backward.register_fake
def _(
    grad: Tensor, w: Tensor, step_rep: Tensor, step_out: Tensor, reps: Tensor, *others: Any
) -> tuple[Tensor, Tensor, Tensor]:
    grad_w, _, grad_step_rep, grad_step_out = empty_gradients(grad, w, reps, step_rep, step_out)
    return grad_w, grad_step_rep, grad_step_out


differentiate(_forward, _backward, lambda ctx: ctx.options[:-1])


@register_flop_formula(torch.ops.cbsa.pooled_contract_broadcast_triton)
def _forward_flops(w: Any, *others: Any, **kwargs: Any) -> int:
    *_, size, _, _, softmax, _ = others
    return fused.count_flops(w, _count(size), softmax)


@register_flop_formula(torch.ops.cbsa.pooled_contract_broadcast_triton_backward)
def _backward_flops(grad: Any, w: Any, *others: Any, **kwargs: Any) -> int:
    *_, size, _, _, softmax = others
    return 2 * fused.count_flops(w, _count(size), softmax)


def _empty_reps(w: Tensor, size: Sequence[int]) -> Tensor:
    """Memory for the representatives, (B, m, H, d)."""
    return w.new_empty(w.shape[0], _count(size), w.shape[1], w.shape[3])


def _count(layout: Sequence[int]) -> int:
    height, width = as_image(layout)
    return height * width
