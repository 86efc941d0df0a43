"""The parameter-free variants of CBSA with orthogonal representatives (paper section 3.3)."""

from torch import Tensor

from cbsa._checks import check_eps, check_floating
from cbsa.ops.precision import accumulation_dtype
from cbsa.ops.resolvent import resolvent
from cbsa.ops.sums import HERE, TokenSums


def linear_cbsa(w: Tensor, eps: float = 0.1) -> Tensor:
    """Linear attention variant, F(wᵀw) applied to the tokens (eq. variant-2).

    The representatives are the principal directions of the tokens: F applies f(λ) = ε²/(ε² + λ) to the
    eigenvalues of the d×d matrix wᵀw, which keeps O(N) time and never forms N×N.

    Args:
        w: projected tokens (..., N, d); padding tokens must be 0 (they then do not count).
        eps: quantisation precision ε.

    Returns:
        (..., N, d).
    """
    return resolvent(_check_tokens(w), 1 / check_eps(eps) ** 2)


def channel_cbsa(w: Tensor, eps: float = 0.1) -> Tensor:
    """Channel attention variant, w·f(Σ_n w²) channel by channel (eq. variant-3).

    The representatives are fixed along the axes of the subspace, as if these were always the principal
    directions; the d×d matrix of :func:`linear_cbsa` becomes its diagonal.

    Args:
        w: projected tokens (..., N, d); padding tokens must be 0 (they then do not count).
        eps: quantisation precision ε.

    Returns:
        (..., N, d).
    """
    return scale_channels(_check_tokens(w), check_eps(eps))


def scale_channels(w: Tensor, eps: float, sums: TokenSums = HERE) -> Tensor:
    """:func:`channel_cbsa` of tokens that may be spread over processes."""
    z, square = w.to(accumulation_dtype(w.dtype)), eps**2
    moments = sums.total(sums.counted(z).square().sum(-2, keepdim=True))  # (..., 1, d)
    return (z * (square / (square + moments))).to(w.dtype)


def _check_tokens(w: Tensor) -> Tensor:
    check_floating("w", w)
    if w.dim() < 2 or w.shape[-2] < 1 or w.shape[-1] < 1:
        raise ValueError(f"w must have shape (..., N, d) with N, d >= 1, got {tuple(w.shape)}")
    return w
