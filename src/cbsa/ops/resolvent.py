"""The one matrix function behind every exact operator of the paper: (I + c·XXᵀ)⁻¹X."""

import torch
from torch import Tensor

from cbsa.ops.precision import no_autocast, solve_dtype
from cbsa.ops.sums import TokenSums


def resolvent(x: Tensor, c: float | Tensor) -> Tensor:
    """Compute (I_n + c·XXᵀ)⁻¹ X = X (I_d + c·XᵀX)⁻¹ for X (..., n, d).

    With tokens as rows this is 1/c times the gradient of the coding rate ½ logdet(I + c·XXᵀ), so it is

    - the exact contraction of CBSA for the representatives (eq. CBSA-ori), c = p/(m ε²);
    - exact MSSA for all tokens, c = p/(N ε²);
    - the linear attention variant (eq. variant-2), c = 1/ε²: its spectral function
      f(λ) = ε²/(ε² + λ) applied to XᵀX, without an eigendecomposition and hence with gradients that do
      not blow up where eigenvalues meet.

    It is solved by Cholesky on the smaller side, in float64 where the device has it; no inverse is formed,
    and no n×n matrix when n > d.

    Args:
        x: (..., n, d).
        c: positive number, or a tensor that broadcasts against (..., 1, 1).

    Returns:
        (..., n, d), in the dtype of ``x``.
    """
    with no_autocast(x.device):
        z = x.to(solve_dtype(x.device))
        if x.shape[-2] <= x.shape[-1]:
            y = torch.cholesky_solve(z, cholesky_of_shifted_gram(z, c))
        else:
            y = torch.cholesky_solve(z.mT, cholesky_of_shifted_gram(z.mT, c)).mT
        return y.to(x.dtype)


def resolvent_backward(grad: Tensor, x: Tensor, c: float) -> Tensor:
    """Gradient of :func:`resolvent` with respect to ``x``.

    With M = I + c·XXᵀ, Y = M⁻¹X and V = M⁻¹G: dX = V − c·(V Yᵀ + Y Vᵀ) X. When n > d, M⁻¹G is
    G − c·X (I + c·XᵀX)⁻¹ XᵀG (Woodbury), so that nothing n×n is formed.
    """
    with no_autocast(x.device):
        z, g = x.to(solve_dtype(x.device)), grad.to(solve_dtype(x.device))
        if x.shape[-2] <= x.shape[-1]:
            factor = cholesky_of_shifted_gram(z, c)
            y, v = torch.cholesky_solve(z, factor), torch.cholesky_solve(g, factor)
        else:
            factor = cholesky_of_shifted_gram(z.mT, c)
            y = torch.cholesky_solve(z.mT, factor).mT
            v = g - c * (z @ torch.cholesky_solve(z.mT @ g, factor))
        return (v - c * (v @ (y.mT @ z) + y @ (v.mT @ z))).to(x.dtype)


def resolvent_of_shards(x: Tensor, c: float | Tensor, sums: TokenSums) -> Tensor:
    """:func:`resolvent` of tokens x (..., n, d) that are spread over processes: X (I_d + c·XᵀX)⁻¹.

    Their second moment XᵀX (d×d) is all that they have to know of each other.
    """
    with no_autocast(x.device):
        z = x.to(solve_dtype(x.device))
        mine = sums.counted(z)
        factor = _cholesky_of_shifted(sums.total(mine.mT @ mine), c)
        return torch.cholesky_solve(z.mT, factor).mT.to(x.dtype)


def cholesky_of_shifted_gram(x: Tensor, c: float | Tensor) -> Tensor:
    """Lower Cholesky factor of I + c·XXᵀ, NaN where rounding or bad input left nothing positive definite."""
    return _cholesky_of_shifted(x @ x.mT, c)


def half_logdet_of_shifted(gram: Tensor, c: float | Tensor) -> Tensor:
    """½ logdet(I + c·G) of Gram matrices G (..., n, n), (...): coding rates, from G = XXᵀ or XᵀX alike."""
    return _cholesky_of_shifted(gram, c).diagonal(dim1=-2, dim2=-1).log().sum(-1)


def _cholesky_of_shifted(gram: Tensor, c: float | Tensor) -> Tensor:
    shifted = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device) + c * gram
    factor, info = torch.linalg.cholesky_ex(shifted)
    return torch.where((info > 0)[..., None, None], torch.nan, factor)
