"""LayerNorm in Triton kernels, for compiled code on a GPU.

The compiler's own backward, which sums over rows and over columns at once, was the slowest kernel of a
training step (torch 2.11). These read and write everything once, and add on the way what is added around a
LayerNorm: the update of a residual before it, and the gradient of the residual after it.
"""

from typing import Any

import torch
import triton
from torch import Tensor

from cbsa.ops.custom import launched_on
from cbsa.ops.kernels import norm as kernels
from cbsa.ops.kernels.ahead import launched_ahead
from cbsa.ops.kernels.sums import add_up

_NUMBERS, _NUMBERS_BACKWARD = 2048, 512  # of a block of rows
_PROGRAMS = 2112
_ADDED = (512, 16)  # rows and columns that are added up at a time


def add_layer_norm(
    x: Tensor, update: Tensor, shift: Tensor | None, weight: Tensor, bias: Tensor, eps: float
) -> Tensor:
    """LayerNorm of x + update (..., D), plus ``shift`` (D,), over D, in the dtype of x + update.

    The statistics are in float32. ``shift`` may be the bias of the product that made the update: its
    gradient, a sum over all rows, is taken on the way here.
    """
    if torch.is_grad_enabled():
        normed: Tensor = _AddLayerNorm.apply(x, update, shift, weight, bias, eps)
        return normed
    out: Tensor = _forward(x, update, shift, weight, bias, eps, False)[1]
    return out


def layer_norm_beside(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """X itself and its LayerNorm; the gradients of both are added in one pass."""
    if torch.is_grad_enabled():
        same, out = _LayerNormBeside.apply(x, weight, bias, eps)
        return same, out
    return x, _forward(x, None, None, weight, bias, eps, False)[1]


@torch.no_grad()
def layer_norm_into(
    out: Tensor, x: Tensor, weight: Tensor, bias: Tensor, eps: float, nonzero: Tensor | None = None
) -> None:
    """Write the LayerNorm of x (..., D) into ``out``, for probes: one launch, no gradient.

    Args:
        out: contiguous, of the shape of x.
        x: the rows.
        weight, bias: (D,).
        eps: added to the variance.
        nonzero: one int64, to which is added how many numbers of x are not 0.
    """
    rows, d = _rows(x)
    if rows == 0:
        return
    x, weight, bias = x.contiguous(), weight.contiguous(), bias.contiguous()
    padded, block = _blocks(d, _NUMBERS)
    with launched_on(x.device):
        kernels.layer_norm_forward[(triton.cdiv(rows, block),)](
            x, x, weight, weight, bias, out, out, out, out, out if nonzero is None else nonzero,
            rows, eps, D=d, BD=padded, BR=block,
            ADD=False, SHIFT=False, KEEP=False, COUNT=nonzero is not None, num_warps=1,
        )  # fmt: skip


class _AddLayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, update: Tensor, shift: Tensor | None, weight: Tensor, bias: Tensor, eps: float
    ) -> Tensor:
        out: Tensor
        total, out, mean, rstd = _forward(x, update, shift, weight, bias, eps, True)
        ctx.save_for_backward(total, mean, rstd, weight)
        ctx.shift = None if shift is None else shift.dtype
        ctx.dtypes = x.dtype, update.dtype, weight.dtype, bias.dtype
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        grad_x, sums = _backward(grad, None, *ctx.saved_tensors, ctx.shift is not None)
        x, update, weight, bias = ctx.dtypes
        grad_shift = None if ctx.shift is None else sums[2].to(ctx.shift)
        return grad_x.to(x), grad_x.to(update), grad_shift, sums[0].to(weight), sums[1].to(bias), None


