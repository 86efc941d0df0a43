"""The paper's equations, written independently of the package: tokens are columns, inverses explicit."""

import torch
from torch import Tensor


def extraction_matrix(z: Tensor, q: Tensor, scale: float) -> Tensor:
    """A_k = softmax((U_kᵀZ)ᵀ(U_kᵀQ_ini)), N×m, each column a distribution over tokens (eq. cross-attn)."""
    return torch.softmax(scale * z.T @ q, dim=0)


def contraction_columns(q: Tensor, contraction: str, scale: float, eps: float) -> Tensor:
    """Contraction of representatives q (p×m), eq. CBSA or eq. CBSA-ori."""
    p, m = q.shape
    if contraction == "softmax":
        return q @ torch.softmax(scale * q.T @ q, dim=0)
    if contraction == "exact":
        eye = torch.eye(m, dtype=q.dtype, device=q.device)
        return q @ torch.linalg.inv(eye + p / (m * eps**2) * q.T @ q)
    return q


def cbsa_columns(
    z: Tensor, q: Tensor, eta: Tensor, kappa: Tensor, scale: float, contraction: str, eps: float
) -> Tensor:
    """One head's update κ·Contraction·Aᵀ (p×N) of projected tokens z (p×N) from representatives q (p×m)."""
    a = extraction_matrix(z, q, scale)
    r = q + eta * z @ a
    return kappa * contraction_columns(r, contraction, scale, eps) @ a.T


def contract_broadcast(
    w: Tensor,
    reps: Tensor,
    step_rep: Tensor,
    step_out: Tensor,
    *,
    mask: Tensor | None = None,
    contraction: str = "softmax",
    eps: float = 0.1,
    scale: float | None = None,
) -> Tensor:
    """All batch elements and heads one by one; padding is cut out, and its output is 0."""
    scale = w.shape[-1] ** -0.5 if scale is None else scale
    out = []
    for b in range(w.shape[0]):
        for h in range(w.shape[1]):
            z, q = w[b, h].T, reps[b, h].T
            if mask is None:
                out.append(cbsa_columns(z, q, step_rep[h], step_out[h], scale, contraction, eps).T)
                continue
            real = mask[b].nonzero().squeeze(-1)
            full = torch.zeros_like(z).T
            if len(real):
                o = cbsa_columns(z[:, real], q, step_rep[h], step_out[h], scale, contraction, eps)
                full = full.index_copy(0, real, o.T)
            out.append(full + 0 * (z.nan_to_num().sum() + q.sum() + step_rep.sum() + step_out.sum()))
    if not out:
        return 0 * (w + reps.sum() + step_rep.sum() + step_out.sum())
    return torch.stack(out).reshape(w.shape)


def listing(
    w: Tensor,
    reps: Tensor,
    step_rep: Tensor,
    step_out: Tensor,
    contraction: str = "softmax",
    mask: Tensor | None = None,
) -> Tensor:
    """The paper's listing (appendix D) after the projection: what plain PyTorch computes in a given dtype."""
    scale = w.shape[-1] ** -0.5
    eta, kappa = (s.to(w.dtype)[:, None, None] for s in (step_rep, step_out))
    scores = (reps @ w.transpose(-1, -2)) * scale
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None, None, :], -torch.inf)
    attn = scores.softmax(-1)
    rep = reps + eta * (attn @ w)
    if contraction == "softmax":
        rep = ((rep @ rep.transpose(-1, -2)) * scale).softmax(-1) @ rep
    return kappa * (attn.transpose(-1, -2) @ rep)


def coding_rate(z: Tensor, eps: float) -> Tensor:
    """R(Z) of columns z (d×N) by its definition (eq. cr), with the N×N Gram matrix."""
    d, n = z.shape
    eye = torch.eye(n, dtype=z.dtype, device=z.device)
    return torch.logdet(eye + d / (n * eps**2) * z.T @ z) / 2
