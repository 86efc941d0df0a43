"""``impl="triton"`` of CBSA*: the kernels of ``contract_broadcast`` with keys and values of their own."""

from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from cbsa.ops import fused
from cbsa.ops.custom import differentiate, empty_gradients_kv, launched_on
from cbsa.ops.kernels import launch


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
    fused.refuse(fused.why_not(k, scale, contraction))
    keep = not launch.is_whole(k, reps.shape[2])
    out: Tensor = _forward(k, v, reps, step_rep, step_out, mask, scale, contraction == "softmax", keep)[0]
    return out


@torch.library.custom_op("cbsa::contract_broadcast_kv_triton", mutates_args=())
def _forward(
    k: Tensor,
    v: Tensor,
    reps: Tensor,
    step_rep: Tensor,
    step_out: Tensor,
    mask: Tensor | None,
    scale: float,
    softmax: bool,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return O (B, H, N, d) and what :func:`fused._forward` keeps."""
    out, *kept = results = fused.empty_results(k, reps, keep)
    if out.numel() > 0:
        with launched_on(k.device):
            launch.run_forward(
                k, reps, step_rep, step_out, mask, scale, softmax, out, fused.if_kept(kept), v
            )  # fmt: skip
    return results


@_forward.register_fake
def _(k: Tensor, v: Tensor, reps: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    *_, keep = others
    return fused.empty_results(k, reps, keep)


@torch.library.custom_op("cbsa::contract_broadcast_kv_triton_backward", mutates_args=())
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
    c: Tensor,
    lse_c: Tensor,
    scale: float,
    softmax: bool,
    needs_reps: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients with respect to k, v, reps (zeros if not needed), step_rep and step_out."""
    empty = empty_gradients_kv(grad, k, v, reps, step_rep, step_out)
    grad_k, grad_v, grad_reps, grad_step_rep, grad_step_out = empty
    if grad_k.numel() == 0:
        return grad_k, grad_v, grad_reps, grad_step_rep.zero_(), grad_step_out.zero_()
    wanted = (grad_k, grad_reps if needs_reps else None, grad_step_rep, grad_step_out)
    kept = fused.if_kept((delta, lse, c, lse_c))
    with launched_on(k.device):
        launch.run_backward(
            grad, k, reps, step_rep, step_out, mask, kept, scale, softmax, wanted, v, grad_v
        )  # fmt: skip
    return grad_k, grad_v, grad_reps if needs_reps else grad_reps.zero_(), grad_step_rep, grad_step_out


_backward.register_fake(empty_gradients_kv)
# Backward, ``needs_reps`` is in the place of ``keep``.
differentiate(_forward, _backward, lambda ctx: (*ctx.options[:-1], ctx.needs_input_grad[2]))


@register_flop_formula(torch.ops.cbsa.contract_broadcast_kv_triton)
def _forward_flops(k: Any, v: Any, reps: Any, *others: Any, **kwargs: Any) -> int:
    *_, softmax, _ = others
    return fused.count_flops(k, reps[2], softmax)


@register_flop_formula(torch.ops.cbsa.contract_broadcast_kv_triton_backward)
def _backward_flops(grad: Any, *inputs: Any, **kwargs: Any) -> int:
    return 2 * _forward_flops(*inputs)