class _LayerNormBeside(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        _, out, mean, rstd = _forward(x, None, None, weight, bias, eps, True)
        ctx.save_for_backward(x, mean, rstd, weight)
        ctx.dtypes = weight.dtype, bias.dtype
        return x.view_as(x), out

    @staticmethod
    def backward(ctx: Any, grad_same: Tensor, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        grad_x, sums = _backward(grad, grad_same, *ctx.saved_tensors, False)
        weight, bias = ctx.dtypes
        return grad_x, sums[0].to(weight), sums[1].to(bias), None


@torch.library.custom_op("cbsa::layer_norm", mutates_args=())
def _forward(
    x: Tensor,
    update: Tensor | None,
    shift: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return x + update + shift, its LayerNorm, mean and 1/σ; all but the second empty if not kept."""
    total, out, mean, rstd = results = _empty(x, update, keep)
    rows, d = _rows(x)
    if rows == 0:
        return results
    x, weight, bias = x.contiguous(), weight.contiguous(), bias.contiguous()
    padded, block = _blocks(d, _NUMBERS)
    with launched_on(x.device):
        kernels.layer_norm_forward[(triton.cdiv(rows, block),)](
            x, x if update is None else update.contiguous(), weight if shift is None else shift.contiguous(),
            weight, bias, total, out, mean, rstd, out, rows, eps, D=d, BD=padded, BR=block,
            ADD=update is not None, SHIFT=shift is not None, KEEP=keep, COUNT=False, num_warps=1,
        )  # fmt: skip
    return results


@_forward.register_fake
def _(x: Tensor, update: Tensor | None, *others: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    *_, keep = others
    return _empty(x, update, keep)


@torch.library.custom_op("cbsa::layer_norm_backward", mutates_args=())
def _backward(
    grad: Tensor, more: Tensor | None, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, shifted: bool
) -> tuple[Tensor, Tensor]:
    """Return the gradient with respect to x, plus ``more``; and of weight and bias, (2, D) in float32.

    With ``shifted`` these are (3, D): the last is the sum over the rows of the gradient itself.
    """
    rows, d = _rows(x)
    grad_x, sums = _empty_gradients(x, shifted)
    if rows == 0:
        return grad_x, sums.zero_()
    grad, x, weight = grad.contiguous(), x.contiguous(), weight.contiguous()
    padded, block = _blocks(d, _NUMBERS_BACKWARD)
    chunk = triton.cdiv(triton.cdiv(rows, _PROGRAMS), block) * block
    programs = triton.cdiv(rows, chunk)
    parts = x.new_empty((programs, *sums.shape), dtype=torch.float32)
    with launched_on(x.device):
        kernels.layer_norm_backward[(programs,)](
            grad, grad if more is None else more.contiguous(), x, mean, rstd, weight, grad_x, parts,
            rows, chunk, D=d, BD=padded, BR=block, MORE=more is not None, SHIFT=shifted,
            PDL=launched_ahead(x.device)["PDL"], num_warps=1,
        )  # fmt: skip
        at_once, columns = _ADDED
        add_up(parts, sums, at_once=at_once, block=columns, warps=8)
    return grad_x, sums


@_backward.register_fake
def _(grad: Tensor, more: Tensor | None, x: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    *_, shifted = others
    return _empty_gradients(x, shifted)


def _empty_gradients(x: Tensor, shifted: bool) -> tuple[Tensor, Tensor]:
    """Memory for the results of :func:`_backward`."""
    return x.new_empty(x.shape), x.new_empty((3 if shifted else 2, x.shape[-1]), dtype=torch.float32)


def _empty(x: Tensor, update: Tensor | None, keep: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Memory for the results of :func:`_forward`."""
    dtype = x.dtype if update is None else torch.promote_types(x.dtype, update.dtype)
    total = x.new_empty(x.shape if keep and update is not None else (0,), dtype=dtype)
    mean, rstd = (x.new_empty(x.shape[:-1] if keep else (0,), dtype=torch.float32) for _ in range(2))
    return total, x.new_empty(x.shape, dtype=dtype), mean, rstd


def _rows(x: Tensor) -> tuple[int, int]:
    """Number of rows, and their length."""
    return x.numel() // x.shape[-1], x.shape[-1]


def _blocks(d: int, numbers: int) -> tuple[int, int]:
    """Padded length of a row, and rows of a block."""
    padded = triton.next_power_of_2(d)
    return padded, max(1, numbers // padded)
