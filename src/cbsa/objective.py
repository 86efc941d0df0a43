"""The objective that the operators descend: coding rate, compression, sparse rate reduction.

Tokens are rows, z (..., N, d); every leading dimension is a batch. Rates are in nats. All of it is computed
in float64 where the device has it and returned in float32, or float64 for float64 input; it is
differentiable, and the gradients are also here in closed form.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from cbsa._checks import check_eps, check_floating, check_number
from cbsa.ops.precision import accumulation_dtype, no_autocast, solve_dtype
from cbsa.ops.resolvent import half_logdet_of_shifted, resolvent

__all__ = [
    "coding_rate",
    "coding_rate_gradient",
    "compression",
    "compression_gradient",
    "rate_reduction",
    "rate_reduction_gradient",
]


def coding_rate(z: Tensor, eps: float = 0.1, *, normalize: bool = False) -> Tensor:
    """Coding rate R(Z) = ½ logdet(I + d/(N ε²)·ZZᵀ) (eq. cr): how many nats cover the tokens by ε-balls.

    Args:
        z: tokens (..., N, d).
        eps: quantisation precision ε.
        normalize: scale each token to unit length first. The rate then depends on angles alone (the
            normalised coding rate of the paper's figure).

    Returns:
        (...).
    """
    _check_tokens(z)
    c = _factor(z, eps)
    with no_autocast(z.device):
        x = z.to(solve_dtype(z.device))
        if normalize:
            x = F.normalize(x, dim=-1)
        side = x if x.shape[-2] <= x.shape[-1] else x.mT  # Sylvester: logdet(I + XXᵀ) = logdet(I + XᵀX)
        return half_logdet_of_shifted(side @ side.mT, c).to(accumulation_dtype(z.dtype))


def compression(z: Tensor, bases: Tensor, eps: float = 0.1, *, normalize: bool = False) -> Tensor:
    """Compression term R_c(Z | U_[K]) = Σ_k R(U_kᵀZ) of eq. MCR2.

    Args:
        z: tokens (..., N, d).
        bases: U_[K] (K, d, p).
        eps: quantisation precision ε.
        normalize: scale the projected tokens to unit length in each subspace.

    Returns:
        (...).
    """
    rates = coding_rate(_project(z, bases), eps, normalize=normalize).sum(-1)
    return rates.to(accumulation_dtype(z.dtype))


def rate_reduction(z: Tensor, bases: Tensor, lam: float = 0.1, eps: float = 0.1) -> Tensor:
    """Sparse rate reduction ΔR(Z | U_[K]) = R(Z) − R_c(Z | U_[K]) − λ‖Z‖₀ (eq. MCR2), to be maximised.

    ``lam=0`` is the maximal coding rate reduction MCR². ‖Z‖₀ counts non-zero entries and has no gradient.
    """
    check_number("lam", lam, at_least=0)
    rate = coding_rate(z, eps)
    return rate - compression(z, bases, eps) - lam * (z != 0).sum((-2, -1)).to(rate.dtype)


def coding_rate_gradient(z: Tensor, eps: float = 0.1) -> Tensor:
    """∇R(Z) = c·Z (I + c·ZᵀZ)⁻¹ with c = d/(N ε²), (..., N, d) in the dtype of ``z``."""
    _check_tokens(z)
    c = _factor(z, eps)
    return c * resolvent(z, c)


def compression_gradient(z: Tensor, bases: Tensor, eps: float = 0.1) -> Tensor:
    """∇R_c(Z | U_[K]) = Σ_k ∇R(U_kᵀZ) U_kᵀ, (..., N, d) in the dtype of ``z``: what MSSA approximates."""
    gradients = coding_rate_gradient(_project(z, bases), eps)  # (..., K, N, p)
    with no_autocast(z.device):
        return torch.einsum("...knp,kdp->...nd", gradients, bases.to(gradients.dtype)).to(z.dtype)


def rate_reduction_gradient(z: Tensor, bases: Tensor, eps: float = 0.1) -> Tensor:
    """Gradient of the smooth part of :func:`rate_reduction`, ∇R(Z) − ∇R_c(Z | U_[K])."""
    return coding_rate_gradient(z, eps) - compression_gradient(z, bases, eps)


def _factor(z: Tensor, eps: float) -> float:
    n, d = z.shape[-2:]
    return d / (n * check_eps(eps) ** 2)


def _check_tokens(z: Tensor) -> None:
    check_floating("z", z)
    if z.dim() < 2 or z.shape[-2] < 1 or z.shape[-1] < 1:
        raise ValueError(f"z must have shape (..., N, d) with N, d >= 1, got {tuple(z.shape)}")


def _project(z: Tensor, bases: Tensor) -> Tensor:
    """Tokens (..., N, d) within each subspace, (..., K, N, p), in the precision everything is computed in."""
    _check_tokens(z)
    check_floating("bases", bases)
    if bases.dim() != 3 or bases.shape[1] != z.shape[-1] or min(bases.shape) < 1:
        raise ValueError(f"bases must have shape (K, d, p) with d = {z.shape[-1]}, got {tuple(bases.shape)}")
    wide = solve_dtype(z.device)
    with no_autocast(z.device):
        return z.to(wide).unsqueeze(-3) @ bases.to(wide)
