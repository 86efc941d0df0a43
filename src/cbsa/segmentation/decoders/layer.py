"""A layer of the white-box decoders: attention with a residual, and no feed-forward."""

from torch import Tensor, nn

from cbsa.layers import Attention, LayerNorm

# Layers of the authors' decoders, by the width of the encoder: T and S, B, L.
_DEPTHS = ((384, 3), (768, 6))
_DEEPEST = 9


def default_depth(dim: int) -> int:
    """Layers of the authors' decoder on an encoder of width ``dim``: 3 for T and S, 6 for B, 9 for L."""
    return next((depth for width, depth in _DEPTHS if dim <= width), _DEEPEST)


class DecoderLayer(nn.Module):
    """x + attention(LN(x)), or q + attention(LN(x), query=q) for cross-attention.

    Args:
        attention: the attention layer.
    """

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.norm = LayerNorm(attention.dim)
        self.attn = attention

    def forward(self, x: Tensor, grid: tuple[int, int] | None = None, query: Tensor | None = None) -> Tensor:
        """Update tokens x (B, N, dim), or tokens ``query`` (B, M, dim) from them."""
        if query is not None:
            gathered: Tensor = self.attn(self.norm(x), query=query)
            return query + gathered
        x, normed = self.norm.beside(x)
        update: Tensor = self.attn(normed, grid)
        return x + update
