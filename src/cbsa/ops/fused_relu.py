"""relu(x Wᵀ + b) with the bias and the threshold in the product's epilogue, for compiled code on a GPU.

A compiler leaves products to the library and gives the threshold a pass over memory of its own.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula


def linear_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """relu(x Wᵀ + b) of x (..., D), weight (E, D) and bias (E,) of one dtype; the bias gets no gradient."""
    out: Tensor = _LinearReLU.apply(x, weight, bias)
    return out


class _LinearReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        out: Tensor = _forward(x, weight, bias)
        ctx.save_for_backward(x, weight, out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        x, weight, out = ctx.saved_tensors
        passed = _backward(grad, out)
        return passed @ weight, passed.flatten(0, -2).T @ x.flatten(0, -2), None


@torch.library.custom_op("cbsa::linear_relu", mutates_args=())
def _forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    rows = torch._addmm_activation(bias, x.reshape(-1, x.shape[-1]), weight.T)
    return rows.view(*x.shape[:-1], weight.shape[0])


@_forward.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


@torch.library.custom_op("cbsa::relu_backward", mutates_args=())
def _backward(grad: Tensor, out: Tensor) -> Tensor:
    """The gradient where ``out`` is above 0; a compiler would keep, besides ``out``, where that is."""
    passed: Tensor = torch.ops.aten.threshold_backward(grad.contiguous(), out, 0)
    return passed


@_backward.register_fake
def _(grad: Tensor, out: Tensor) -> Tensor:
    return torch.empty_like(out)


@register_flop_formula(torch.ops.cbsa.linear_relu)
def _flops(x: Any, weight: Any, *others: Any, **kwargs: Any) -> int:
    return 2 * int(math.prod(x) * weight[0])
