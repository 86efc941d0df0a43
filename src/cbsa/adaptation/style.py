"""The styles of an adapted attention: how tokens are mixed, given queries, keys and values."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from cbsa._checks import check_choice, check_grid, check_number, check_sizes
from cbsa.ops.adapted import (
    ADAPTED_IMPLEMENTATIONS,
    KV_BROADCASTS,
    agent_attention,
    contract_broadcast_kv,
)
from cbsa.ops.linear import KERNELS, linear_attention
from cbsa.ops.pooling import pool_heads

STYLES = ("cbsa", "agent", "linear", "softmax")
"""The styles of attention that :func:`cbsa.adapt` gives a ViT; ``"softmax"`` is its own."""


@dataclass(frozen=True)
class Style:
    """One of the styles with its options.

    Args:
        name: ``"cbsa"`` (CBSA*), ``"agent"`` (CBSA∨), ``"linear"``, or ``"softmax"``, the original's mixing.
        representatives: layout of the representatives pooled from the queries of the patches, or ``None``
            for all queries, prefix tokens included (quadratic in N).
        kernel: kernel of the linear style, ``"relu"`` or ``"elu"`` (ELU + 1).
        broadcast_scale: scale of the second softmax of the agent style, by default that of the first.
        broadcast: how tokens take up contractions in the cbsa style: ``"transpose"``, the paper's, or
            ``"softmax"``, by weights whose sum is 1; see :func:`cbsa.ops.contract_broadcast_kv`.
        impl: implementation of the operators.
    """

    name: str
    representatives: tuple[int, ...] | None = (8, 8)
    kernel: str = "relu"
    broadcast_scale: float | None = None
    broadcast: str = "transpose"
    impl: str = "auto"

    def __post_init__(self) -> None:
        check_choice("style", self.name, STYLES)
        check_choice("kernel", self.kernel, KERNELS)
        check_choice("broadcast", self.broadcast, KV_BROADCASTS)
        check_choice("impl", self.impl, ADAPTED_IMPLEMENTATIONS)
        if self.name != "cbsa" and self.broadcast != "transpose":
            raise ValueError(
                f"broadcast={self.broadcast!r} is for style 'cbsa', not {self.name!r}: leave it out"
            )
        if self.representatives is not None:
            sizes = check_sizes("representatives", self.representatives)
            if len(sizes) != 2:
                raise ValueError(f"representatives={sizes} must be a layout (rows, columns), or None for all")
            object.__setattr__(self, "representatives", sizes)
        if self.broadcast_scale is not None:
            check_number("broadcast_scale", self.broadcast_scale)

    @property
    def pools(self) -> bool:
        """Whether representatives are pooled from the patches, so that their layout must be known."""
        return self.name in ("cbsa", "agent") and self.representatives is not None

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, scale: float, grid: Sequence[int] | None, prefix: int
    ) -> Tensor:
        """Mix tokens within each head, ``prefix`` tokens before the grid: q, k, v (B, H, N, d) -> one."""
        if self.name == "softmax":
            return F.scaled_dot_product_attention(q, k, v, scale=scale)
        if self.name == "linear":
            return linear_attention(q, k, v, kernel=self.kernel)
        reps = self.pool(q, grid, prefix)
        if self.name == "agent":
            sharpness = self.broadcast_scale
            return agent_attention(q, k, v, reps, scale=scale, broadcast_scale=sharpness, impl=self.impl)
        return contract_broadcast_kv(k, v, reps, scale=scale, broadcast=self.broadcast, impl=self.impl)

    def pool(self, q: Tensor, grid: Sequence[int] | None, prefix: int) -> Tensor:
        """Representatives (B, H, m, d) of the queries q (B, H, N, d); ``grid=None`` stands for a square."""
        if self.representatives is None:
            return q
        patches = q.shape[2] - prefix
        if patches < 1:
            raise ValueError(f"{q.shape[2]} tokens, {prefix} of them prefix tokens: no patch is left to pool")
        return pool_heads(q, check_grid(grid, patches), self.representatives, prefix)
