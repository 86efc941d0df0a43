"""Attention layers whose tokens are spread over processes."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from cbsa._checks import check_sizes
from cbsa.layers import CBSA, MHSA, MSSA, TSSA, Attention, ChannelCBSA, LinearAttention, LinearCBSA
from cbsa.ops import linear, variants
from cbsa.ops.precision import solve_dtype
from cbsa.ops.resolvent import resolvent_of_shards
from cbsa.ops.token_statistics import token_statistics
from cbsa.parallel.contract_broadcast import contract_broadcast
from cbsa.parallel.convert import as_class
from cbsa.parallel.depthwise import ShardedDepthwiseConv
from cbsa.parallel.extended import extended_contract_broadcast
from cbsa.parallel.group import ContextGroup
from cbsa.parallel.pooling import pool_heads
from cbsa.parallel.shard import Shard, ShardSums, agree_on_tokens


class Sharded(Attention):
    """An attention of which each process of a group has some patch tokens, and all have the prefix tokens.

    ``forward(x, grid, mask, bias)`` is as before, for the tokens of this process: ``grid`` is theirs, or a
    :class:`Shard` if it is known how they lie among all. Otherwise the processes tell each other, a few
    bytes, and make sure that their tokens fit together. They lie in the order of the processes, along the
    grid's first axis.
    """

    group: ContextGroup

    @property
    def grid_rank(self) -> int:
        """Number of axes of the grid: any, if no convolution runs over it."""
        return 1 if self.local is None else self.local.rank

    def lay_out(self, x: Tensor, grid: Any, mask: Tensor | None) -> Any:
        """The shard that lies here; see :func:`agree_on_tokens`."""
        tokens = x.shape[1] - self.num_prefix_tokens
        if isinstance(grid, Shard):
            grid.check(tokens)
            return grid
        if grid is None and self.grid_rank > 1:
            raise ValueError(f"give the layout of the {tokens} patch tokens of this process as grid=")
        sizes = (tokens,) if grid is None else check_sizes("grid", grid)
        return agree_on_tokens(x, sizes, self.num_prefix_tokens, mask, self.group)

    def sums(self, shard: Shard) -> ShardSums:
        """How sums over all tokens are taken."""
        return ShardSums(self.group, self.num_prefix_tokens, shard)


class ShardedCBSA(Sharded, CBSA):
    """CBSA: m·(d + 2) numbers per head forward and m·d backward, and m·d each way for pooling.

    As many again for each further iteration; m more backward where the broadcast reads the log-sum-exp.
    """

    @property
    def grid_rank(self) -> int:
        """Number of axes of the grid."""
        return len(self.representatives)

    def attend(self, streams: Sequence[Tensor], grid: Any, mask: Tensor | None) -> Tensor:
        """Contract and broadcast within each head."""
        (w,) = streams
        reps = self.initial_representatives(w, grid, mask)
        reps = reps.detach() if self.stop_gradient else reps
        options: dict[str, Any] = {"group": self.group, "num_prefix_tokens": self.num_prefix_tokens}
        options |= {"mask": mask, "contraction": self.contraction, "eps": self.eps}
        if not self.is_extended:
            return contract_broadcast(w, reps, self.step_rep, self.step_out, **options)
        options |= {"iterations": self.iterations, "rep_norm": self.rep_norm, "broadcast": self.broadcast}
        return extended_contract_broadcast(w, reps, self.step_rep, self.step_out, **options)

    def initial_representatives(self, w: Tensor, grid: Any = None, mask: Tensor | None = None) -> Tensor:
        """Q_ini within each subspace, (B, H, m, p), the same in every process."""
        if self.initial_reps is not None:
            return super().initial_representatives(w)
        if len(grid.sizes) != self.grid_rank:
            raise ValueError(
                f"grid={grid.sizes} and representatives={self.representatives} must have the same rank"
            )
        reps = pool_heads(w, grid, self.representatives, self.num_prefix_tokens, mask, self.group)
        return reps if self.rep_pos is None else reps + self.rep_pos.to(reps.dtype)


class ShardedTSSA(Sharded, TSSA):
    """TSSA: second moments and assignments, 2d + 1 numbers per head each way."""

    def attend(self, streams: Sequence[Tensor], grid: Any, mask: Tensor | None) -> Tensor:
        """Scale channels within each head."""
        (w,) = streams
        return token_statistics(w, self.temp, mask, self.sums(grid))


class ShardedLinearAttention(Sharded, LinearAttention):
    """Linear attention: the sums of keys and of their products with values, d·(d + 1) numbers per head."""

    def attend(self, streams: Sequence[Tensor], grid: Any, mask: Tensor | None) -> Tensor:
        """Gather keys and values into one p×p matrix per head, and read it with every query."""
        q, k, v = streams
        return linear.mix(q, k, v, mask, self.kernel, self.sums(grid))


class ShardedLinearCBSA(Sharded, LinearCBSA):
    """LinearCBSA: the second moment WᵀW, d² numbers per head each way, in float64."""

    def attend(self, streams: Sequence[Tensor], grid: Any, mask: Tensor | None) -> Tensor:
        """Scale the principal directions of each head."""
        (w,) = streams
        out = resolvent_of_shards(w, 1 / self.eps**2, self.sums(grid))
        return self.step_out.to(w.dtype).view(-1, 1, 1) * out


class ShardedChannelCBSA(Sharded, ChannelCBSA):
    """ChannelCBSA: the diagonal of the second moment, d numbers per head each way."""

    def attend(self, streams: Sequence[Tensor], grid: Any, mask: Tensor | None) -> Tensor:
        """Scale the channels of each head."""
        (w,) = streams
        out = variants.scale_channels(w, self.eps, self.sums(grid))
        return self.step_out.to(w.dtype).view(-1, 1, 1) * out


class ShardedExactMSSA(Sharded, MSSA):
    """MSSA with the exact contraction, which the second moment WᵀW suffices for, as for LinearCBSA."""

    def attend(self, streams: Sequence[Tensor], grid: Any, mask: Tensor | None) -> Tensor:
        """Take the gradient step of the coding rate within each head."""
        (w,) = streams
        sums = self.sums(grid)
        count: Tensor | int = sums.tokens
        if mask is not None:
            real = sums.counted(mask.unsqueeze(-1)).sum(-2).to(solve_dtype(w.device))  # (B, 1)
            count = sums.total(real).clamp_min(1)[:, :, None, None]
        return self._step(resolvent_of_shards(w, self.head_dim / (count * self.eps**2), sums))


_SHARDED: dict[type[Attention], type[Sharded]] = {
    CBSA: ShardedCBSA,
    TSSA: ShardedTSSA,
    LinearAttention: ShardedLinearAttention,
    LinearCBSA: ShardedLinearCBSA,
    ChannelCBSA: ShardedChannelCBSA,
}


def shard_attention(layer: Attention, group: ContextGroup, name: str = "the layer") -> Sharded:
    """The layer for tokens that are spread over the processes of a group; it shares its parameters.

    Args:
        layer: the layer.
        group: the processes.
        name: what errors call it.
    """
    if isinstance(layer, Sharded):
        raise ValueError(
            f"{name} is a {type(layer).__name__}, whose tokens are spread already: give the layer of one "
            "process, which shares its parameters"
        )
    kind: type[Sharded] | None = _SHARDED.get(type(layer))
    if isinstance(layer, MSSA) and layer.contraction == "exact":
        kind = ShardedExactMSSA
    elif isinstance(layer, (MSSA, MHSA)):
        raise ValueError(
            f"{name} is an {type(layer).__name__}, which compares every token with every token: its tokens "
            "cannot be spread over processes without sending all of them around. Take a layer whose tokens "
            "speak through a few sums: CBSA, TSSA, LinearAttention, LinearCBSA or ChannelCBSA"
        )
    if kind is None:
        known = ", ".join(known.__name__ for known in _SHARDED)
        raise TypeError(f"{name} is a {type(layer).__name__}; tokens can be spread for {known}")
    if isinstance(layer, CBSA) and layer.legacy_pool and layer.initial_reps is None:
        raise ValueError(
            f"{name} has legacy_pool=True, which shifts the raster by a token, across the borders of "
            "processes; it is there for the authors' checkpoints at the size they were trained at. Spread "
            "tokens with legacy_pool=False"
        )
    new = as_class(layer, kind)
    new.group = group
    if layer.local is not None:
        new.local = as_class(layer.local, ShardedDepthwiseConv)
        new.local.group = group
    return new
