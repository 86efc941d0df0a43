"""Multi-head Subspace Self-Attention: CRATE's softmax attention."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cbsa._checks import check_choice, check_eps, check_mask
from cbsa.layers.attention import Attention
from cbsa.layers.softmax import softmax_attention
from cbsa.ops.precision import solve_dtype
from cbsa.ops.resolvent import resolvent


class MSSA(Attention):
    """Softmax attention with one projection for query, key and value (eq. MSSA), quadratic in N.

    It is CBSA with the tokens themselves as representatives. ``contraction="exact"`` is the gradient step
    that the softmax approximates, W (I + p/(N ε²)·WᵀW)⁻¹, which is linear in N.

    ``forward(x, grid, mask, query=q)`` is cross-attention: tokens q (B, M, dim), projected by the same bases,
    gather from the tokens x, and the result has the shape of q (DEPICT's second mode; softmax alone).

    Args:
        dim: width of the tokens.
        num_heads: number of heads K, the subspaces.
        head_dim: dimension p of each, by default ``dim / num_heads``.
        contraction: ``"softmax"`` or ``"exact"``.
        tied: project back with the bases themselves, times one learnable step (as DEPICT's decoder does).
        num_prefix_tokens: tokens before the patches, which ``grid`` does not lay out.
        eps: quantisation precision ε, for ``contraction="exact"``.
        dwconv: side of a depth-wise convolution beside it, on images; see :class:`cbsa.layers.Attention`.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        head_dim: int | None = None,
        contraction: str = "softmax",
        tied: bool = False,
        num_prefix_tokens: int = 1,
        eps: float = 0.1,
        dwconv: int = 0,
    ) -> None:
        super().__init__(
            dim, num_heads, head_dim=head_dim, tied=tied, num_prefix_tokens=num_prefix_tokens, dwconv=dwconv
        )
        self.contraction = check_choice("contraction", contraction, ("softmax", "exact"))
        self.eps = check_eps(eps)
        self.step_out = nn.Parameter(torch.empty(1)) if tied else None
        self.reset_parameters()

    def forward(
        self,
        x: Tensor,
        grid: int | Sequence[int] | None = None,
        mask: Tensor | None = None,
        bias: bool = True,
        query: Tensor | None = None,
    ) -> Tensor:
        """Mix tokens x (B, N, dim), or gather from them for tokens ``query`` (B, M, dim); see the class."""
        if query is None:
            return super().forward(x, grid, mask, bias)
        self._check_query(x, query)
        check_mask(mask, x.shape[0], x.shape[1], x.device)
        if mask is not None:
            x = x.masked_fill(~mask.unsqueeze(-1), 0)
        (w,), (q,) = self.project(x), self.project(query)
        out = softmax_attention(q, w, w, mask)  # (B, H, M, p)
        return self.project_back(self._step(out), bias)

    def attend(self, streams: Sequence[Tensor], grid: tuple[int, ...] | None, mask: Tensor | None) -> Tensor:
        """Attend from every token to every token within each head."""
        (w,) = streams
        if self.contraction == "softmax":
            out = softmax_attention(w, w, w, mask)
        elif mask is None:
            out = resolvent(w, self.head_dim / (w.shape[-2] * self.eps**2))
        else:
            count = mask.sum(-1).clamp_min(1).to(solve_dtype(w.device))[:, None, None, None]
            out = resolvent(w, self.head_dim / (count * self.eps**2))
        return self._step(out)

    def _step(self, out: Tensor) -> Tensor:
        return out if self.step_out is None else self.step_out.to(out.dtype) * out

    def _check_query(self, x: Tensor, query: Tensor) -> None:
        if self.contraction != "softmax":
            raise ValueError(f"query= needs contraction='softmax', but it is {self.contraction!r}")
        if self.local is not None:
            raise ValueError("query= has no grid for a convolution to run over: use dwconv=0")
        self.check_tokens("x", x)
        self.check_tokens("query", query)
        if x.shape[0] != query.shape[0]:
            raise ValueError(f"x and query must have one batch size, got {x.shape[0]} and {query.shape[0]}")
