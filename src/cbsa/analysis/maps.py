"""Where a token looks: attention maps over the patches."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cbsa._checks import check_int
from cbsa.analysis.batches import Images, image_batches
from cbsa.analysis.extraction import block_indices, extraction_of, one_grid
from cbsa.analysis.probing import head_tokens, probing, to_blocks
from cbsa.layers import CBSA, MHSA, MSSA, TSSA, Attention, LinearAttention, LinearCBSA
from cbsa.models import Transformer
from cbsa.ops.linear import KERNELS
from cbsa.ops.precision import accumulation_dtype, no_autocast

Row = Callable[[Any, Sequence[Tensor], tuple[int, ...], int], Tensor]


@dataclass(frozen=True)
class AttentionMaps:
    """Maps of one query token over the patches, by layer and head."""

    maps: Tensor  # (layers, B, H, h, w)
    layers: tuple[int, ...]  # which layers of the model these are, from 0
    grid: tuple[int, int]  # (h, w) patches
    query: int  # index of the query token, 0 = CLS


def attention_maps(
    model: Transformer,
    images: Images,
    layers: Sequence[int] | None = None,
    query: int = 0,
    *,
    normalize: bool = True,
) -> AttentionMaps:
    """Map of one query token over the patches, per head.

    - CBSA and Agent attention: row ``query`` of A_k A_kᵀ, the paper's estimate of the full attention matrix,
      where A_k is the extraction of eq. cross-attn (each of its columns a distribution over the tokens). The
      matrix itself is never formed.
    - MSSA and MHSA: the row of their softmax. Linear attention: the row of its normalised kernel.
    - TSSA, LinearCBSA, ChannelCBSA and exact MSSA have no map over tokens: a TypeError says why.

    Args:
        model: any :class:`cbsa.models.Transformer`; its mode and hooks are left as they were.
        images: (B, C, height, width), of any size, or an iterable of such batches, all of one size; they are
            moved to the model's device.
        layers: which blocks, counted from 0, or from the end if negative; all by default.
        query: index of the query token; 0 is CLS, the patches follow row by row.
        normalize: scale each map to sum 1 over the patches; otherwise the row as it is, whose sum is that of
            the row less what falls on CLS. A row that is 0 on all patches stays so.

    Returns:
        Maps on the model's device, in float32 (float64 for a float64 model).
    """
    check_int("query", query, at_least=0)
    rows: dict[int, list[Tensor]] = {}  # of each layer, by batch: (B, H, N)
    grids: set[tuple[int, int]] = set()

    def look(index: int, row: Row, attention: Attention, args: tuple[Any, ...]) -> None:
        x, grid = args
        if query >= x.shape[1]:
            raise ValueError(f"query must be below the number of tokens, {x.shape[1]}, got {query}")
        streams = [s.to(accumulation_dtype(s.dtype)) for s in head_tokens(attention, x)]
        with no_autocast(x.device):
            rows.setdefault(index, []).append(row(attention, streams, grid, query))
        grids.add(grid)

    with probing(model) as stack:
        wanted = block_indices(layers, len(model.blocks))
        for index in dict.fromkeys(wanted):
            attention: Any = model.blocks[index].attn
            hook = partial(look, index, _row_of(attention, index))
            stack.enter_context(attention.register_forward_pre_hook(hook))
        for batch in image_batches(images):
            to_blocks(model, batch)
            one_grid(grids)

    grid = one_grid(grids)
    maps = torch.stack([torch.cat(rows[index])[..., -grid[0] * grid[1] :] for index in wanted])
    if normalize:
        total = maps.sum(-1, keepdim=True)
        maps = maps / total.where(total > 0, 1)
    return AttentionMaps(maps.view(*maps.shape[:-1], *grid), wanted, grid, query)


def _row_of(attention: Attention, index: int) -> Row:
    """How to compute a row of this attention's map over tokens."""
    if isinstance(attention, CBSA):
        return _extraction_row
    if isinstance(attention, MHSA) or (isinstance(attention, MSSA) and attention.contraction == "softmax"):
        return _softmax_row
    if isinstance(attention, LinearAttention):
        return _kernel_row
    kind, reason = type(attention).__name__, "this probe does not know its map over tokens"
    if isinstance(attention, TSSA):
        reason = "its softmax is over heads, not a map over tokens"
    elif isinstance(attention, (LinearCBSA, MSSA)):
        reason = "it rescales directions or channels of each head, through no map over tokens"
        kind += " with contraction='exact'" if isinstance(attention, MSSA) else ""
    raise TypeError(f"layer {index} is {kind}: {reason}; ask for other layers=, or take another model")


def _extraction_row(layer: CBSA, streams: Sequence[Tensor], grid: tuple[int, ...], query: int) -> Tensor:
    """Σ_r A[r, query]·A[r, :] with A (m×N) the softmax over tokens of eq. cross-attn, (B, H, N)."""
    _, _, a = extraction_of(layer, streams[0], grid)  # (B, H, m, N)
    row: Tensor = a[..., query].unsqueeze(-2) @ a  # (B, H, 1, N)
    return row.squeeze(-2)


def _softmax_row(layer: MSSA | MHSA, streams: Sequence[Tensor], grid: tuple[int, ...], query: int) -> Tensor:
    """softmax(p^-½·q·K) of one token's query, (B, H, N)."""
    q, k = streams[0], streams[min(1, len(streams) - 1)]  # MSSA has one projection for both
    scores: Tensor = layer.head_dim**-0.5 * q[..., query, None, :] @ k.mT  # (B, H, 1, N)
    return scores.squeeze(-2).softmax(-1)


def _kernel_row(
    layer: LinearAttention, streams: Sequence[Tensor], grid: tuple[int, ...], query: int
) -> Tensor:
    """φ(q)·φ(k_n) over its sum, (B, H, N); 0 for a query that has nothing in common with any key."""
    phi = KERNELS[layer.kernel]
    row = (phi(streams[0][..., query, None, :]) @ phi(streams[1]).mT).squeeze(-2)
    total = row.sum(-1, keepdim=True)
    return row / total.where(total > 0, 1)
