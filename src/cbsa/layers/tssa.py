"""Token Statistics Self-Attention: ToST's channel attention."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cbsa.layers.attention import Attention
from cbsa.ops.token_statistics import token_statistics


class TSSA(Attention):
    """Scale the channels of each head by the second moments of its tokens, linear in N.

    Π is a soft assignment of each token to the heads; it is not a map over tokens. With w normalised over
    the tokens as ŵ::

        Π_h(n) = softmax_h(temp_h · Σ_d ŵ²)      out = − (w∘Π) / (1 + Σ_n Π̂(n)·w²)      Π̂ = Π / Σ_n Π

    Args:
        dim: width of the tokens.
        num_heads: number of heads K, the subspaces.
        head_dim: dimension p of each, by default ``dim / num_heads``.
        qkv_bias: whether the projection has a bias, as in the original ToST.
        num_prefix_tokens: tokens before the patches, which ``grid`` does not lay out.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        head_dim: int | None = None,
        qkv_bias: bool = False,
        num_prefix_tokens: int = 1,
    ) -> None:
        super().__init__(
            dim, num_heads, head_dim=head_dim, bias=qkv_bias, num_prefix_tokens=num_prefix_tokens
        )
        self.temp = nn.Parameter(torch.empty(num_heads, 1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the temperatures to 1."""
        nn.init.ones_(self.temp)

    def attend(self, streams: Sequence[Tensor], grid: tuple[int, ...] | None, mask: Tensor | None) -> Tensor:
        """Scale channels within each head."""
        (w,) = streams
        return token_statistics(w, self.temp, mask)
