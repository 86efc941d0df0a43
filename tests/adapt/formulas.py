"""The operators of an adapted ViT head by head, written independently of the package: tokens are columns."""

import torch
from torch import Tensor

from tests.truth import contraction_columns, extraction_matrix


def _head_by_head(head, tokens: list[Tensor], mask: Tensor | None, everything: list[Tensor]) -> Tensor:
    """Apply ``head(b, h, real)`` (d×N columns) to the real tokens of each element and head."""
    batch, heads, n, _ = tokens[0].shape
    out = torch.zeros_like(tokens[0]) + 0 * sum(x.nan_to_num().sum() for x in everything)
    for b in range(batch):
        real = torch.arange(n) if mask is None else mask[b].nonzero().squeeze(-1)
        for h in range(heads) if len(real) else ():
            out = out.index_put((torch.tensor(b), torch.tensor(h), real), head(b, h, real).T, accumulate=True)
    return out


def cbsa_star(
    k,
    v,
    reps,
    step_rep,
    step_out,
    *,
    mask=None,
    contraction="softmax",
    eps=0.1,
    scale=None,
    broadcast="transpose",
):
    """κ·C·Aᵀ with C contracted from R = Q + η·V A, A = softmax(Kᵀ Q) by columns; or κ·C·softmax_r(Qᵀ K)."""
    s = k.shape[-1] ** -0.5 if scale is None else scale

    def head(b, h, real):
        keys, values, q = k[b, h, real].T, v[b, h, real].T, reps[b, h].T
        a = extraction_matrix(keys, q, s)  # N×m
        r = q + step_rep[h] * values @ a
        back = a.T if broadcast == "transpose" else torch.softmax(s * q.T @ keys, dim=0)  # m×N
        return step_out[h] * contraction_columns(r, contraction, s, eps) @ back

    return _head_by_head(head, [k], mask, [k, v, reps, step_rep, step_out])


def agent(q, k, v, reps, *, mask=None, scale=None, broadcast_scale=None):
    """D·softmax_r(Qᵀ X_q) with D = V softmax_n(Kᵀ Q)."""
    s = q.shape[-1] ** -0.5 if scale is None else scale
    t = s if broadcast_scale is None else broadcast_scale

    def head(b, h, real):
        queries, keys, values, agents = (
            x.T for x in (q[b, h, real], k[b, h, real], v[b, h, real], reps[b, h])
        )
        return values @ extraction_matrix(keys, agents, s) @ torch.softmax(t * agents.T @ queries, dim=0)

    return _head_by_head(head, [q], mask, [q, k, v, reps])


def linear(q, k, v, *, mask=None, kernel="relu"):
    """Its quadratic form: weights φ(q_n)·φ(k_l), normalised to 1 where there are any."""
    phi = {"elu": lambda t: torch.where(t > 0, t + 1, t.clamp(max=0).exp()), "relu": lambda t: t.clamp_min(0)}

    def head(b, h, real):
        weights = phi[kernel](k[b, h, real]) @ phi[kernel](q[b, h, real]).T  # keys × queries
        total = weights.sum(0)
        return v[b, h, real].T @ (weights / torch.where(total > 0, total, 1))

    return _head_by_head(head, [q], mask, [q, k, v])


def plain_cbsa_star(
    k, v, reps, step_rep, step_out, *, contraction="softmax", mask=None, broadcast="transpose"
):
    """What plain PyTorch computes in a given dtype."""
    scale = k.shape[-1] ** -0.5
    scores = (reps @ k.mT) * scale
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None, None, :], -torch.inf)
    a = scores.softmax(-1)
    r = reps + step_rep.to(k.dtype)[:, None, None] * (a @ v)
    if contraction == "softmax":
        r = ((r @ r.mT) * scale).softmax(-1) @ r
    back = a if broadcast == "transpose" else ((reps @ k.mT) * scale).softmax(-2)
    out = step_out.to(k.dtype)[:, None, None] * (back.mT @ r)
    return out if mask is None else out * mask[:, None, :, None]


def plain_agent(q, k, v, reps, *, mask=None):
    """What plain PyTorch computes in a given dtype."""
    scale = q.shape[-1] ** -0.5
    scores = (reps @ k.mT) * scale
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None, None, :], -torch.inf)
    out = ((q @ reps.mT) * scale).softmax(-1) @ (scores.softmax(-1) @ v)
    return out if mask is None else out * mask[:, None, :, None]


def plain_linear(q, k, v, *, kernel="relu"):
    """What plain PyTorch computes in a given dtype."""
    phi = {"elu": lambda t: torch.nn.functional.elu(t) + 1, "relu": torch.relu}[kernel]
    q, k = phi(q), phi(k)
    return (q @ (k.mT @ v)) / (q @ k.sum(-2, keepdim=True).mT).clamp_min(1e-6)
