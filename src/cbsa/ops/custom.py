"""What the implementations that are PyTorch operators of their own share."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn

import torch
from torch import Tensor


def launched_on(device: torch.device) -> AbstractContextManager[object]:
    """Context in which kernels are launched on the device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def token_major(w: Tensor) -> Tensor:
    """Empty (B, H, N, d) with a token's heads adjacent in memory, so that merging heads is free."""
    batch, heads, n, d = w.shape
    return w.new_empty(batch, n, heads, d).transpose(1, 2)


def empty_gradients(
    w: Tensor, reps: Tensor, step_rep: Tensor, step_out: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Memory for the gradients, as the backward lays them out."""
    return (
        token_major(w),
        reps.new_empty(reps.shape),
        step_rep.new_empty(step_rep.shape),
        step_out.new_empty(step_out.shape),
    )


def no_second_derivative(ctx: Any, *_: Any) -> NoReturn:
    """Backward of a backward: there is none."""
    raise NotImplementedError(
        'this implementation of the operator has no second derivative; use impl="reference" for one'
    )
