"""The sparse-coding step that takes the place of the feed-forward block."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cbsa._checks import check_floating, check_int, check_number, check_positive_number
from cbsa._tracing import is_exporting
from cbsa.layers.inference import fuse_anew
from cbsa.ops.availability import kernels_serve_compiled
from cbsa.ops.fused_relu import linear_relu
from cbsa.ops.precision import autocast_dtype, no_autocast

# Tokens for each channel from which on a product of dictionaries costs less than one of tokens.
_MANY = 4


class ISTA(nn.Module):
    """One proximal-gradient step towards sparse codes over a learned dictionary D (CRATE's feed-forward).

    out = relu(x + η·Dᵀ(x − D x) − η·λ): a gradient step of ½‖x₀ − D x‖² at x = x₀, the current tokens, then
    the non-negative soft threshold. Written this way it takes two products with D instead of three; with many
    more tokens than channels it takes one, with I + η·(D − DᵀD), which is computed first. There is no
    residual around it.

    Args:
        dim: width of the tokens.
        step_size: η, fixed.
        lambd: λ, weight of the sparsity, fixed.
    """

    def __init__(self, dim: int, *, step_size: float = 0.1, lambd: float = 0.1) -> None:
        super().__init__()
        self.dim = check_int("dim", dim)
        self.step_size = check_positive_number("step_size", step_size)
        self.lambd = check_number("lambd", lambd, at_least=0)
        self.weight = nn.Parameter(torch.empty(dim, dim))  # D
        self.register_buffer("fused_weight", None, persistent=False)
        self.fused_weight: Tensor | None
        self.register_buffer("shift", torch.empty(dim), persistent=False)  # −η·λ
        self.shift: Tensor
        self.register_load_state_dict_post_hook(fuse_anew)  # type: ignore[no-untyped-call]
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw D as the reference does."""
        nn.init.kaiming_uniform_(self.weight)
        self.shift.fill_(-self.step_size * self.lambd)

    @property
    def fused(self) -> bool:
        """Whether the layer is in its inference form."""
        return self.fused_weight is not None

    @torch.no_grad()
    def fuse(self) -> None:
        """Compute I + η·(D − DᵀD) once, after which inference takes one product; :meth:`unfuse` undoes it."""
        wide = self.weight.double() if self.weight.device.type != "mps" else self.weight
        self.fused_weight = self._step(wide).to(self.weight.dtype).contiguous()

    def _step(self, d: Tensor | None = None) -> Tensor:
        """The matrix I + η·(D − DᵀD) of the gradient step, transposed as ``F.linear`` takes it."""
        d = self.weight if d is None else d
        eye = torch.eye(self.dim, dtype=d.dtype, device=d.device)
        return (eye + self.step_size * (d - d.T @ d)).T

    def unfuse(self) -> None:
        """Go back to computing with D itself."""
        self.fused_weight = None

    def forward(self, x: Tensor) -> Tensor:
        """Sparsify tokens x (..., dim)."""
        check_floating("x", x)
        if x.dim() < 1 or x.shape[-1] != self.dim:
            raise ValueError(f"x must have shape (..., {self.dim}), got {tuple(x.shape)}")
        many = not is_exporting() and x.numel() >= _MANY * self.dim**2
        step = self._step() if self.fused_weight is None and many else self.fused_weight
        if step is not None:
            return self._threshold_product(x, step)
        residual = x - F.linear(x, self.weight)
        return F.relu(x + self.step_size * (F.linear(residual, self.weight.T) - self.lambd))

    def _threshold_product(self, x: Tensor, step: Tensor) -> Tensor:
        """relu(x·step − η·λ), as one product where the library can."""
        dtype = autocast_dtype(x.device) or x.dtype
        if dtype in (torch.bfloat16, torch.float16) and kernels_serve_compiled(x):
            with no_autocast(x.device):
                return linear_relu(x.to(dtype), step.to(dtype), self.shift.to(dtype))
        return F.linear(x, step).sub_(self.step_size * self.lambd).relu_()  # no further N×d of memory

    def extra_repr(self) -> str:
        """Describe the layer in ``print(model)``."""
        return f"dim={self.dim}, step_size={self.step_size}, lambd={self.lambd}"
