"""``impl="triton"``: contract-and-broadcast in Triton kernels, for softmax and no contraction.

Nothing of size N×m is stored and nothing is added atomically: the same bits on every run. The kernels are in
``kernels/``; here they become PyTorch operators. Where one program serves a whole head, nothing but the
inputs is saved for the backward; where tokens are split over programs, D = Aw and the log-sum-exp of A.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from cbsa.ops.custom import differentiate, empty_gradients, launched_on, token_major
from cbsa.ops.kernels import gpu, launch

CONTRACTIONS = ("softmax", "none")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_HEAD_DIM = 128


def contract_broadcast(
    w: Tensor,
    reps: Tensor,
    step_rep: Tensor,
    step_out: Tensor,
    mask: Tensor | None,
    scale: float,
    contraction: str,
    eps: float,
) -> Tensor:
    """Extract, contract, broadcast; see :func:`cbsa.ops.contract_broadcast`."""
    refuse(why_not(w, scale, contraction))
    keep = not launch.is_whole(w, reps.shape[2])
    out: Tensor = _forward(w, reps, step_rep, step_out, mask, scale, contraction == "softmax", keep)[0]
    return out


def why_not(w: Tensor, scale: float, contraction: str) -> str | None:
    """What keeps the kernels from being used, or None."""
    if contraction not in CONTRACTIONS:
        return f"has no contraction={contraction!r}"
    if scale <= 0:
        return f"needs a scale above 0, not {scale}"
    if w.dtype not in DTYPES:
        return f"does not support {w.dtype}"
    if w.shape[-1] > MAX_HEAD_DIM:
        return f"supports heads of up to {MAX_HEAD_DIM} dimensions, not {w.shape[-1]}"
    if w.device.type != "cuda" and not gpu.INTERPRETED:
        return f"needs a GPU, but the tokens are on {w.device}"
    if not launch.fits(w):
        return (
            f"in {w.dtype} finds too little shared memory on {w.device} for heads of {w.shape[-1]} dimensions"
        )
    return None


def refuse(obstacle: str | None) -> None:
    """Raise an error that names what keeps the kernels from being used, if anything does."""
    if obstacle:
        raise ValueError(f"impl='triton' {obstacle}; use impl='auto'")


@torch.library.custom_op("cbsa::contract_broadcast_triton", mutates_args=())
def _forward(
    w: Tensor,
    reps: Tensor,
    step_rep: Tensor,
    step_out: Tensor,
    mask: Tensor | None,
    scale: float,
    softmax: bool,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return O (B, H, N, d), and if ``keep``, D (B, H, m, d) and the log₂-sum-exp of A (B, H, m).

    Where the representatives take several blocks, also C and the log₂-sum-exp of its softmax.
    """
    out, *kept = results = empty_results(w, reps, keep)
    if out.numel() > 0:
        with launched_on(w.device):
            launch.run_forward(w, reps, step_rep, step_out, mask, scale, softmax, out, if_kept(kept))
    return results


@_forward.register_fake
def _(w: Tensor, reps: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    *_, keep = others
    return empty_results(w, reps, keep)


@torch.library.custom_op("cbsa::contract_broadcast_triton_backward", mutates_args=())
def _backward(
    grad: Tensor,
    w: Tensor,
    reps: Tensor,
    step_rep: Tensor,
    step_out: Tensor,
    mask: Tensor | None,
    delta: Tensor,
    lse: Tensor,
    c: Tensor,
    lse_c: Tensor,
    scale: float,
    softmax: bool,
    needs_reps: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients with respect to w, reps (zeros if not needed), step_rep and step_out."""
    gradients = empty_gradients(grad, w, reps, step_rep, step_out)
    grad_w, grad_reps, grad_step_rep, grad_step_out = gradients
    if grad_w.numel() == 0:
        return grad_w, grad_reps, grad_step_rep.zero_(), grad_step_out.zero_()
    wanted = (grad_w, grad_reps if needs_reps else None, grad_step_rep, grad_step_out)
    kept = if_kept((delta, lse, c, lse_c))
    with launched_on(w.device):
        launch.run_backward(grad, w, reps, step_rep, step_out, mask, kept, scale, softmax, wanted)
    return gradients if needs_reps else (grad_w, grad_reps.zero_(), grad_step_rep, grad_step_out)


_backward.register_fake(empty_gradients)
# Backward, ``needs_reps`` is in the place of ``keep``.
differentiate(_forward, _backward, lambda ctx: (*ctx.options[:-1], ctx.needs_input_grad[1]))


def count_flops(w: Sequence[int], m: int, softmax: bool) -> int:
    """Operations of the forward, as PyTorch counts them in the reference; the backward has twice as many."""
    batch, heads, n, d = w
    return 2 * batch * heads * (3 * n * m * d + (2 * m * m * d if softmax else 0))


@register_flop_formula(torch.ops.cbsa.contract_broadcast_triton)
def _forward_flops(w: Any, reps: Any, *others: Any, **kwargs: Any) -> int:
    *_, softmax, _ = others
    return count_flops(w, reps[2], softmax)


@register_flop_formula(torch.ops.cbsa.contract_broadcast_triton_backward)
def _backward_flops(grad: Any, *inputs: Any, **kwargs: Any) -> int:
    return 2 * _forward_flops(*inputs)


def empty_results(w: Tensor, reps: Tensor, keep: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """O, D, log-sum-exp of A, C, log-sum-exp of its softmax; all but O in float32, or empty if not kept."""
    shapes = [reps.shape, reps.shape[:-1]]
    blocks = keep and launch.in_blocks(w, reps.shape[2])
    delta, lse = (reps.new_empty(shape if keep else (0,), dtype=torch.float32) for shape in shapes)
    c, lse_c = (reps.new_empty(shape if blocks else (0,), dtype=torch.float32) for shape in shapes)
    return token_major(w), delta, lse, c, lse_c


def if_kept(tensors: Any) -> launch.Kept | None:
    """What was kept for the backward, or None if nothing was."""
    delta, lse, c, lse_c = tensors
    return None if delta.dim() == 1 else (delta, lse, c, lse_c)
