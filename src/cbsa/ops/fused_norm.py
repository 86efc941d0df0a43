"""LayerNorm for compiled code on a GPU: the compiler's forward, and a backward in one kernel of our own.

The compiler fuses the forward with what surrounds it. Its backward, which sums over rows and over columns at
once, took up to a third of a training step on an H200 (torch 2.11); this one is bound by memory alone.
"""

from typing import Any

import torch
import triton
from torch import Tensor

from cbsa.ops.custom import launched_on
from cbsa.ops.kernels import norm as kernels

_NUMBERS = 4096  # that a program works on at once
_PROGRAMS = 1024


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        wide = x.float()
        y, mean, rstd = torch.native_layer_norm(wide, x.shape[-1:], weight.float(), bias.float(), eps)
        ctx.save_for_backward(x, mean, rstd, weight)
        ctx.bias_dtype = bias.dtype
        return y.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:  # type: ignore[override]
        x, mean, rstd, weight = ctx.saved_tensors
        grad_x, sums = _backward(grad, x, mean, rstd, weight)
        return grad_x, sums[0].to(weight.dtype), sums[1].to(ctx.bias_dtype), None


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """LayerNorm of x (..., D) over D, in the dtype of x; statistics and sums in float32."""
    out: Tensor = _LayerNorm.apply(x, weight, bias, eps)
    return out


@torch.library.custom_op("cbsa::layer_norm_backward", mutates_args=())
def _backward(grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient with respect to x, and those for weight and bias as (2, D) in float32."""
    d = x.shape[-1]
    rows = x.numel() // d
    if rows == 0:
        return x.new_empty(x.shape), x.new_zeros((2, d), dtype=torch.float32)
    grad, x = grad.contiguous(), x.contiguous()
    grad_x = torch.empty_like(x)
    chunk = triton.cdiv(rows, _PROGRAMS)
    programs = triton.cdiv(rows, chunk)
    parts = x.new_empty((programs, 2, d), dtype=torch.float32)
    padded = triton.next_power_of_2(d)
    with launched_on(x.device):
        kernels.layer_norm_backward[(programs,)](
            grad, x, mean.contiguous(), rstd.contiguous(), weight, grad_x, parts,
            rows, chunk, D=d, BD=padded, BR=max(1, min(_NUMBERS // padded, triton.next_power_of_2(chunk))),
        )  # fmt: skip
    return grad_x, parts.sum(0)


@_backward.register_fake
def _(grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty((2, x.shape[-1]), dtype=torch.float32)
