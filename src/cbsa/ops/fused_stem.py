"""The first convolution of a stem in Triton kernels, for compiled code on a GPU.

cuDNN pads three channels to eight in a pass of its own, and a compiler gives the GELU after it another; here
it is one kernel.
"""

import math
from typing import Any

import torch
import triton
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from cbsa.ops.custom import launched_on
from cbsa.ops.kernels import stem
from cbsa.ops.kernels.sums import add_up

_PIXELS = 128  # of a block
_PROGRAMS = 1024  # of the weight's gradient
_ADDED = (128, 16)  # rows and columns that are added up at a time


def first_convolution(images: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """3×3 convolution with stride 2 and padding 1, (B, C, ⌈h/2⌉, ⌈w/2⌉); images get no gradient."""
    out: Tensor = _FirstConvolution.apply(images, weight, dtype)
    return out


def first_convolution_gelu(images: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
    """GELU of that convolution plus a bias; for inference."""
    out: Tensor = _forward(images, weight, bias, dtype)
    return out


class _FirstConvolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.save_for_backward(images, weight)
        out: Tensor = _forward(images, weight, None, dtype)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, None]:  # type: ignore[override]
        images, weight = ctx.saved_tensors
        sums: Tensor = _weight_gradient(grad, images)
        return None, sums.view(weight.shape).to(weight.dtype), None


@torch.library.custom_op("cbsa::first_convolution", mutates_args=())
def _forward(images: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    out = _empty(images, weight, dtype)
    if out.numel() == 0:
        return out
    pixels, sizes, options = _problem(images, out)
    weight = weight.contiguous()
    with launched_on(images.device):
        stem.convolve[(triton.cdiv(pixels, _PIXELS),)](
            images, weight, weight if bias is None else bias, out, pixels, *sizes,
            **options, FINISH=bias is not None,
        )  # fmt: skip
    return out


@_forward.register_fake
def _(images: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    return _empty(images, weight, dtype)


@torch.library.custom_op("cbsa::first_convolution_weight_gradient", mutates_args=())
def _weight_gradient(grad: Tensor, images: Tensor) -> Tensor:
    """Gradient of the weight, (C_out, C_in · 9) in float32."""
    size = (grad.shape[1], 9 * images.shape[1])
    if grad.numel() == 0:
        return grad.new_zeros(size, dtype=torch.float32)
    grad = grad.contiguous(memory_format=torch.channels_last)
    pixels, sizes, options = _problem(images, grad)
    chunk = triton.cdiv(triton.cdiv(pixels, _PROGRAMS), _PIXELS) * _PIXELS
    programs = triton.cdiv(pixels, chunk)
    parts = grad.new_empty((programs, *size), dtype=torch.float32)
    total = grad.new_empty(size, dtype=torch.float32)
    with launched_on(grad.device):
        stem.convolve_weight_gradient[(programs,)](images, grad, parts, pixels, chunk, *sizes, **options)
        at_once, columns = _ADDED
        add_up(parts, total, at_once=at_once, block=columns)
    return total


@_weight_gradient.register_fake
def _(grad: Tensor, images: Tensor) -> Tensor:
    return grad.new_empty((grad.shape[1], 9 * images.shape[1]), dtype=torch.float32)


def _empty(images: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Memory for the output (B, C_out, ⌈h/2⌉, ⌈w/2⌉), channels last."""
    batch, _, height, width = images.shape
    size = (batch, weight.shape[0], (height + 1) // 2, (width + 1) // 2)
    return torch.empty(size, dtype=dtype, device=images.device, memory_format=torch.channels_last)


def _problem(images: Tensor, out: Tensor) -> tuple[int, tuple[int, ...], dict[str, Any]]:
    """Number of output pixels; sizes and strides; and constants, for images and output or its gradient."""
    _, channels, height, width = images.shape
    batch, out_channels, out_height, out_width = out.shape
    options = {
        "CIN": channels,
        "COUT": out_channels,
        "BP": _PIXELS,
        "BK": max(16, triton.next_power_of_2(9 * channels)),
        "BC": max(16, triton.next_power_of_2(out_channels)),
        "PRECISION": "tf32x3" if out.dtype == torch.float32 else "tf32",
    }
    sizes = (height, width, out_height, out_width, *images.stride())
    return batch * out_height * out_width, sizes, options


@register_flop_formula(torch.ops.cbsa.first_convolution)
def _forward_flops(images: Any, weight: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    batch, _, height, width = images
    return 2 * int(batch * ((height + 1) // 2) * ((width + 1) // 2) * math.prod(weight))


@register_flop_formula(torch.ops.cbsa.first_convolution_weight_gradient)
def _backward_flops(grad: Any, images: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    return 2 * int(math.prod(grad) * 9 * images[1])
