"""Contract-and-Broadcast Self-Attention."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cbsa._checks import check_choice, check_grid, check_positive_number, check_sizes
from cbsa.layers.attention import Attention
from cbsa.ops import contract_broadcast
from cbsa.ops.api import CONTRACTIONS, IMPLEMENTATIONS, pooled_contract_broadcast
from cbsa.ops.pooling import pool_heads


class CBSA(Attention):
    """Contract-and-Broadcast Self-Attention (eq. CBSA): linear in the number of tokens.

    A few representatives are gathered from the tokens of each subspace, contracted, and their contractions
    broadcast back. The variants of the paper are choices of arguments: ``contraction="none"`` is Agent
    attention, ``tied=True`` is CBSA†, ``contraction="exact"`` the gradient step itself.

    Args:
        dim: width of the tokens.
        num_heads: number of heads K, the subspaces.
        head_dim: dimension p of each, by default ``dim / num_heads``.
        representatives: layout of the representatives; its rank is that of the token grid: ``(8, 8)`` for
            images, ``64`` for sequences, ``(2, 8, 8)`` for volumes.
        init: initial representatives, ``"pool"`` (averages of the tokens over the grid) or ``"learned"``
            (parameters; any grid; the paper's appendix A finds them of low rank).
        contraction: ``"softmax"``, ``"exact"`` or ``"none"``; see :func:`cbsa.ops.contract_broadcast`.
        tied: project back with the bases themselves (CBSA†).
        stop_gradient: no gradient through the initial representatives, as eq. cross-attn writes it; the
            authors' code has none.
        num_prefix_tokens: tokens before the patches that are not pooled (CLS, registers).
        legacy_pool: pool as the authors' code does, which drops the *last* tokens instead of the prefix, so
            that CLS is pooled as a patch and the raster is shifted. For their checkpoints only.
        eps: quantisation precision ε, for ``contraction="exact"``.
        impl: implementation of the operator.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        head_dim: int | None = None,
        representatives: int | Sequence[int] = (8, 8),
        init: str = "pool",
        contraction: str = "softmax",
        tied: bool = False,
        stop_gradient: bool = False,
        num_prefix_tokens: int = 1,
        legacy_pool: bool = False,
        eps: float = 0.1,
        impl: str = "auto",
    ) -> None:
        super().__init__(dim, num_heads, head_dim=head_dim, tied=tied, num_prefix_tokens=num_prefix_tokens)
        self.representatives = check_sizes("representatives", representatives)
        self.init = check_choice("init", init, ("pool", "learned"))
        self.contraction = check_choice("contraction", contraction, CONTRACTIONS)
        self.stop_gradient = stop_gradient
        self.legacy_pool = legacy_pool
        self.eps = check_positive_number("eps", eps)
        self.impl = check_choice("impl", impl, IMPLEMENTATIONS)
        self.step_rep = nn.Parameter(torch.empty(num_heads))  # η
        self.step_out = nn.Parameter(torch.empty(num_heads))  # κ
        learned = torch.empty(self.num_representatives, dim) if init == "learned" else None
        self.initial_reps = None if learned is None else nn.Parameter(learned)
        self.reset_parameters()

    @property
    def num_representatives(self) -> int:
        """Number m of representatives."""
        return math.prod(self.representatives)

    def attend(self, streams: Sequence[Tensor], grid: tuple[int, ...] | None, mask: Tensor | None) -> Tensor:
        """Contract and broadcast within each head."""
        (w,) = streams
        options: dict[str, Any] = {
            "mask": mask,
            "contraction": self.contraction,
            "eps": self.eps,
            "impl": self.impl,
        }
        if self.initial_reps is None and not self.stop_gradient:
            grid, first = self._patches(w, grid)
            return pooled_contract_broadcast(
                w, grid, self.representatives, self.step_rep, self.step_out, first=first, **options
            )
        reps = self.initial_representatives(w, grid, mask)
        reps = reps.detach() if self.stop_gradient else reps
        return contract_broadcast(w, reps, self.step_rep, self.step_out, **options)

    def initial_representatives(
        self, w: Tensor, grid: tuple[int, ...] | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Q_ini within each subspace, (B, H, m, p), from the projected tokens w (B, H, N, p)."""
        if self.initial_reps is not None:
            (reps,) = self.project(self.initial_reps.expand(w.shape[0], -1, -1))
            return reps
        grid, first = self._patches(w, grid)
        return pool_heads(w, grid, self.representatives, first, mask)

    def _patches(self, w: Tensor, grid: tuple[int, ...] | None) -> tuple[tuple[int, ...], int]:
        """The grid of the tokens of w (B, H, N, p) that are pooled, and the index of the first of them."""
        num_tokens, prefix, rank = w.shape[2], self.num_prefix_tokens, len(self.representatives)
        if num_tokens <= prefix:
            raise ValueError(f"x has {num_tokens} tokens: no patch is left after num_prefix_tokens={prefix}")
        if grid is not None and len(grid) != rank:
            raise ValueError(
                f"grid={grid} and representatives={self.representatives} must have the same rank"
            )
        return check_grid(grid, num_tokens - prefix, rank), 0 if self.legacy_pool else prefix

    def extra_repr(self) -> str:
        """Describe the layer in ``print(model)``."""
        return (
            f"{super().extra_repr()}, representatives={self.representatives}, init={self.init!r}, "
            f"contraction={self.contraction!r}, stop_gradient={self.stop_gradient}, "
            f"legacy_pool={self.legacy_pool}"
        )
