"""Where a token looks: attention maps over the patches."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cbsa._checks import check_int
from cbsa.analysis.anatomy import Anatomy
from cbsa.analysis.batches import Images
from cbsa.analysis.factors import factors_of
from cbsa.analysis.layers import Grid, Layer
from cbsa.analysis.probing import look_into
from cbsa.layers import MSSA, LinearCBSA


@dataclass(frozen=True)
class AttentionMaps:
    """Maps of one query token over the patches, by layer and head."""

    maps: Tensor  # (layers, B, H, h, w)
    layers: tuple[int, ...]  # which layers of the model these are, from 0
    grid: tuple[int, int]  # (h, w) patches
    query: int  # index of the query token; 0 is CLS, or the first class in the decoder of a segmenter


def attention_maps(
    model: nn.Module,
    images: Images,
    layers: Sequence[int] | None = None,
    query: int = 0,
    *,
    normalize: bool = True,
) -> AttentionMaps:
    """Map of one query token over the patches, per head.

    - CBSA and Agent attention: row ``query`` of A_k A_kᵀ, the paper's estimate of the full attention matrix,
      where A_k is the extraction of eq. cross-attn (each of its columns a distribution over the tokens). The
      matrix itself is never formed. A layer that does not broadcast with A_kᵀ (``broadcast=`` of
      :class:`cbsa.layers.CBSA`) has its own weights of the query in the place of A_k's.
    - MSSA and MHSA: the row of their softmax. Linear attention: the row of its normalised kernel.
    - Adapted ViTs: A_k is the softmax of pooled queries over the keys. CBSA*: row ``query`` of A_k A_kᵀ.
      CBSA∨ (Agent): the row of its softmax over representatives times A_kᵀ, by which values really mix.
      Layers with softmax or linear attention: as above.
    - TSSA, LinearCBSA, ChannelCBSA and exact MSSA have no map over tokens: a TypeError says why.

    Args:
        model: any model that probes know (:class:`cbsa.analysis.Anatomy`); its mode and hooks are left as
            they were.
        images: (B, C, height, width), of any size, or an iterable of such batches, all of one size; they are
            moved to the model's device.
        layers: which blocks, counted from 0, or from the end if negative; all by default.
        query: index of the query token; prefix tokens come first (0 is CLS; in the decoder of a segmenter,
            the classes), then the patches row by row.
        normalize: scale each map to sum 1 over the patches; otherwise the row as it is, whose sum is that of
            the row less what falls on prefix tokens. A row that is 0 on all patches stays so.

    Returns:
        Maps on the model's device, in float32 (float64 for a float64 model).
    """
    check_int("query", query, at_least=0)

    def choose(anatomy: Anatomy) -> tuple[int, ...]:
        wanted = anatomy.chosen(layers)
        for index in wanted:
            _check_map(anatomy.layers[index], index)
        return wanted

    def take(layer: Layer, streams: Sequence[Tensor], grid: Grid) -> Tensor:
        return factors_of(layer, streams, grid).row(query)  # (B, H, N)

    looked = look_into(model, images, choose, take, one_size=True)
    grid = looked.grid
    maps = torch.stack([torch.cat(rows)[..., -grid[0] * grid[1] :] for rows in looked.found])
    if normalize:
        total = maps.sum(-1, keepdim=True)
        maps = maps / total.where(total > 0, 1)
    return AttentionMaps(maps.view(*maps.shape[:-1], *grid), looked.layers, grid, query)


def _check_map(layer: Layer, index: int) -> None:
    """Refuse a layer that has no map over tokens, by name."""
    if layer.kind in ("extraction", "softmax", "kernel"):
        return
    name, reason = layer.name, "this probe does not know its map over tokens"
    if layer.kind == "membership":
        reason = "its softmax is over heads, not a map over tokens"
    elif isinstance(layer.attention, (LinearCBSA, MSSA)):
        reason = "it rescales directions or channels of each head, through no map over tokens"
        name += " with contraction='exact'" if isinstance(layer.attention, MSSA) else ""
    raise TypeError(f"layer {index} is {name}: {reason}; ask for other layers=, or take another model")
