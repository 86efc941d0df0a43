"""Linear attention with a positive kernel (Katharopoulos et al., 2020)."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from cbsa._checks import check_choice
from cbsa.layers.attention import Attention
from cbsa.ops.precision import accumulation_dtype

_KERNELS: dict[str, Callable[[Tensor], Tensor]] = {"elu": lambda x: F.elu(x) + 1, "relu": F.relu}


class LinearAttention(Attention):
    """φ(q) (Σ_n φ(k_n)ᵀ v_n) / (φ(q)·Σ_n φ(k_n)): keys and values are multiplied first, linear in N.

    Args:
        dim: width of the tokens.
        num_heads: number of heads.
        head_dim: dimension of each, by default ``dim / num_heads``.
        kernel: φ, ``"elu"`` for ELU + 1 or ``"relu"``. With ReLU, a query without a positive channel in
            common with any key gets 0.
        qkv_bias: whether query, key and value have a bias.
        num_prefix_tokens: tokens before the patches, which ``grid`` does not lay out.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        head_dim: int | None = None,
        kernel: str = "elu",
        qkv_bias: bool = True,
        num_prefix_tokens: int = 1,
    ) -> None:
        super().__init__(
            dim, num_heads, head_dim=head_dim, streams=3, bias=qkv_bias, num_prefix_tokens=num_prefix_tokens
        )
        self.kernel = check_choice("kernel", kernel, _KERNELS)

    def attend(self, streams: Sequence[Tensor], grid: tuple[int, ...] | None, mask: Tensor | None) -> Tensor:
        """Gather keys and values into one p×p matrix per head, and read it with every query."""
        q, k, v = streams
        phi = _KERNELS[self.kernel]
        # The factor cancels; it keeps sums over many tokens inside the range of float16.
        q, k = phi(q), phi(k) * k.shape[-2] ** -0.5
        if mask is not None:
            k = k.masked_fill(~mask[:, None, :, None], 0)
        wide = accumulation_dtype(v.dtype)
        numerator = (q @ (k.mT @ v)).to(wide)  # (B, H, N, p)
        denominator = (q @ k.sum(-2).unsqueeze(-1)).to(wide)  # (B, H, N, 1)
        seen = denominator >= torch.finfo(v.dtype).tiny
        return torch.where(seen, numerator / denominator.where(seen, 1), 0).to(v.dtype)
