"""``pool_tokens`` in Triton kernels: without a mask, on sequences and images, for a GPU.

The tokens are read once and nothing is added atomically: the same bits on every run. Both directions are
linear and each is the backward of the other, so it is differentiable any number of times.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cbsa.ops.custom import launched_on
from cbsa.ops.kernels import pooling


@torch.library.custom_op("cbsa::pool_tokens_triton", mutates_args=())
def pool_tokens(x: Tensor, grid: Sequence[int], size: Sequence[int]) -> Tensor:
    """Average tokens (B, N, C) over windows, (B, m, C); see :func:`cbsa.ops.pool_tokens`."""
    out = _with_tokens(x, size)
    _run(x, out, grid, size, spread=False)
    return out


@pool_tokens.register_fake
def _(x: Tensor, grid: Sequence[int], size: Sequence[int]) -> Tensor:
    return _with_tokens(x, size)


@torch.library.custom_op("cbsa::pool_tokens_triton_backward", mutates_args=())
def _backward(grad: Tensor, grid: Sequence[int], size: Sequence[int]) -> Tensor:
    """Gradient with respect to the tokens, (B, N, C), from that of the averages, (B, m, C)."""
    out = _with_tokens(grad, grid)
    _run(grad, out, grid, size, spread=True)
    return out


@_backward.register_fake
def _(grad: Tensor, grid: Sequence[int], size: Sequence[int]) -> Tensor:
    return _with_tokens(grad, grid)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, ctx.grid, ctx.size = inputs


pool_tokens.register_autograd(
    lambda ctx, grad: (_backward(grad, ctx.grid, ctx.size), None, None), setup_context=_setup_context
)
_backward.register_autograd(
    lambda ctx, grad: (pool_tokens(grad, ctx.grid, ctx.size), None, None), setup_context=_setup_context
)


def _with_tokens(x: Tensor, layout: Sequence[int]) -> Tensor:
    """Empty (B, prod(layout), C), contiguous."""
    num_tokens = 1
    for n in layout:
        num_tokens *= n
    return x.new_empty(x.shape[0], num_tokens, x.shape[2])


def _run(x: Tensor, out: Tensor, grid: Sequence[int], size: Sequence[int], spread: bool) -> None:
    if out.numel() == 0:
        return
    x = x if x.stride(-1) == 1 else x.contiguous()
    with launched_on(x.device):
        pooling.run(x, out, as_image(grid), as_image(size), spread)


def as_image(layout: Sequence[int]) -> tuple[int, int]:
    """(height, width); a sequence has height 1."""
    height, width = (1, *layout)[-2:]
    return height, width
