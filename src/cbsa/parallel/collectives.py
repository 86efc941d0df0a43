"""Collectives over the processes of a sequence, on PyTorch's functional collectives.

Gradients follow one rule: every process computes the same loss, and what is differentiated is the *sum* of
these losses over the processes. So the adjoint of a sum over processes is a sum over processes, and the
*mean* of the parameters' gradients over processes, which DDP and FSDP2 take anyway, is the gradient of the
loss.

The differentiable ones are operators of their own, so that compiled code calls them as they are.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from cbsa.parallel.group import ContextGroup
from cbsa.parallel.traffic import record

_functional = torch.ops._c10d_functional


class LostProcessError(RuntimeError):
    """Another process of the group ended, or did not answer in time."""


@contextmanager
def _answered(collective: str, name: str) -> Iterator[None]:
    """Say what a failed collective means."""
    try:
        yield
    except RuntimeError as error:
        raise LostProcessError(
            f"{collective} among the processes that share a sequence (group {name!r}) failed: another "
            "process has ended, is stuck beyond the timeout of init_process_group, or called another "
            "collective. Its own output says why; start all processes again, as torchrun --max-restarts "
            f"does. ({error})"
        ) from error


def reduce(x: Tensor, operation: str, name: str) -> Tensor:
    """``"sum"`` or ``"max"`` of x over the processes of the group called ``name``; not differentiable."""
    x = x.contiguous()
    record("all_reduce", x)
    with _answered("an all-reduce", name):
        return _functional.wait_tensor(_functional.all_reduce(x, operation, name))  # type: ignore[no-any-return]


def gather(x: Tensor, group: ContextGroup) -> Tensor:
    """What each process has as x, stacked along a new first dimension; not differentiable."""
    x = x.contiguous()
    record("all_gather", x)
    with _answered("an all-gather", group.name):
        gathered: Tensor = _functional.wait_tensor(
            _functional.all_gather_into_tensor(x.reshape(1, -1), group.size, group.name)
        )
    return gathered.reshape(group.size, *x.shape)


def sum_over_processes(x: Tensor, group: ContextGroup) -> Tensor:
    """Sum of x over the processes; its gradient is the sum of their gradients."""
    summed: Tensor = _sum(x, group.name)
    return summed


@torch.library.custom_op("cbsa::sum_over_processes", mutates_args=())
def _sum(x: Tensor, name: str) -> Tensor:
    return reduce(x, "sum", name)


@_sum.register_fake
def _(x: Tensor, name: str) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _sum_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, ctx.name = inputs


def _sum_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return _sum(grad, ctx.name), None


_sum.register_autograd(_sum_backward, setup_context=_sum_context)


def shift(x: Tensor, group: ContextGroup, by: int = 1) -> Tensor:
    """What the process ``by`` places before has as x, zeros where there is none; all x have one shape."""
    shifted: Tensor = _shift(x, by, group.name, group.rank, group.size)
    return shifted


@torch.library.custom_op("cbsa::shift_over_processes", mutates_args=())
def _shift(x: Tensor, by: int, name: str, rank: int, size: int) -> Tensor:
    to, origin = rank + by, rank - by
    sent = x.reshape(-1) if 0 <= to < size else x.new_empty(0)
    sizes = [[0] * size, [0] * size]  # of what comes from each process, and of what goes to it
    for splits, other in zip(sizes, (origin, to), strict=True):
        if 0 <= other < size:
            splits[other] = x.numel()
    record("all_to_all", sent)
    with _answered("an exchange of rows", name):
        received: Tensor = _functional.wait_tensor(
            _functional.all_to_all_single(sent.contiguous(), *sizes, name)
        )
    return received.view(x.shape) if 0 <= origin < size else torch.zeros_like(x).contiguous()


@_shift.register_fake
def _(x: Tensor, by: int, name: str, rank: int, size: int) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _shift_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, ctx.by, ctx.name, ctx.rank, ctx.size = inputs


def _shift_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return _shift(grad, -ctx.by, ctx.name, ctx.rank, ctx.size), None, None, None, None


_shift.register_autograd(_shift_backward, setup_context=_shift_context)
