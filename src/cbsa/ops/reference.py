"""``impl="reference"``: contract-and-broadcast in plain PyTorch, the specification of every other one.

Tokens are rows here; the paper writes them as columns. Shapes: w (B, H, N, d), representatives (B, H, m, d).
"""

import torch
from torch import Tensor

from cbsa._tracing import is_exporting
from cbsa.ops.resolvent import resolvent

_SHORT = 1024  # tokens up to which the layout of compiled code was measured (257 and 197)


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
    if mask is not None:
        w = w.masked_fill(~mask[:, None, :, None], 0)
    return _extract_contract_broadcast(w, w, reps, step_rep, step_out, mask, scale, contraction, eps)


def contract_broadcast_kv(
    k: Tensor,
    v: Tensor,
    reps: Tensor,
    step_rep: Tensor,
    step_out: Tensor,
    mask: Tensor | None,
    scale: float,
    contraction: str,
    eps: float,
) -> Tensor:
    """The same with keys and values of their own; see :func:`cbsa.ops.contract_broadcast_kv`."""
    if mask is not None:
        k, v = (x.masked_fill(~mask[:, None, :, None], 0) for x in (k, v))
    return _extract_contract_broadcast(k, v, reps, step_rep, step_out, mask, scale, contraction, eps)


def contract_broadcast_by_softmax(
    k: Tensor,
    v: Tensor,
    reps: Tensor,
    step_rep: Tensor,
    step_out: Tensor,
    mask: Tensor | None,
    scale: float,
    contraction: str,
    eps: float,
) -> Tensor:
    """The same with ``broadcast="softmax"``; extraction and broadcast share their scores."""
    if mask is not None:
        k, v = (x.masked_fill(~mask[:, None, :, None], 0) for x in (k, v))
    scores = (reps * scale) @ k.mT  # (B, H, m, N)
    r = reps + per_head(step_rep, v.dtype) * (_softmax_over_tokens(scores, -1, mask) @ v)  # (B, H, m, d)
    c = contract(r, contraction, scale, eps)  # (B, H, m, d)
    out = per_head(step_out, v.dtype) * (scores.softmax(-2).mT @ c)  # (B, H, N, d)
    return out if mask is None else out.masked_fill(~mask[:, None, :, None], 0)


def _extract_contract_broadcast(
    k: Tensor,
    v: Tensor,
    reps: Tensor,
    step_rep: Tensor,
    step_out: Tensor,
    mask: Tensor | None,
    scale: float,
    contraction: str,
    eps: float,
) -> Tensor:
    """All three steps, from tokens whose padding is 0: they are found by k, and v is gathered."""
    a = extraction_weights(k, reps, scale, mask)  # (B, H, m, N)
    r = reps + per_head(step_rep, v.dtype) * gather(a, v)  # (B, H, m, d)
    c = contract(r, contraction, scale, eps)  # (B, H, m, d)
    return per_head(step_out, v.dtype) * (a.mT @ c)  # (B, H, N, d)


def gather(a: Tensor, v: Tensor) -> Tensor:
    """Gather A v (B, H, m, d) of values v (B, H, N, d), laid out such that gradients of A lie as A does."""
    return (v.mT @ a.mT).mT if _lies_by_token(v) else a @ v


def extraction_weights(w: Tensor, reps: Tensor, scale: float, mask: Tensor | None = None) -> Tensor:
    """Attention A = softmax_n(s·Q wᵀ) of the representatives over the tokens (eq. cross-attn), (B, H, m, N).

    Padding gets exactly 0, also where a whole row is padding.
    """
    by_token = _lies_by_token(w)
    scores = w @ (reps * scale).mT if by_token else (reps * scale) @ w.mT
    a = _softmax_over_tokens(scores, -2 if by_token else -1, mask)
    return a.mT if by_token else a


def _softmax_over_tokens(scores: Tensor, axis: int, mask: Tensor | None) -> Tensor:
    """Softmax of scores (B, H, m, N), or (B, H, N, m) with ``axis=-2``, over the real tokens."""
    if mask is None:
        return scores.softmax(axis)
    padding = ~(mask[:, None, :, None] if axis == -2 else mask[:, None, None, :])
    return scores.masked_fill(padding, torch.finfo(scores.dtype).min).softmax(axis).masked_fill(padding, 0)


def _lies_by_token(w: Tensor) -> bool:
    """Whether A is laid out token by token in memory, a matter of speed alone.

    With CLS, N is odd, and products with rows of odd length run on a GPU's slowest kernels. Compiled code is
    faster with rows of m then, as long as sequences are short; eager softmax is made for rows of N.
    """
    return torch.compiler.is_compiling() and not is_exporting() and w.shape[2] <= _SHORT


def contract(r: Tensor, contraction: str, scale: float, eps: float) -> Tensor:
    """Contract representatives R (..., m, d) among themselves.

    ``"softmax"``: softmax(s·RRᵀ)R (eq. CBSA); ``"exact"``: (I + d/(m ε²)·RRᵀ)⁻¹R (eq. CBSA-ori);
    ``"none"``: R itself, which makes the whole an Agent attention.
    """
    if contraction == "softmax":
        return ((r * scale) @ r.mT).softmax(-1) @ r
    if contraction == "exact":
        return resolvent(r, exact_factor(r, eps))
    return r


def exact_factor(r: Tensor, eps: float) -> float:
    """c = d/(m ε²) of the coding rate of representatives R (..., m, d)."""
    m, d = r.shape[-2:]
    return d / (m * eps**2)


def per_head(step: Tensor, dtype: torch.dtype) -> Tensor:
    """Step sizes (H,) as (H, 1, 1) in ``dtype``."""
    return step.to(dtype).view(-1, 1, 1)
