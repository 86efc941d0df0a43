"""``impl="triton"``: contract-and-broadcast in Triton kernels, for softmax and no contraction.

Nothing of size N×m is stored and nothing is added atomically: the same bits on every run. Tokens are split
over programs when images and heads alone do not fill the device. Saved for the backward are the inputs,
D = Aw, C, and the log-sum-exps of both softmaxes.
"""

import math
import os
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from cbsa.ops.custom import empty_gradients, no_second_derivative, token_major
from cbsa.ops.kernels import backward as kernels_backward
from cbsa.ops.kernels import forward as kernels
from cbsa.ops.kernels import whole

CONTRACTIONS = ("softmax", "none")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_HEAD_DIM = 128
_BLOCK_REPS, _BLOCK_TOKENS = 64, 64
# Triton's interpreter runs the kernels on a CPU; it is chosen when they are imported.
_INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"
_INTERPRETER_PROGRAMS = 8  # stands for a GPU's multiprocessors there


class _Plan(NamedTuple):
    """How the work is cut: block sizes, the tokens of each split, or one launch for all (``whole``)."""

    blocks: dict[str, int]
    rep_blocks: int
    chunk: int
    splits: int
    whole: bool


def contract_broadcast(
    w: Tensor,
    reps: Tensor,
    step_rep: Tensor,
    step_out: Tensor,
    mask: Tensor | None,
    scale: float,
    contraction: str,
    eps: float,
) -> Tensor:
    """Extract, contract, broadcast; see :func:`cbsa.ops.contract_broadcast`."""
    obstacle = why_not(w, contraction)
    if obstacle:
        raise ValueError(f"impl='triton' {obstacle}; use impl='auto'")
    out: Tensor = _forward(w, reps, step_rep, step_out, mask, scale, contraction == "softmax")[0]
    return out


def why_not(w: Tensor, contraction: str) -> str | None:
    """What keeps the kernels from being used, or None."""
    if contraction not in CONTRACTIONS:
        return f"has no contraction={contraction!r}"
    if w.dtype not in DTYPES:
        return f"does not support {w.dtype}"
    if w.shape[-1] > MAX_HEAD_DIM:
        return f"supports heads of up to {MAX_HEAD_DIM} dimensions, not {w.shape[-1]}"
    if w.device.type != "cuda" and not _INTERPRETED:
        return f"needs a GPU, but w is on {w.device}"
    return None


