"""The first stage of a stem in Triton kernels, for compiled code on a GPU: convolution, BatchNorm, GELU.

The convolution's output, the largest map of the network, is linear in the 3×3 windows x of the image,
y = W x, and W is small. So all that BatchNorm needs of it over the P pixels follows from the moments
M = Σ x xᵀ of the windows, with a 1 appended so that M holds their sum s and P too::

    mean = W s / P        var = diag(W M Wᵀ) / P − mean²

and all that its backward needs follows from H = Σ h xᵀ, where h is the gradient that GELU hands on::

    dβ = Σ h                        (H's last column)
    dγ = (W∘H − mean·dβ) / σ        (summed over the window)
    dW = γ/σ · (H − dβ sᵀ/P − dγ/(P σ) · (W M − mean sᵀ))

Two passes forward, over the images alone and then to the output, and one backward; y is never stored.
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

_PIXELS, _CHANNELS = 128, 16  # of a block
_PROGRAMS = 2048
_ADDED = (128, 16)  # parts and columns that are added up at a time
_TRITON_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


def first_stage(images: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
    """GELU of the convolution plus a bias, (B, C, ⌈h/2⌉, ⌈w/2⌉): the stage with BatchNorm folded in."""
    out: Tensor = _forward(images, weight, None, bias, dtype)
    return out


def first_stage_in_training(
    images: Tensor, weight: Tensor, gamma: Tensor, beta: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """GELU of BatchNorm of the convolution, and the mean and (biased) variance of each channel.

    Args:
        images: (B, C_in, h, w) in any dtype and layout; they get no gradient.
        weight: of the convolution, (C, C_in, 3, 3).
        gamma: weight of the BatchNorm (C,).
        beta: its bias (C,).
        eps: its ε.
        dtype: of the output, and of what is multiplied.
    """
    out, mean, var = _FirstStage.apply(images, weight, gamma, beta, eps, dtype)
    return out, mean, var


class _FirstStage(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, images: Tensor, weight: Tensor, gamma: Tensor, beta: Tensor, eps: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, Tensor]:
        moments = _window_moments(images, dtype).double()
        w = _as_rows(weight, dtype)  # (C, 9·C_in)
        pixels = moments[-1, -1].clamp_min(1)
        mean = w @ (moments[:-1, -1] / pixels)
        centred = moments[:-1, :-1] / pixels - moments[:-1, -1:] * moments[-1:, :-1] / pixels**2
        var = ((w @ centred) * w).sum(1).clamp_min(0)
        scale = gamma.double() * (var + eps).rsqrt()
        shift = beta.double() - mean * scale
        scale, shift = scale.float(), shift.float()
        out: Tensor = _forward(images, weight, scale, shift, dtype)
        mean, var = mean.float(), var.float()
        ctx.save_for_backward(images, weight, gamma, scale, shift, moments, mean, var)
        ctx.eps, ctx.dtype, ctx.beta_dtype = eps, dtype, beta.dtype
        ctx.mark_non_differentiable(mean, var)
        return out, mean, var

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        images, weight, gamma, scale, shift, moments, mean, var = ctx.saved_tensors
        w = _as_rows(weight, ctx.dtype)
        products = _backward(grad, images, weight, scale, shift, ctx.dtype).double()  # H
        products, grad_beta = products[:, :-1], products[:, -1]
        mean, rstd = mean.double(), (var.double() + ctx.eps).rsqrt()
        grad_gamma = ((w * products).sum(1) - mean * grad_beta) * rstd
        pixels, sums = moments[-1, -1].clamp_min(1), moments[-1:, :-1]  # P, sᵀ
        along = (w @ moments[:-1, :-1] - mean[:, None] * sums) * (grad_gamma * rstd / pixels)[:, None]
        products = products - grad_beta[:, None] * sums / pixels - along
        rows = products * scale.double()[:, None]
        grad_weight = rows.unflatten(1, (3, 3, weight.shape[1])).permute(0, 3, 1, 2).to(weight.dtype)
        return None, grad_weight, grad_gamma.to(gamma.dtype), grad_beta.to(ctx.beta_dtype), None, None


def _as_rows(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """The weight (C, C_in, 3, 3), rounded as in the product, as rows (row, column, channel)."""
    return weight.to(dtype).permute(0, 2, 3, 1).flatten(1).double()


@torch.library.custom_op("cbsa::window_moments", mutates_args=())
def _window_moments(images: Tensor, dtype: torch.dtype) -> Tensor:
    """Σ x xᵀ of the windows x of the images, each with a 1 appended, (9·C_in + 1, 9·C_in + 1) in float32."""
    size = 9 * images.shape[1] + 1
    if images.numel() == 0:
        return images.new_zeros((size, size), dtype=torch.float32)
    programs, sizes, options = _problem(images, dtype)
    padded = options["BK"]
    parts = images.new_empty((programs, padded, padded), dtype=torch.float32)
    with launched_on(images.device):
        stem.window_moments[(programs,)](images, parts, *sizes, **options)
        return _sum(parts)[:size, :size].contiguous()


@_window_moments.register_fake
def _(images: Tensor, dtype: torch.dtype) -> Tensor:
    size = 9 * images.shape[1] + 1
    return images.new_empty((size, size), dtype=torch.float32)


@torch.library.custom_op("cbsa::first_stage", mutates_args=())
def _forward(
    images: Tensor, weight: Tensor, scale: Tensor | None, shift: Tensor, dtype: torch.dtype
) -> Tensor:
    """GELU of the convolution, times ``scale`` if there is one, plus ``shift``."""
    out = _empty(images, weight, dtype)
    if out.numel() == 0:
        return out
    programs, sizes, options = _problem(images, dtype)
    weight, shift = weight.contiguous(), shift.contiguous()
    with launched_on(images.device):
        stem.stage_forward[(programs,)](
            images, weight, shift if scale is None else scale, shift, out, *sizes,
            **options, COUT=weight.shape[0], BC=_CHANNELS, SCALED=scale is not None,
        )  # fmt: skip
    return out


@_forward.register_fake
def _(images: Tensor, weight: Tensor, scale: Tensor | None, shift: Tensor, dtype: torch.dtype) -> Tensor:
    return _empty(images, weight, dtype)


@torch.library.custom_op("cbsa::first_stage_backward", mutates_args=())
def _backward(
    grad: Tensor, images: Tensor, weight: Tensor, scale: Tensor, shift: Tensor, dtype: torch.dtype
) -> Tensor:
    """H = Σ h xᵀ, (C, 9·C_in + 1) in float32, where h is the gradient before GELU and x a window and a 1."""
    size = (weight.shape[0], 9 * images.shape[1] + 1)
    if grad.numel() == 0:
        return grad.new_zeros(size, dtype=torch.float32)
    grad, weight = grad.contiguous(memory_format=torch.channels_last), weight.contiguous()
    programs, sizes, options = _problem(images, dtype)
    parts = grad.new_empty((programs, size[0], options["BK"]), dtype=torch.float32)
    block, more = _channel_blocks(size[0])
    with launched_on(grad.device):
        stem.stage_backward[(programs,)](
            images, weight, scale, shift, grad, parts, *sizes, **options, COUT=size[0], BC=block, MORE=more
        )
        return _sum(parts)[:, : size[1]].contiguous()


@_backward.register_fake
def _(
    grad: Tensor, images: Tensor, weight: Tensor, scale: Tensor, shift: Tensor, dtype: torch.dtype
) -> Tensor:
    return grad.new_empty((weight.shape[0], 9 * images.shape[1] + 1), dtype=torch.float32)


def _empty(images: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Memory for the output (B, C, ⌈h/2⌉, ⌈w/2⌉), channels last."""
    batch, _, height, width = images.shape
    size = (batch, weight.shape[0], (height + 1) // 2, (width + 1) // 2)
    return torch.empty(size, dtype=dtype, device=images.device, memory_format=torch.channels_last)


def _sum(parts: Tensor) -> Tensor:
    at_once, columns = _ADDED
    return add_up(parts, parts.new_empty(parts.shape[1:]), at_once=at_once, block=columns)


def _problem(images: Tensor, dtype: torch.dtype) -> tuple[int, tuple[int, ...], dict[str, Any]]:
    """Number of programs; sizes and strides; and constants, of all kernels."""
    batch, channels, height, width = images.shape
    out_height, out_width = (height + 1) // 2, (width + 1) // 2
    pixels = out_height * out_width
    blocks = triton.cdiv(pixels, _PIXELS)
    total = batch * blocks
    chunk = triton.cdiv(total, _PROGRAMS)
    reach = sum((n - 1) * s for n, s in zip(images.shape[1:], images.stride()[1:], strict=True))
    options = {
        "CIN": channels,
        "BP": _PIXELS,
        "BK": max(16, triton.next_power_of_2(9 * channels + 1)),
        "WIDE": reach >= 2**31 - 1,
        "HALF": getattr(triton.language, _TRITON_DTYPES[dtype]),
        "PRECISION": "ieee" if dtype == torch.float32 else "tf32",
        "num_stages": 1,  # loads of single numbers are faster waited for than copied asynchronously
    }
    sizes = (pixels, total, chunk, blocks, height, width, out_height, out_width, *images.stride())
    return triton.cdiv(total, chunk), sizes, options


def _channel_blocks(channels: int) -> tuple[int, int]:
    """Two blocks that hold the channels, powers of two of at least 16; the second may be empty."""
    first = max(16, triton.next_power_of_2(channels) // 2)
    rest = max(0, channels - first)
    return first, max(16, triton.next_power_of_2(rest)) if rest else 0


@register_flop_formula(torch.ops.cbsa.first_stage)
def _forward_flops(images: Any, weight: Any, *others: Any, **kwargs: Any) -> int:
    batch, _, height, width = images
    return 2 * int(batch * ((height + 1) // 2) * ((width + 1) // 2) * math.prod(weight))


@register_flop_formula(torch.ops.cbsa.first_stage_backward)
def _backward_flops(grad: Any, images: Any, *others: Any, **kwargs: Any) -> int:
    return 2 * int(math.prod(grad) * 9 * images[1])
