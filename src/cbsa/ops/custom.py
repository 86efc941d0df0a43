"""What the implementations that are PyTorch operators of their own share."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from operator import attrgetter
from typing import Any, NoReturn

import torch
from torch import Tensor

from cbsa.ops.precision import accumulation_dtype


def launched_on(device: torch.device) -> AbstractContextManager[object]:
    """Context in which kernels are launched on the device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def token_major(w: Tensor) -> Tensor:
    """Empty (B, H, N, d) with a token's heads adjacent in memory, so that merging heads is free."""
    batch, heads, n, d = w.shape
    return w.new_empty(batch, n, heads, d).transpose(1, 2)


def token_strides(w: Tensor) -> tuple[int, ...]:
    """The strides of :func:`token_major`."""
    _, heads, n, d = w.shape
    return (n * heads * d, d, heads * d, 1)


def empty_results(w: Tensor, reps: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Memory for the output (B, H, N, d), and for what :func:`empty_extraction` has."""
    return token_major(w), *empty_extraction(w, reps)


def empty_gradients(
    grad: Tensor, w: Tensor, reps: Tensor, step_rep: Tensor, step_out: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Memory for the gradients with respect to w, reps and both steps, as the backward lays them out."""
    return (
        token_major(w),
        reps.new_empty(reps.shape),
        step_rep.new_empty(step_rep.shape),
        step_out.new_empty(step_out.shape),
    )


def empty_gradients_kv(
    grad: Tensor, k: Tensor, v: Tensor, reps: Tensor, step_rep: Tensor, step_out: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The same with respect to keys and values in place of w."""
    of_k, of_reps, of_step_rep, of_step_out = empty_gradients(grad, k, reps, step_rep, step_out)
    return of_k, token_major(v), of_reps, of_step_rep, of_step_out


def empty_extraction(w: Tensor, reps: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    """Memory for D = A w (B, H, m, d) and the log-sum-exp of A's rows (B, H, m)."""
    lse = reps.new_empty(reps.shape[:-1], dtype=accumulation_dtype(w.dtype))
    return reps.new_empty(reps.shape), lse


def empty_extraction_gradients(
    grad: Tensor | None, grad_lse: Tensor | None, w: Tensor, reps: Tensor, *_: Any
) -> tuple[Tensor, Tensor]:
    """Memory for the gradients of an extraction with respect to w and reps."""
    return token_major(w), reps.new_empty(reps.shape)


def empty_broadcast(w: Tensor, *_: Any) -> Tensor:
    """Memory for what a broadcast takes to the tokens w."""
    return token_major(w)


def empty_broadcast_gradients(
    grad: Tensor, w: Tensor, reps: Tensor, c: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Memory for the gradients of a broadcast with respect to w, reps and c."""
    return token_major(w), reps.new_empty(reps.shape), c.new_empty(c.shape)


def differentiate(forward: Any, backward: Any, options: Callable[[Any], Any] = attrgetter("options")) -> None:
    """Make ``backward`` the derivative of ``forward``, which itself has none.

    ``forward(*tensors, *options)`` returns an output, and after it what it keeps for
    ``backward(grad, *tensors, *kept, *options)``, which returns the gradients of the first tensors. Where it
    takes other ``options``, that makes them of the context.
    """

    def run_backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * len(ctx.needs_input_grad)
        gradients = as_tuple(backward(grad, *ctx.saved_tensors, *options(ctx)))
        return (*gradients, *[None] * (len(ctx.needs_input_grad) - len(gradients)))

    forward.register_autograd(run_backward, setup_context=keep_for_backward)
    backward.register_autograd(no_second_derivative)


def differentiate_all(forward: Any, backward: Any) -> None:
    """The same for an operator all of whose outputs have gradients, and are kept.

    It is ``backward(*grads, *tensors, *output, *options)``, None for a gradient that there is not.
    """

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        tensors, ctx.options = tensors_and_options(inputs)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, *output)

    def run_backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        gradients = backward(*grads, *ctx.saved_tensors, *ctx.options)
        return (*gradients, *[None] * (len(ctx.needs_input_grad) - len(gradients)))

    forward.register_autograd(run_backward, setup_context=setup_context)
    backward.register_autograd(no_second_derivative)


def keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor | tuple[Tensor, ...]) -> None:
    """Save an operator's tensors, None among them, and what it keeps; the rest of its inputs are options."""
    tensors, ctx.options = tensors_and_options(inputs)
    kept = as_tuple(output)[1:]
    ctx.mark_non_differentiable(*kept)
    ctx.set_materialize_grads(False)  # no zeros for what is kept
    ctx.save_for_backward(*tensors, *kept)


def tensors_and_options(inputs: tuple[Any, ...]) -> tuple[list[Tensor | None], tuple[Any, ...]]:
    """An operator's inputs: its tensors come first, and some may be None; options never are."""
    tensors = [x for x in inputs if x is None or isinstance(x, Tensor)]
    return tensors, inputs[len(tensors) :]


def as_tuple(output: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """What an operator returned, also where that is one tensor."""
    return (output,) if isinstance(output, Tensor) else output


def no_second_derivative(ctx: Any, *_: Any) -> NoReturn:
    """Backward of a backward: there is none."""
    raise NotImplementedError(
        'this implementation of the operator has no second derivative; use impl="reference" for one'
    )
