"""Multi-Head Self-Attention, the ViT's."""

from collections.abc import Sequence

from torch import Tensor

from cbsa.layers.attention import Attention
from cbsa.layers.softmax import softmax_attention


class MHSA(Attention):
    """Softmax attention with separate query, key and value, through PyTorch's fused kernels, quadratic in N.

    Args:
        dim: width of the tokens.
        num_heads: number of heads.
        head_dim: dimension of each, by default ``dim / num_heads``.
        qkv_bias: whether query, key and value have a bias.
        num_prefix_tokens: tokens before the patches, which ``grid`` does not lay out.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        head_dim: int | None = None,
        qkv_bias: bool = True,
        num_prefix_tokens: int = 1,
    ) -> None:
        super().__init__(
            dim, num_heads, head_dim=head_dim, streams=3, bias=qkv_bias, num_prefix_tokens=num_prefix_tokens
        )

    def attend(self, streams: Sequence[Tensor], grid: tuple[int, ...] | None, mask: Tensor | None) -> Tensor:
        """Attend from every token to every token within each head."""
        q, k, v = streams
        return softmax_attention(q, k, v, mask)
