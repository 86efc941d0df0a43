"""``impl="reference"``: contract-and-broadcast in plain PyTorch, the specification of every other one.

Tokens are rows here; the paper writes them as columns. Shapes: w (B, H, N, d), representatives (B, H, m, d).
"""

import torch
from torch import Tensor

from cbsa.ops.resolvent import resolvent


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
    at = extraction_weights(w, reps, scale, mask).mT  # Aᵀ (B, H, N, m), as it lies in memory
    gathered = (w.mT @ at).mT  # A w; written so that the gradient of Aᵀ lies as Aᵀ does
    r = reps + per_head(step_rep, w.dtype) * gathered  # (B, H, m, d)
    c = contract(r, contraction, scale, eps)  # (B, H, m, d)
    return per_head(step_out, w.dtype) * (at @ c)  # (B, H, N, d)


def extraction_weights(w: Tensor, reps: Tensor, scale: float, mask: Tensor | None = None) -> Tensor:
    """Attention A = softmax_n(s·Q wᵀ) of the representatives over the tokens (eq. cross-attn), (B, H, m, N).

    Padding gets exactly 0, also where a whole row is padding. In memory A lies token by token: N is odd more
    often than not, with CLS, and products with rows of odd length run on a GPU's slowest kernels.
    """
    scores = w @ (reps * scale).mT  # (B, H, N, m)
    if mask is None:
        return scores.softmax(-2).mT
    padding = ~mask[:, None, :, None]
    return scores.masked_fill(padding, torch.finfo(w.dtype).min).softmax(-2).masked_fill(padding, 0).mT


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
