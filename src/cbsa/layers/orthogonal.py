"""CBSA with orthogonal representatives: its linear-attention and channel-attention variants."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cbsa._checks import check_eps
from cbsa.layers.attention import Attention
from cbsa.ops import channel_cbsa, linear_cbsa


class LinearCBSA(Attention):
    """Linear attention variant of CBSA (eq. variant-2): representatives along the principal directions.

    The spectral function F is applied to each head's p×p matrix WᵀW by a Cholesky solve in float64
    (:func:`cbsa.ops.linear_cbsa`), so gradients stay finite where eigenvalues coincide. As in the paper,
    WᵀW is a sum over tokens, not a mean: the output shrinks as N grows.

    Args:
        dim: width of the tokens.
        num_heads: number of heads K, the subspaces.
        head_dim: dimension p of each, by default ``dim / num_heads``.
        tied: project back with the bases themselves.
        num_prefix_tokens: tokens before the patches, which ``grid`` does not lay out.
        eps: quantisation precision ε.
    """

    operator = staticmethod(linear_cbsa)

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        head_dim: int | None = None,
        tied: bool = False,
        num_prefix_tokens: int = 1,
        eps: float = 0.1,
    ) -> None:
        super().__init__(dim, num_heads, head_dim=head_dim, tied=tied, num_prefix_tokens=num_prefix_tokens)
        self.eps = check_eps(eps)
        self.step_out = nn.Parameter(torch.empty(num_heads))  # κ
        self.reset_parameters()

    def attend(self, streams: Sequence[Tensor], grid: tuple[int, ...] | None, mask: Tensor | None) -> Tensor:
        """Scale the principal directions (or channels) of each head."""
        (w,) = streams  # padding is 0: the projection has no bias
        return self.step_out.to(w.dtype).view(-1, 1, 1) * self.operator(w, self.eps)


class ChannelCBSA(LinearCBSA):
    """Channel attention variant of CBSA (eq. variant-3): representatives fixed along the basis vectors.

    As :class:`LinearCBSA` with only the diagonal of each head's WᵀW (:func:`cbsa.ops.channel_cbsa`), which
    basically is what TSSA computes. The arguments are the same.
    """

    operator = staticmethod(channel_cbsa)
