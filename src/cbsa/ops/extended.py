"""Contract-and-broadcast with options that the paper does not have, in plain PyTorch and in O(N).

Shapes: w (B, H, N, d), representatives (B, H, m, d). With all options at their defaults this is
:func:`cbsa.ops.contract_broadcast`.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from cbsa.ops.api import in_one_dtype
from cbsa.ops.precision import accumulation_dtype
from cbsa.ops.reference import contract, extraction_weights, gather, per_head

BROADCASTS = ("transpose", "per_token", "softmax")
REP_NORMS = ("none", "layer", "rms")


def extended_contract_broadcast(
    w: Tensor,
    reps: Tensor,
    step_rep: Tensor,
    step_out: Tensor,
    *,
    mask: Tensor | None = None,
    contraction: str = "softmax",
    eps: float = 0.1,
    iterations: int = 1,
    rep_norm: str = "none",
    broadcast: str = "transpose",
) -> Tensor:
    """Extract ``iterations`` times, norm the representatives, contract, and broadcast by other weights.

    Args:
        w: projected tokens (B, H, N, d).
        reps: initial representatives (B, H, m, d).
        step_rep: η of each head (H,), of every extraction.
        step_out: κ of each head (H,).
        mask: (B, N) boolean, True = a real token; the output of padding is 0.
        contraction: see :func:`cbsa.ops.contract_broadcast`.
        eps: quantisation precision ε, for ``contraction="exact"``.
        iterations: how often representatives gather from the tokens, each time from where they are by then.
        rep_norm: see :func:`norm_representatives`.
        broadcast: see :func:`both_weights`.

    Returns:
        (B, H, N, d) in the dtype of ``w`` (under autocast, in autocast's dtype).
    """
    w, reps = in_one_dtype(w, reps)
    if mask is not None:
        w = w.masked_fill(~mask[:, None, :, None], 0)
    reps = refine(w, reps, step_rep, iterations - 1, mask)
    a, weights = both_weights(w, reps, broadcast, mask)  # (B, H, m, N), (B, H, N, m)
    r = reps + per_head(step_rep, w.dtype) * gather(a, w)  # (B, H, m, d)
    c = contract(norm_representatives(r, rep_norm), contraction, w.shape[-1] ** -0.5, eps)
    out = per_head(step_out, w.dtype) * (weights @ c)  # (B, H, N, d)
    return out if mask is None else out.masked_fill(~mask[:, None, :, None], 0)


def refine(w: Tensor, reps: Tensor, step_rep: Tensor, times: int, mask: Tensor | None = None) -> Tensor:
    """Representatives (B, H, m, d) after so many extractions Q + η·A(Q) w from the tokens w."""
    for _ in range(times):
        a = extraction_weights(w, reps, w.shape[-1] ** -0.5, mask)
        reps = reps + per_head(step_rep, w.dtype) * gather(a, w)
    return reps


def norm_representatives(r: Tensor, rep_norm: str) -> Tensor:
    """Representatives R (B, H, m, d), each normed over its d channels, without parameters.

    ``"none"``: as they are; ``"layer"``: mean 0 and variance 1; ``"rms"``: mean square 1.
    """
    if rep_norm == "none":
        return r
    wide = r.to(accumulation_dtype(r.dtype))
    norm = F.layer_norm if rep_norm == "layer" else F.rms_norm
    return norm(wide, (r.shape[-1],), eps=1e-6).to(r.dtype)


def both_weights(
    w: Tensor, reps: Tensor, broadcast: str, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Weights A (B, H, m, N) of the extraction, and those of the broadcast (B, H, N, m).

    With scores S = s·w Qᵀ (N×m), A is their softmax over the tokens. By the second, tokens take up contracted
    representatives:

    ``"transpose"``: Aᵀ, the paper's; its rows have no common sum, and a token that no representative attends
    to gets almost nothing. ``"per_token"``: Aᵀ with each row divided by its sum. ``"softmax"``: softmax of S
    over the representatives, as Agent attention has it.
    """
    scale = w.shape[-1] ** -0.5
    if broadcast == "transpose":
        a = extraction_weights(w, reps, scale, mask)
        return a, a.mT
    scores = (w @ (reps * scale).mT).to(accumulation_dtype(w.dtype))  # (B, H, N, m)
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None, :, None], torch.finfo(scores.dtype).min)
    logs = scores.log_softmax(-2)  # of Aᵀ, whose rows may be all 0 once exp is taken
    weights = (logs if broadcast == "per_token" else scores).softmax(-1)
    by_token = logs.exp()
    if mask is not None:
        by_token = by_token.masked_fill(~mask[:, None, :, None], 0)
    return by_token.mT.to(w.dtype), weights.to(w.dtype)
