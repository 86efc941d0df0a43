"""Linear attention with a positive kernel (Katharopoulos et al., 2020)."""

from collections.abc import Sequence

from torch import Tensor

from cbsa._checks import check_choice
from cbsa.layers.attention import Attention
from cbsa.ops.linear import KERNELS, linear_attention


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
        self.kernel = check_choice("kernel", kernel, KERNELS)

    def attend(self, streams: Sequence[Tensor], grid: tuple[int, ...] | None, mask: Tensor | None) -> Tensor:
        """Gather keys and values into one p×p matrix per head, and read it with every query."""
        q, k, v = streams
        return linear_attention(q, k, v, mask=mask, kernel=self.kernel)
