"""Contract-and-broadcast with options that the paper does not have, in O(N).

Shapes: w (B, H, N, d), representatives (B, H, m, d). With all options at their defaults this is
:func:`cbsa.ops.contract_broadcast`. Options concern the m representatives alone, or the way back to the
tokens: extraction and broadcast are parts that each implementation has, and what lies in between is plain
PyTorch.
"""

from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from cbsa._checks import check_choice, check_eps, check_int, check_mask
from cbsa.ops import extended_sdpa
from cbsa.ops.api import (
    CONTRACTIONS,
    IMPLEMENTATIONS,
    check_tensors,
    choose_pytorch,
    contract_broadcast,
    implementation,
    in_one_dtype,
)
from cbsa.ops.availability import triton_is_missing
from cbsa.ops.precision import accumulation_dtype, no_autocast
from cbsa.ops.reference import contract, extraction_weights, gather, per_head
from cbsa.ops.sdpa import extracted

BROADCASTS = ("transpose", "per_token", "softmax")
REP_NORMS = ("none", "layer", "rms")


class Parts(NamedTuple):
    """An implementation of extraction and broadcast that stores nothing of size N×m.

    Attributes:
        gather: D = A w of (w, reps, mask, scale).
        extract: the same, and the log-sum-exp of A's rows, which some broadcasts need.
        broadcasts: for each of :data:`BROADCASTS`, the product of its weights and contractions c in float32
            or wider, of (w, reps, c, lse, mask, scale).
    """

    gather: Callable[[Tensor, Tensor, Tensor | None, float], Tensor]
    extract: Callable[[Tensor, Tensor, Tensor | None, float], tuple[Tensor, Tensor]]
    broadcasts: dict[str, Callable[..., Tensor]]


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
    impl: str = "auto",
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
        impl: see :func:`cbsa.ops.contract_broadcast`. ``"auto"`` takes kernels of our own for that operator
            alone, where it is a part of this one; the parts by themselves are sdpa on a GPU, elsewhere the
            reference or sdpa by size.

    Returns:
        (B, H, N, d) in the dtype of ``w`` (under autocast, in autocast's dtype).
    """
    check_choice("contraction", contraction, CONTRACTIONS)
    check_choice("rep_norm", rep_norm, REP_NORMS)
    check_choice("broadcast", broadcast, BROADCASTS)
    check_choice("impl", impl, IMPLEMENTATIONS)
    check_int("iterations", iterations)
    check_tensors(w, reps, step_rep, step_out)
    check_mask(mask, w.shape[0], w.shape[2], w.device)
    eps = check_eps(eps)
    w, reps = in_one_dtype(w, reps)
    scale = w.shape[-1] ** -0.5
    chosen = implementation(impl, lambda: _choose(w, reps), w, reps, step_rep, step_out)
    with no_autocast(w.device):
        parts = None if chosen == "reference" else _parts(chosen, w, scale, contraction, broadcast)
        reps = refine(w, reps, step_rep, iterations - 1, mask, parts)
        if (rep_norm, broadcast) == ("none", "transpose"):
            return contract_broadcast(
                w, reps, step_rep, step_out, mask=mask, contraction=contraction, eps=eps, impl=impl
            )
        if parts is None:
            return _reference(w, reps, step_rep, step_out, mask, contraction, eps, rep_norm, broadcast)
        return by_parts(w, reps, step_rep, step_out, mask, parts, contraction, eps, rep_norm, broadcast)


def _choose(w: Tensor, reps: Tensor) -> str:
    """Pick the implementation of the parts for ``impl="auto"``: kernels for them were not timed yet."""
    return "sdpa" if w.device.type == "cuda" else choose_pytorch(w, reps)


def _parts(impl: str, w: Tensor, scale: float, contraction: str, broadcast: str) -> Parts:
    module: ModuleType
    if impl == "triton":
        try:
            from cbsa.ops import fused_extended
        except ImportError as error:
            raise triton_is_missing(error) from error
        fused_extended.refuse(w, scale, contraction, broadcast)
        module = fused_extended
    else:
        module = extended_sdpa
    broadcasts = (module.broadcast_transposed, module.broadcast_per_token, module.broadcast_by_softmax)
    return Parts(module.gather, module.extract, dict(zip(BROADCASTS, broadcasts, strict=True)))


def by_parts(
    w: Tensor,
    reps: Tensor,
    step_rep: Tensor,
    step_out: Tensor,
    mask: Tensor | None,
    parts: Parts,
    contraction: str,
    eps: float,
    rep_norm: str,
    broadcast: str,
) -> Tensor:
    """The last extraction, contraction and broadcast, the first and the last by an implementation's parts."""
    scale = w.shape[-1] ** -0.5
    delta, lse = (
        (parts.gather(w, reps, mask, scale), None)
        if broadcast == "softmax"
        else parts.extract(w, reps, mask, scale)
    )
    r = norm_representatives(extracted(reps, delta, step_rep), rep_norm)  # float32 or wider
    c = per_head(step_out, r.dtype) * _contract(r, contraction, scale, eps)
    return parts.broadcasts[broadcast](w, reps, c, lse, mask, scale)


def _contract(r: Tensor, contraction: str, scale: float, eps: float) -> Tensor:
    """:func:`contract`, by PyTorch's fused attention where it is one: nothing of size m×m is stored."""
    if contraction == "softmax":
        return F.scaled_dot_product_attention(r, r, r, scale=scale)
    return contract(r, contraction, scale, eps)


def _reference(
    w: Tensor,
    reps: Tensor,
    step_rep: Tensor,
    step_out: Tensor,
    mask: Tensor | None,
    contraction: str,
    eps: float,
    rep_norm: str,
    broadcast: str,
) -> Tensor:
    """The last extraction, contraction and broadcast in plain PyTorch: the specification."""
    if mask is not None:
        w = w.masked_fill(~mask[:, None, :, None], 0)
    a, weights = both_weights(w, reps, broadcast, mask)  # (B, H, m, N), (B, H, N, m)
    r = reps + per_head(step_rep, w.dtype) * gather(a, w)  # (B, H, m, d)
    c = contract(norm_representatives(r, rep_norm), contraction, w.shape[-1] ** -0.5, eps)
    out = per_head(step_out, w.dtype) * (weights @ c)  # (B, H, N, d)
    return out if mask is None else out.masked_fill(~mask[:, None, :, None], 0)


def refine(
    w: Tensor,
    reps: Tensor,
    step_rep: Tensor,
    times: int,
    mask: Tensor | None = None,
    parts: Parts | None = None,
) -> Tensor:
    """Representatives (B, H, m, d) after so many extractions Q + η·A(Q) w from the tokens w."""
    gather_tokens = _gather if parts is None else parts.gather
    for _ in range(times):
        delta = gather_tokens(w, reps, mask, w.shape[-1] ** -0.5)
        reps = extracted(reps, delta, step_rep).to(w.dtype)
    return reps


def _gather(w: Tensor, reps: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """D = A w (B, H, m, d) in plain PyTorch."""
    if mask is not None:
        w = w.masked_fill(~mask[:, None, :, None], 0)
    return gather(extraction_weights(w, reps, scale, mask), w)


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
