"""Contract-and-broadcast with the options that the paper does not have, of tokens spread over processes.

Each extraction is a softmax over all tokens, merged as that of :mod:`cbsa.parallel.contract_broadcast` is;
what tokens take up concerns each of them alone, by whichever weights. In plain PyTorch, differentiated by
autograd: the sums that are merged have a gradient each, m·(d + 1) numbers per head.
"""

import torch
from torch import Tensor

from cbsa.ops.api import in_one_dtype
from cbsa.ops.extended import norm_representatives
from cbsa.ops.precision import accumulation_dtype
from cbsa.ops.reference import contract, per_head
from cbsa.parallel.collectives import reduce, sum_over_processes
from cbsa.parallel.group import ContextGroup


def extended_contract_broadcast(
    w: Tensor,
    reps: Tensor,
    step_rep: Tensor,
    step_out: Tensor,
    *,
    group: ContextGroup,
    num_prefix_tokens: int = 0,
    mask: Tensor | None = None,
    contraction: str = "softmax",
    eps: float = 0.1,
    iterations: int = 1,
    rep_norm: str = "none",
    broadcast: str = "transpose",
) -> Tensor:
    """:func:`cbsa.ops.extended.extended_contract_broadcast` of tokens of which each process has some.

    Args:
        w: projected tokens of this process (B, H, N, d).
        reps: initial representatives (B, H, m, d), the same in every process.
        step_rep: η of each head (H,).
        step_out: κ of each head (H,).
        group: the processes.
        num_prefix_tokens: how many tokens at the start of w are the same in every process.
        mask: (B, N) boolean, True = a real token.
        contraction: ``"softmax"``, ``"exact"`` or ``"none"``.
        eps: quantisation precision ε, for ``contraction="exact"``.
        iterations: how often representatives gather from the tokens.
        rep_norm: norm of the representatives before contraction.
        broadcast: by which weights tokens take up contracted representatives.

    Returns:
        (B, H, N, d), the outputs of this process's tokens.
    """
    w, reps = in_one_dtype(w, reps)
    padding = None if mask is None else ~mask[:, None, :, None]  # (B, 1, N, 1)
    if padding is not None:
        w = w.masked_fill(padding, 0)
    copies = num_prefix_tokens if group.rank > 0 else 0  # prefix tokens are gathered in the first process
    counted = slice(copies, None)
    for _ in range(iterations):
        scores = _scores(w, reps)  # (B, H, N, m)
        hidden = None if padding is None else padding[:, :, counted]
        delta, lse = _gather(scores[:, :, counted], w[:, :, counted], hidden, group)
        reps = reps + per_head(step_rep, w.dtype) * delta.to(w.dtype)
    c = contract(norm_representatives(reps, rep_norm), contraction, w.shape[-1] ** -0.5, eps)
    logs = scores if broadcast == "softmax" else scores - lse.unsqueeze(-2)  # of Aᵀ
    weights = logs.exp() if broadcast == "transpose" else logs.softmax(-1)
    out = per_head(step_out, w.dtype) * (weights.to(w.dtype) @ c)
    return out if padding is None else out.masked_fill(padding, 0)


def _scores(w: Tensor, reps: Tensor) -> Tensor:
    """s·w Qᵀ (B, H, N, m) in float32 or wider."""
    scores: Tensor = w @ (reps * w.shape[-1] ** -0.5).mT
    return scores.to(accumulation_dtype(w.dtype))


def _gather(scores: Tensor, w: Tensor, padding: Tensor | None, group: ContextGroup) -> tuple[Tensor, Tensor]:
    """A w (B, H, m, d) over the tokens of all processes, and the log-sum-exp of the scores (B, H, m).

    An element without a real token anywhere averages nothing: 0, with log-sum-exp 0.
    """
    if padding is not None:
        scores = scores.masked_fill(padding, -torch.inf)
    top = reduce(scores.detach().amax(-2), "max", group.name)  # (B, H, m)
    top = top.masked_fill(top == -torch.inf, 0)
    shares = (scores - top.unsqueeze(-2)).exp()  # (B, H, n, m)
    sums = torch.cat([shares.mT @ w.to(shares.dtype), shares.sum(-2).unsqueeze(-1)], -1)
    sums = sum_over_processes(sums, group)  # (B, H, m, d + 1)
    total = sums[..., -1]
    total = total.where(total != 0, 1)
    return sums[..., :-1] / total.unsqueeze(-1), top + total.log()
