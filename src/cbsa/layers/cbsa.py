"""Contract-and-Broadcast Self-Attention."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cbsa._checks import (
    check_choice,
    check_eps,
    check_grid,
    check_int,
    check_number,
    check_sizes,
)
from cbsa.layers.attention import Attention
from cbsa.ops import contract_broadcast
from cbsa.ops.api import CONTRACTIONS, IMPLEMENTATIONS, pooled_contract_broadcast
from cbsa.ops.extended import (
    BROADCASTS,
    REP_NORMS,
    extended_contract_broadcast,
    norm_representatives,
    refine,
)
from cbsa.ops.pooling import pool_heads
from cbsa.ops.reference import contract


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
            authors' code has none. Learned ones then get none either, and stay as they were drawn.
        num_prefix_tokens: tokens before the patches that are not pooled (CLS, registers).
        legacy_pool: pool as the authors' code does, which drops the *last* tokens instead of the prefix, so
            that CLS is pooled as a patch and the raster is shifted. For their checkpoints only.
        eps: quantisation precision ε, for ``contraction="exact"``.
        impl: implementation of the operator.
        kappa: a fixed step size κ of all heads; by default each learns its own.
        step_init: initial value of the step sizes; by default they are drawn, standard normal.
        iterations: how often representatives gather from the tokens. This and the following options are not
            the paper's; :func:`cbsa.ops.extended.extended_contract_broadcast` says what computes them.
        rep_norm: norm of the representatives before contraction, ``"none"``, ``"layer"`` or ``"rms"``.
        broadcast: by which weights tokens take up the contracted representatives: ``"transpose"`` (the
            paper's Aᵀ), ``"per_token"`` (Aᵀ, rows of sum 1) or ``"softmax"`` (over the representatives); see
            :func:`cbsa.ops.extended.both_weights`.
        rep_pos: give the pooled representatives learned offsets, from 0 on: information on their position.
        dwconv: side of a depth-wise convolution beside it; see :class:`cbsa.layers.Attention`.
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
        kappa: float | None = None,
        step_init: float | None = None,
        iterations: int = 1,
        rep_norm: str = "none",
        broadcast: str = "transpose",
        rep_pos: bool = False,
        dwconv: int = 0,
    ) -> None:
        sizes = check_sizes("representatives", representatives)
        super().__init__(
            dim,
            num_heads,
            head_dim=head_dim,
            tied=tied,
            num_prefix_tokens=num_prefix_tokens,
            dwconv=dwconv,
            rank=len(sizes),
        )
        self.representatives = sizes
        self.init = check_choice("init", init, ("pool", "learned"))
        self.contraction = check_choice("contraction", contraction, CONTRACTIONS)
        self.stop_gradient = stop_gradient
        self.legacy_pool = legacy_pool
        self.eps = check_eps(eps)
        self.impl = check_choice("impl", impl, IMPLEMENTATIONS)
        self.kappa = None if kappa is None else check_number("kappa", kappa)
        self.step_init = None if step_init is None else check_number("step_init", step_init)
        self.iterations = check_int("iterations", iterations)
        self.rep_norm = check_choice("rep_norm", rep_norm, REP_NORMS)
        self.broadcast = check_choice("broadcast", broadcast, BROADCASTS)
        if rep_pos and (init != "pool" or stop_gradient):
            raise ValueError(
                f"rep_pos=True goes with init='pool' and gradients through the initial representatives, but "
                f"init={init!r} and stop_gradient={stop_gradient}"
            )
        offsets = torch.empty(num_heads, math.prod(sizes), self.head_dim) if rep_pos else None
        self.rep_pos = None if offsets is None else nn.Parameter(offsets)
        self.step_rep = nn.Parameter(torch.empty(num_heads))  # η
        self.step_out: Tensor  # κ
        if kappa is None:
            self.step_out = nn.Parameter(torch.empty(num_heads))
        else:
            self.register_buffer("step_out", torch.empty(num_heads))
        learned = torch.empty(self.num_representatives, dim) if init == "learned" else None
        self.initial_reps = None if learned is None else nn.Parameter(learned)
        self.reset_parameters()

    @property
    def num_representatives(self) -> int:
        """Number m of representatives."""
        return math.prod(self.representatives)

    @property
    def is_extended(self) -> bool:
        """Whether it has options that the operator of the paper does not."""
        options = (self.iterations, self.rep_norm, self.broadcast)
        return options != (1, "none", "transpose") or self.rep_pos is not None

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw steps and learned representatives, standard normal; set the steps that are given."""
        super().reset_parameters()
        if self.step_init is not None:
            for step in (self.step_rep, self.step_out):
                step.fill_(self.step_init)
        if self.kappa is not None:
            self.step_out.fill_(self.kappa)
        if self.rep_pos is not None:
            self.rep_pos.zero_()

    def attend(self, streams: Sequence[Tensor], grid: tuple[int, ...] | None, mask: Tensor | None) -> Tensor:
        """Contract and broadcast within each head."""
        (w,) = streams
        options: dict[str, Any] = {
            "mask": mask,
            "contraction": self.contraction,
            "eps": self.eps,
            "impl": self.impl,
        }
        if self.is_extended:
            more: dict[str, Any] = {
                "iterations": self.iterations,
                "rep_norm": self.rep_norm,
                "broadcast": self.broadcast,
            }
            reps = self.initial_representatives(w, grid, mask)
            reps = reps.detach() if self.stop_gradient else reps
            return extended_contract_broadcast(w, reps, self.step_rep, self.step_out, **options, **more)
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
        reps = pool_heads(w, grid, self.representatives, first, mask)
        return reps if self.rep_pos is None else reps + self.rep_pos.to(reps.dtype)

    def last_representatives(self, w: Tensor, grid: tuple[int, ...] | None = None) -> Tensor:
        """The representatives (B, H, m, p) whose attention A over the tokens w (B, H, N, p) is the last one.

        They are the initial ones, unless the layer extracts several times.
        """
        reps = self.initial_representatives(w, grid).to(w.dtype)
        return refine(w, reps, self.step_rep, self.iterations - 1)

    def contract(self, r: Tensor) -> Tensor:
        """Contract representatives R (B, H, m, p), normed first if the layer does so."""
        return contract(
            norm_representatives(r, self.rep_norm), self.contraction, self.head_dim**-0.5, self.eps
        )

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
            + (f", kappa={self.kappa:g}" if self.kappa is not None else "")
            + (
                f", iterations={self.iterations}, rep_norm={self.rep_norm!r}, broadcast={self.broadcast!r}, "
                f"rep_pos={self.rep_pos is not None}"
                if self.is_extended
                else ""
            )
        )
