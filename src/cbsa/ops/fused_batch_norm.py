"""BatchNorm in training, with GELU after it, in Triton kernels: for compiled code on a GPU.

A compiler does it in the same number of passes over the maps; but its GELU costs more than the memory.
"""

from typing import Any

import torch
import triton
from torch import Tensor

from cbsa.ops.custom import launched_on
from cbsa.ops.kernels import batch_norm as kernels
from cbsa.ops.kernels.sums import add_up

_MOST_CHANNELS = 128  # of a block
_MAPPED = (1024, 8192)  # numbers of a block, and programs, where maps are written
_SUMMED = (2048, 1056)  # the same where they are summed up
_ADDED = (128, 16)  # parts and columns that are added up at a time


def batch_norm_gelu(y: Tensor, gamma: Tensor, beta: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """GELU of the BatchNorm of maps y (B, C, h, w), and the mean and (biased) variance of each channel."""
    out, mean, var = _BatchNormGELU.apply(y, gamma, beta, eps)
    return out, mean, var


class _BatchNormGELU(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, y: Tensor, gamma: Tensor, beta: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        first, second = _moments(y) / max(y.numel() // y.shape[1], 1)
        var = (second - first * first).clamp_min(0)
        mean = first + (y[0, :, 0, 0].float() if y.numel() else 0)
        rstd = (var + eps).rsqrt()
        scale = gamma.float() * rstd
        shift = beta.float() - mean * scale
        out: Tensor = _forward(y, scale, shift)
        ctx.save_for_backward(y, scale, shift, mean, rstd)
        ctx.dtypes = gamma.dtype, beta.dtype
        ctx.mark_non_differentiable(mean, var)
        return out, mean, var

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        y, scale, shift, mean, rstd = ctx.saved_tensors
        count = max(y.numel() // y.shape[1], 1)
        grad_beta, products = _gradient_sums(grad, y, scale, shift, mean)
        grad_gamma = products * rstd
        slope = -scale * rstd * grad_gamma / count
        offset = -scale * grad_beta / count - slope * mean
        grad_y = _backward(grad, y, scale, shift, slope, offset)
        gamma, beta = ctx.dtypes
        return grad_y, grad_gamma.to(gamma), grad_beta.to(beta), None


@torch.library.custom_op("cbsa::batch_norm_moments", mutates_args=())
def _moments(y: Tensor) -> Tensor:
    """Sums over the maps of z and z², z = y − y₀ with the first pixel y₀, (2, C) in float32."""
    return _summed(kernels.sum_rows, y)


@_moments.register_fake
def _(y: Tensor) -> Tensor:
    return y.new_empty((2, y.shape[1]), dtype=torch.float32)


@torch.library.custom_op("cbsa::batch_norm_gelu", mutates_args=())
def _forward(y: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """GELU(scale·y + shift)."""
    return _mapped(kernels.normalise_gelu, [y], scale, shift)


@_forward.register_fake
def _(y: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return _like(y)


@torch.library.custom_op("cbsa::batch_norm_gelu_gradient_sums", mutates_args=())
def _gradient_sums(grad: Tensor, y: Tensor, scale: Tensor, shift: Tensor, mean: Tensor) -> Tensor:
    """Sums of the gradient h before GELU and of h·(y − mean), (2, C) in float32."""
    return _summed(kernels.sum_gradients, grad, y, scale, shift, mean)


@_gradient_sums.register_fake
def _(grad: Tensor, y: Tensor, scale: Tensor, shift: Tensor, mean: Tensor) -> Tensor:
    return y.new_empty((2, y.shape[1]), dtype=torch.float32)


@torch.library.custom_op("cbsa::batch_norm_gelu_backward", mutates_args=())
def _backward(grad: Tensor, y: Tensor, scale: Tensor, shift: Tensor, slope: Tensor, offset: Tensor) -> Tensor:
    """scale·h + slope·y + offset, with the gradient h before GELU."""
    return _mapped(kernels.normalise_gradient, [grad, y], scale, shift, slope, offset)


@_backward.register_fake
def _(grad: Tensor, y: Tensor, scale: Tensor, shift: Tensor, slope: Tensor, offset: Tensor) -> Tensor:
    return _like(y)


def _like(y: Tensor) -> Tensor:
    return torch.empty_like(y, memory_format=torch.channels_last)


def _mapped(kernel: Any, maps: list[Tensor], *channels: Tensor) -> Tensor:
    """A map from maps, pixel by pixel."""
    out = _like(maps[-1])
    if out.numel() > 0:
        maps = [x.contiguous(memory_format=torch.channels_last) for x in maps]
        rows, chunk, grid, options = _problem(out, *_MAPPED)
        with launched_on(out.device):
            kernel[grid](*maps, *channels, out, rows, chunk, **options)
    return out


def _summed(kernel: Any, *inputs: Tensor) -> Tensor:
    """Two sums over the pixels of maps, (2, C)."""
    maps = [x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x for x in inputs]
    total = maps[0].new_empty((2, maps[0].shape[1]), dtype=torch.float32)
    if maps[0].numel() == 0:
        return total.zero_()
    rows, chunk, grid, options = _problem(maps[0], *_SUMMED)
    parts = total.new_empty((grid[0], *total.shape))
    with launched_on(total.device):
        kernel[grid](*maps, parts, rows, chunk, **options)
        at_once, columns = _ADDED
        return add_up(parts, total, at_once=at_once, block=columns)


def _problem(y: Tensor, numbers: int, programs: int) -> tuple[int, int, tuple[int, int], dict[str, int]]:
    """Number of rows, rows of a program, the grid of programs, and sizes known at compile time."""
    channels = y.shape[1]
    rows = y.numel() // channels
    block = min(_MOST_CHANNELS, channels & -channels)  # the largest power of two that divides them
    at_once = max(1, numbers // block)
    groups = channels // block
    chunk = triton.cdiv(triton.cdiv(rows * groups, programs), at_once) * at_once
    options = {"C": channels, "BR": at_once, "BC": block}
    return rows, chunk, (triton.cdiv(rows, chunk), groups), options
