"""Average pooling over windows that may reach across processes."""

from collections.abc import Sequence

import torch
from torch import Tensor

from cbsa.ops.pooling import Axis, alive_slices, window_sizes, window_sums
from cbsa.ops.precision import no_autocast
from cbsa.parallel.collectives import gather, reduce, sum_over_processes
from cbsa.parallel.group import ContextGroup
from cbsa.parallel.shard import Shard


def pool_heads(
    w: Tensor, shard: Shard, size: Sequence[int], first: int, mask: Tensor | None, group: ContextGroup
) -> Tensor:
    """Representatives (B, H, m, d), the same in every process, of tokens w (B, H, N, d) from ``first`` on.

    Each process sums its share of every window; m·d numbers per head are then summed over processes, and in
    the backward as many. With a mask, so are the counts of the windows, and it is found out which rows and
    columns are padding everywhere. See :func:`cbsa.ops.pool_tokens`.
    """
    x = w.transpose(1, 2).flatten(2)[:, first:]  # (B, n, H d)
    with no_autocast(x.device):
        if mask is None:
            sums = sum_over_processes(window_sums(x, _axes(shard, x.device), size), group)
            pooled = sums / window_sizes(shard.whole, size, x.device)
        else:
            real = mask[:, first:]
            axes = _axes_with_padding(real.reshape(-1, *shard.sizes), group)
            sums = window_sums(x.masked_fill(~real.unsqueeze(-1), 0), axes, size)
            counts = window_sums(real.to(torch.float32).unsqueeze(-1), axes, size)
            counts = reduce(counts, "sum", group.name)  # apart from the sums: they have no gradient to send
            pooled = sum_over_processes(sums, group) / counts.clamp_min(1)
    pooled = pooled.to(x.dtype)  # (B, m, H d)
    return pooled.view(*pooled.shape[:2], w.shape[1], w.shape[3]).transpose(1, 2)


def _axes(shard: Shard, device: torch.device) -> list[Axis]:
    """The axes of a shard without padding."""
    rows, *others = (Axis.whole(n, device) for n in shard.sizes)
    before, count = (torch.full((1, 1), n, device=device) for n in (shard.start, shard.total))
    return [Axis(rows.alive, before, count), *others]


def _axes_with_padding(real: Tensor, group: ContextGroup) -> list[Axis]:
    """The axes of tokens of which some are ``real`` (B, *grid): slices that are padding do not count."""
    rows, *others = alive_slices(real)
    counts = gather(rows.sum(-1, keepdim=True), group)  # (P, B, 1)
    axes = [Axis(rows, counts[: group.rank].sum(0), counts.sum(0))]
    if others:
        found = reduce(torch.cat(others, -1).to(torch.uint8), "max", group.name).bool()
        ends = torch.tensor([alive.shape[-1] for alive in others]).cumsum(0)[:-1].tolist()
        axes += map(Axis.of_slices, found.tensor_split(ends, -1))
    return axes
