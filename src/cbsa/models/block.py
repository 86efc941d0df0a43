"""The block that transformers repeat, and how a model's blocks are made of its arguments."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cbsa._checks import check_choice
from cbsa.layers import ATTENTIONS, CBSA, ISTA, MLP, Attention, LayerNorm
from cbsa.ops.availability import kernels_serve_compiled

FEED_FORWARDS = ("ista", "mlp")

AttentionSpec = str | type[Attention]


class Block(nn.Module):
    """Attention with a residual, then a feed-forward: ISTA without one, or an MLP with one."""

    def __init__(self, dim: int, attention: Attention, feed_forward: ISTA | MLP) -> None:
        super().__init__()
        self.norm1 = LayerNorm(dim)
        self.attn = attention
        self.norm2 = LayerNorm(dim)
        self.ff = feed_forward

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """Update tokens x (B, N, dim) whose patches lie on ``grid``."""
        x, normed = self.norm1.beside(x)
        if isinstance(self.ff, MLP):
            x = x + self.attn(normed, grid)
            del normed
            more: Tensor = self.ff(self.norm2(x))
            return x + more
        shift = self._left_to_the_norm(x)
        update: Tensor = self.attn(normed, grid, bias=shift is None)
        del normed  # what is read no more is let go: each is as large as the tokens
        normed = self.norm2.of_sum(x, update, shift)
        del update
        codes: Tensor = self.ff(normed)
        return codes

    def _left_to_the_norm(self, x: Tensor) -> Tensor | None:
        """The bias of the attention, where the norm's kernels add it: they know its gradient anyway."""
        last = self.attn.to_out
        return (
            last.bias if last is not None and torch.is_grad_enabled() and kernels_serve_compiled(x) else None
        )


def build_blocks(
    attention: AttentionSpec | Sequence[AttentionSpec],
    depth: int,
    dim: int,
    num_heads: int,
    pooling: dict[str, Any],
    kwargs: dict[str, Any],
    feed_forward: str,
) -> nn.ModuleList:
    """The blocks of a model: one attention for all, or one for each of them.

    Args:
        attention: a name of :data:`cbsa.layers.ATTENTIONS`, a class, or a sequence of them.
        depth: number of blocks.
        dim: width.
        num_heads: number of heads.
        pooling: what CBSA layers are told of their representatives; ``num_prefix_tokens`` is for all.
        kwargs: further arguments of the attention layers.
        feed_forward: ``"ista"`` or ``"mlp"``.
    """
    check_choice("feed_forward", feed_forward, FEED_FORWARDS)
    return nn.ModuleList(
        Block(
            dim,
            _build_attention(spec, dim, num_heads, pooling, kwargs),
            ISTA(dim) if feed_forward == "ista" else MLP(dim),
        )
        for spec in _per_block(attention, depth)
    )


def _per_block(attention: AttentionSpec | Sequence[AttentionSpec], depth: int) -> list[AttentionSpec]:
    if isinstance(attention, (str, type)):
        return [attention] * depth
    specs = list(attention)
    if len(specs) != depth:
        raise ValueError(f"attention names {len(specs)} layers, but depth={depth}")
    return specs


def _build_attention(
    spec: AttentionSpec, dim: int, num_heads: int, pooling: dict[str, Any], kwargs: dict[str, Any]
) -> Attention:
    """One attention layer; those that pool are told how."""
    factory = ATTENTIONS[check_choice("attention", spec, ATTENTIONS)] if isinstance(spec, str) else spec
    pools = getattr(factory, "func", factory)
    if isinstance(pools, type) and issubclass(pools, CBSA):
        kwargs = pooling | kwargs
    elif pooling["num_prefix_tokens"] != 1:
        kwargs = {"num_prefix_tokens": pooling["num_prefix_tokens"]} | kwargs
    return factory(dim, num_heads, **kwargs)