@torch.library.custom_op("cbsa::contract_broadcast_triton", mutates_args=())
def _forward(
    w: Tensor,
    reps: Tensor,
    step_rep: Tensor,
    step_out: Tensor,
    mask: Tensor | None,
    scale: float,
    softmax: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return O (B, H, N, d), D (B, H, m, d), the log₂-sum-exp of A (B, H, m), C, and that of C's softmax."""
    out, delta, lse, c, lse_c = _empty_results(w, reps)
    if out.numel() == 0:
        return out, delta, lse, c, lse_c
    w, reps = _unit_rows(w), _unit_rows(reps)
    (batch, heads, n, d), m = w.shape, reps.shape[2]
    plan = _plan(w, m)
    scale2 = scale * math.log2(math.e)
    tokens = {"HAS_MASK": mask is not None, "PRECISION": _precision(w.dtype)}
    mask_or_any = w if mask is None else mask.contiguous()
    programs = batch * heads
    if plan.whole:
        with _on(w.device):
            whole.forward_whole[(programs,)](
                w, reps, mask_or_any, step_rep, step_out, out, delta, lse, c, lse_c,
                heads, n, m, scale2, *w.stride()[:3], *reps.stride()[:3], *out.stride()[:3],
                **plan.blocks, **tokens, SOFTMAX=softmax,
            )  # fmt: skip
        return out, delta, lse, c, lse_c
    partial = plan.splits > 1
    rows = (plan.splits, batch, heads, m) if partial else (0,)
    part_max, part_sum = (w.new_empty(rows, dtype=torch.float32) for _ in range(2))
    part_acc = w.new_empty((*rows, d) if partial else (0,), dtype=torch.float32)
    with _on(w.device):
        kernels.extract[(programs, plan.rep_blocks, plan.splits)](
            w, reps, mask_or_any, delta, lse, part_max, part_sum, part_acc,
            heads, n, m, plan.chunk, scale2, *w.stride()[:3], *reps.stride()[:3],
            **plan.blocks, **tokens, SPLIT=partial,
        )  # fmt: skip
        few = {k: v for k, v in plan.blocks.items() if k != "BN"}
        if partial:
            kernels.merge[(programs, plan.rep_blocks)](
                delta, lse, part_max, part_sum, part_acc, m, plan.splits, **few
            )
        kernels.contract[(programs, plan.rep_blocks)](
            reps, delta, step_rep, c, lse_c, heads, m, scale2, *reps.stride()[:3],
            **few, SOFTMAX=softmax, PRECISION=tokens["PRECISION"],
        )  # fmt: skip
        kernels.broadcast[(programs, triton.cdiv(n, plan.blocks["BN"]))](
            w, reps, mask_or_any, lse, c, step_out, out,
            heads, n, m, scale2, *w.stride()[:3], *reps.stride()[:3], *out.stride()[:3],
            **plan.blocks, **tokens,
        )  # fmt: skip
    return out, delta, lse, c, lse_c


@_forward.register_fake
def _(
    w: Tensor,
    reps: Tensor,
    step_rep: Tensor,
    step_out: Tensor,
    mask: Tensor | None,
    scale: float,
    softmax: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return _empty_results(w, reps)


@torch.library.custom_op("cbsa::contract_broadcast_triton_backward", mutates_args=())
def _backward(
    grad: Tensor,
    w: Tensor,
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
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients with respect to w, reps (zeros if not needed), step_rep and step_out."""
    grad_w, grad_reps, grad_step_rep, grad_step_out = empty_gradients(w, reps, step_rep, step_out)
    if grad_w.numel() == 0:
        return grad_w, grad_reps, grad_step_rep.zero_(), grad_step_out.zero_()
    w, reps, grad = _unit_rows(w), _unit_rows(reps), _unit_rows(grad)
    (batch, heads, n, d), m = w.shape, reps.shape[2]
    plan = _plan(w, m)
    scale2 = scale * math.log2(math.e)
    precision = _precision(w.dtype)
    tokens = {"HAS_MASK": mask is not None, "PRECISION": precision}
    mask_or_any = w if mask is None else mask.contiguous()
    programs = batch * heads
    strides = (*w.stride()[:3], *reps.stride()[:3], *grad.stride()[:3])
    wide = torch.float32
    parts = w.new_empty((2, batch, heads, plan.rep_blocks), dtype=wide)
    if not needs_reps:
        grad_reps.zero_()
    if plan.whole:
        with _on(w.device):
            whole.backward_whole[(programs,)](
                w, reps, grad, mask_or_any, step_rep, step_out, delta, lse, c, lse_c,
                grad_w, grad_reps, parts[0], parts[1],
                heads, n, m, scale, scale2, *strides, *grad_w.stride()[:3],
                **plan.blocks, **tokens, SOFTMAX=softmax, WITH_Q=needs_reps,
            )  # fmt: skip
    else:
        u = w.new_empty((plan.splits, batch, heads, m, d), dtype=wide)
        grad_r = w.new_empty((batch, heads, m, d), dtype=wide)
        grad_delta, kappa_c = reps.new_empty((2, batch, heads, m, d))
        row_dot = w.new_empty((batch, heads, m), dtype=wide)
        inside = needs_reps and plan.rep_blocks == 1
        grad_q = w.new_empty((plan.splits, batch, heads, m, d) if needs_reps else (0,), dtype=wide)
        with _on(w.device):
            kernels_backward.gather[(programs, plan.rep_blocks, plan.splits)](
                w, reps, grad, mask_or_any, lse, u, heads, n, m, plan.chunk, scale2, *strides,
                **plan.blocks, **tokens,
            )  # fmt: skip
            u = u.sum(0) if plan.splits > 1 else u[0]
            few = {k: v for k, v in plan.blocks.items() if k != "BN"}
            kernels_backward.contract_backward[(programs, plan.rep_blocks)](
                reps, delta, c, lse_c, u, step_rep, step_out,
                grad_r, grad_delta, kappa_c, row_dot, parts[0], parts[1],
                heads, m, scale, scale2, *reps.stride()[:3], **few, SOFTMAX=softmax, PRECISION=precision,
            )  # fmt: skip
            kernels_backward.spread[(programs, plan.splits)](
                w, reps, grad, mask_or_any, lse, kappa_c, grad_delta, row_dot, grad_w, grad_q,
                heads, n, m, plan.chunk, scale, scale2, *strides, *grad_w.stride()[:3],
                **plan.blocks, **tokens, WITH_Q=inside,
            )  # fmt: skip
            if needs_reps and not inside:
                kernels_backward.spread_to_queries[(programs, plan.rep_blocks, plan.splits)](
                    w, reps, grad, mask_or_any, lse, kappa_c, grad_delta, row_dot, grad_q,
                    heads, n, m, plan.chunk, scale, scale2, *strides, **plan.blocks, **tokens,
                )  # fmt: skip
        if needs_reps:
            grad_reps.copy_(grad_r + grad_q.sum(0))
    grad_step_rep.copy_(parts[0].sum((0, 2)))
    grad_step_out.copy_(parts[1].sum((0, 2)))
    return grad_w, grad_reps, grad_step_rep, grad_step_out


@_backward.register_fake
def _(
    grad: Tensor,
    w: Tensor,
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
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return empty_gradients(w, reps, step_rep, step_out)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    w, reps, step_rep, step_out, mask, *ctx.options = inputs
    saved = output[1:]
    ctx.mark_non_differentiable(*saved)
    ctx.save_for_backward(w, reps, step_rep, step_out, mask, *saved)


def _autograd_backward(ctx: Any, grad: Tensor, *_: None) -> tuple[Tensor | None, ...]:
    gradients = _backward(grad, *ctx.saved_tensors, *ctx.options, ctx.needs_input_grad[1])
    return (*gradients, None, None, None)


_forward.register_autograd(_autograd_backward, setup_context=_setup_context)
_backward.register_autograd(no_second_derivative)


def _plan(w: Tensor, m: int) -> _Plan:
    """Cut the work so that the device is full, and no split is shorter than a block."""
    batch, heads, n, d = w.shape
    block = min(_BLOCK_REPS, max(16, triton.next_power_of_2(m)))
    blocks = {"D": d, "BD": max(16, triton.next_power_of_2(d)), "BM": block, "BN": _BLOCK_TOKENS}
    rep_blocks = triton.cdiv(m, block)
    if w.device.type == "cuda":
        available = 2 * torch.cuda.get_device_properties(w.device).multi_processor_count
    else:
        available = _INTERPRETER_PROGRAMS
    wanted = min(triton.cdiv(available, batch * heads * rep_blocks), triton.cdiv(n, _BLOCK_TOKENS))
    chunk = triton.cdiv(triton.cdiv(n, wanted), _BLOCK_TOKENS) * _BLOCK_TOKENS
    splits = triton.cdiv(n, chunk)
    return _Plan(blocks, rep_blocks, chunk, splits, whole=splits == rep_blocks == 1)


def _precision(dtype: torch.dtype) -> str:
    """How float32 operands are multiplied: exactly for float32 tokens, else on the tensor cores."""
    return "ieee" if dtype == torch.float32 else "tf32"


def _empty_results(w: Tensor, reps: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """O, D, log-sum-exp of A, C, log-sum-exp of the contraction; all but O in float32: they are small."""
    delta, c = (reps.new_empty(reps.shape, dtype=torch.float32) for _ in range(2))
    lse, lse_c = (reps.new_empty(reps.shape[:-1], dtype=torch.float32) for _ in range(2))
    return token_major(w), delta, lse, c, lse_c


def _unit_rows(x: Tensor) -> Tensor:
    """x (B, H, N, d) with adjacent coordinates; other strides may be any."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _on(device: torch.device) -> Any:
    return torch.cuda.device(device) if device.type == "cuda" else torch.device("cpu")
