"""How the kernels of Agent attention are launched: extraction as in ``launch.py``, a broadcast of its own."""

import math

import torch
import triton
from torch import Tensor

from cbsa.ops.kernels import agent
from cbsa.ops.kernels.launch import Problem, extract_all, spread, unit_rows

Sums = tuple[Tensor, Tensor, Tensor]
_ROWS = 8  # of representatives, that a program adds up over the splits


def run_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    reps: Tensor,
    mask: Tensor | None,
    scale: float,
    sharpness: float,
    out: Tensor,
    delta: Tensor,
    lse: Tensor,
) -> None:
    """Write O, D in its dtype, and the log₂-sum-exp of the extraction."""
    call = Problem(k, v, reps, mask, scale, False)
    extract_all(call, delta, lse)
    broadcast(call, unit_rows(q), delta, sharpness, out)


def broadcast(call: Problem, q: Tensor, delta: Tensor, sharpness: float, out: Tensor) -> None:
    """Write O = softmax_r(t·X Qᵀ) D for queries X with adjacent coordinates."""
    options, chunk, splits = call.split("agent_broadcast", call.programs)
    agent.agent_broadcast[(call.programs, splits)](
        q, call.reps, delta, call.mask, out, call.heads, call.n, call.m, chunk, sharpness * math.log2(math.e),
        *q.stride()[:3], *call.reps.stride()[:3], *out.stride()[:3],
        **options, REP_BLOCKS=call.blocks, **call.ahead,
    )  # fmt: skip


def run_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    reps: Tensor,
    mask: Tensor | None,
    delta: Tensor,
    lse: Tensor,
    scale: float,
    sharpness: float,
    gradients: tuple[Tensor, Tensor, Tensor, Tensor],
) -> None:
    """Write the gradients with respect to q, k, v and reps."""
    grad_q, grad_k, grad_v, grad_reps = gradients
    call = Problem(k, v, reps, mask, scale, False)
    grad_delta, grad_r, row_dot = broadcast_backward(
        call, unit_rows(grad), unit_rows(q), delta, sharpness, grad_q
    )
    of_reps = (lse, grad_delta, grad_delta, row_dot)  # dD in the place of κC, which is not read
    spread(call, None, of_reps, grad_r, (grad_k, grad_v), grad_reps, call.ahead)


def broadcast_backward(
    call: Problem, grad: Tensor, q: Tensor, delta: Tensor, sharpness: float, grad_q: Tensor
) -> Sums:
    """Write dX, and return dD in the dtype of the tokens, the broadcast's part of dQ, and δ."""
    inputs = (q, call.reps, delta, grad, call.mask)
    strides = (*q.stride()[:3], *call.reps.stride()[:3], *grad.stride()[:3])
    scales = (sharpness, sharpness * math.log2(math.e))
    sizes = (call.heads, call.n, call.m)
    options, chunk, splits = call.split("agent_spread", call.programs)
    sums = torch.empty_like(delta), call.parts(1, call.rows["D"])[0], call.parts(1)[0]
    if call.blocks == 1:
        parts = _parts(call, splits, sums)
        agent.agent_spread[(call.programs, splits)](
            *inputs, grad_q, *parts, *sizes, chunk, *scales, *strides, *grad_q.stride()[:3],
            **options, **call.early,
        )  # fmt: skip
    else:
        # Of every token the log₂-sum-exp and the row sum of its softmax over the representatives.
        of_tokens = grad.new_empty((2, call.programs, call.n), dtype=torch.float32).unbind()
        agent.agent_spread_from_blocks[(call.programs, splits)](
            *inputs, grad_q, *of_tokens, *sizes, chunk, *scales, *strides, *grad_q.stride()[:3],
            **options, **call.early,
        )  # fmt: skip
        options, chunk, splits = call.split("agent_spread", call.programs * call.blocks)
        parts = _parts(call, splits, sums)
        agent.agent_spread_to_reps[(call.programs, call.blocks, splits)](
            *inputs, *of_tokens, *parts, *sizes, chunk, *scales, *strides, **options, **call.ahead
        )
    if splits > 1:
        rows = call.programs * call.m
        agent.gathered_gradient[(triton.cdiv(rows, _ROWS),)](
            *parts[:2], delta, *sums, rows, splits,
            D=call.rows["D"], BD=call.rows["BD"], BR=_ROWS, **call.ahead,
        )  # fmt: skip
    return sums


def _parts(call: Problem, splits: int, sums: Sums) -> tuple[Tensor, Tensor, Tensor | None]:
    """Where each split leaves its sums of dD and dQ; a single one leaves all that follows from them."""
    d = call.rows["D"]
    return sums if splits == 1 else (call.parts(splits, d), call.parts(splits, d), None)
