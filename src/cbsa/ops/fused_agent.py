"""``impl="triton"`` of CBSA∨, Agent attention: extraction and broadcast in Triton kernels.

Nothing of size N×m is stored and nothing is added atomically. Saved for the backward are the inputs, what the
representatives gathered, D, and the log-sum-exp of the extraction.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from cbsa.ops import fused
from cbsa.ops.custom import differentiate, empty_results, launched_on, token_major
from cbsa.ops.kernels import launch_agent


def agent_attention(
    q: Tensor, k: Tensor, v: Tensor, reps: Tensor, mask: Tensor | None, scale: float, sharpness: float
) -> Tensor:
    """Gather, then read; see :func:`cbsa.ops.agent_attention`."""
    fused.refuse(why_not(q, scale, sharpness))
    out: Tensor = _forward(q, k, v, reps, mask, scale, sharpness)[0]
    return out


def why_not(q: Tensor, scale: float, sharpness: float) -> str | None:
    """What keeps the kernels from being used, or None."""
    return fused.why_not(q, min(scale, sharpness), "none")


@torch.library.custom_op("cbsa::agent_attention_triton", mutates_args=())
def _forward(
    q: Tensor, k: Tensor, v: Tensor, reps: Tensor, mask: Tensor | None, scale: float, sharpness: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return O (B, H, N, d), D (B, H, m, d) and the log₂-sum-exp of the extraction (B, H, m)."""
    results = empty_results(q, reps)
    if results[0].numel() > 0:
        with launched_on(q.device):
            launch_agent.run_forward(q, k, v, reps, mask, scale, sharpness, *results)
    return results


@_forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, reps: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    return empty_results(q, reps)


def _empty_gradients(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, reps: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Memory for the gradients, as the backward lays them out."""
    return token_major(q), token_major(k), token_major(v), reps.new_empty(reps.shape)


@torch.library.custom_op("cbsa::agent_attention_triton_backward", mutates_args=())
def _backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    reps: Tensor,
    mask: Tensor | None,
    delta: Tensor,
    lse: Tensor,
    scale: float,
    sharpness: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients with respect to q, k, v and reps."""
    gradients = _empty_gradients(grad, q, k, v, reps)
    if grad.numel() > 0:
        with launched_on(q.device):
            launch_agent.run_backward(
                grad, q, k, v, reps, mask, delta, lse, scale, sharpness, gradients
            )  # fmt: skip
    return gradients


_backward.register_fake(_empty_gradients)
differentiate(_forward, _backward)


@register_flop_formula(torch.ops.cbsa.agent_attention_triton)
def _forward_flops(q: Any, k: Any, v: Any, reps: Any, *others: Any, **kwargs: Any) -> int:
    """Operations of the forward, as PyTorch counts them in the reference: two products each way."""
    batch, heads, n, d = q
    return int(2 * batch * heads * 4 * n * reps[2] * d)


@register_flop_formula(torch.ops.cbsa.agent_attention_triton_backward)
def _backward_flops(grad: Any, *inputs: Any, **kwargs: Any) -> int:
    return 2 * _forward_flops(*inputs)
