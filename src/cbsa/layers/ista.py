"""The sparse-coding step that takes the place of the feed-forward block."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cbsa._checks import check_int, check_positive_float


class ISTA(nn.Module):
    """One proximal-gradient step towards sparse codes over a learned dictionary D (CRATE's feed-forward).

    out = relu(x + η·Dᵀ(x − D x) − η·λ): a gradient step of ½‖x₀ − D x‖² at x = x₀, the current tokens, then
    the non-negative soft threshold. Written this way it takes two products with D instead of three. There is
    no residual around it.

    Args:
        dim: width of the tokens.
        step_size: η, fixed.
        lambd: λ, weight of the sparsity, fixed.
    """

    def __init__(self, dim: int, *, step_size: float = 0.1, lambd: float = 0.1) -> None:
        super().__init__()
        self.dim = check_int("dim", dim)
        self.step_size = check_positive_float("step_size", step_size)
        self.lambd = check_positive_float("lambd", lambd) if lambd else 0.0
        self.weight = nn.Parameter(torch.empty(dim, dim))  # D
        nn.init.kaiming_uniform_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Sparsify tokens x (..., dim)."""
        if x.shape[-1] != self.dim:
            raise ValueError(f"x must have shape (..., {self.dim}), got {tuple(x.shape)}")
        residual = x - F.linear(x, self.weight)
        return F.relu(x + self.step_size * (F.linear(residual, self.weight.T) - self.lambd))

    def extra_repr(self) -> str:
        """Describe the layer in ``print(model)``."""
        return f"dim={self.dim}, step_size={self.step_size}, lambd={self.lambd}"
