"""The paper's listing (appendix, "PyTorch implementation of CBSA") between its two projections.

It is what the paper's own code computes and how, step by step: the truth of the accuracy gate when it runs in
float64, and one of the things that are timed.
"""

import torch
from torch import Tensor
from torch.nn import functional as F


def listing(
    w: Tensor, reps: Tensor, step_rep: Tensor, step_out: Tensor, *, contraction: str = "softmax"
) -> Tensor:
    """Extraction, contraction and broadcast as listed; ``contraction="none"`` leaves the second out (Agent).

    Args:
        w: projected tokens (B, H, N, d).
        reps: initial representatives (B, H, m, d).
        step_rep: step size of each head for the representatives (H,).
        step_out: step size of each head for the tokens (H,).
        contraction: ``"softmax"`` or ``"none"``.
    """
    delta, attention = _attend(reps, w, w)
    reps = reps + _per_head(step_rep, w) * delta
    out = _attend(reps, reps, reps)[0] if contraction == "softmax" else reps
    return _per_head(step_out, w) * (attention.transpose(-1, -2) @ out)


def pooled_listing(
    w: Tensor, step_rep: Tensor, step_out: Tensor, grid: tuple[int, int], windows: tuple[int, int]
) -> Tensor:
    """The listing from its pooling on; of the tokens it pools all but the first, CLS."""
    batch, heads, _, d = w.shape
    patches = w[:, :, 1:].transpose(-1, -2).reshape(batch, heads * d, *grid)
    pooled = F.adaptive_avg_pool2d(patches, windows)  # (B, H d, p, q)
    reps = pooled.reshape(batch, heads, d, windows[0] * windows[1]).transpose(-1, -2)
    return listing(w, reps, step_rep, step_out)


def _attend(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    attention = torch.softmax((query @ key.transpose(-1, -2)) * query.shape[-1] ** -0.5, dim=-1)
    return attention @ value, attention


def _per_head(step: Tensor, like: Tensor) -> Tensor:
    return step.to(like.dtype).view(-1, 1, 1)
