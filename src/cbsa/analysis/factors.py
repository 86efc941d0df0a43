"""What the maps of all tokens follow from, layer by layer, without a map of any of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cbsa._checks import check_int
from cbsa.analysis.batches import Images
from cbsa.analysis.layers import Grid, Layer
from cbsa.analysis.probing import look_into
from cbsa.ops.linear import KERNELS


@dataclass(frozen=True)
class LayerFactors:
    """Factors of one layer; what they are depends on ``kind``.

    - ``"extraction"``, CBSA and Agent: A (B, H, m, N). Row i of the map: Σ_r A[r, i]·A[r, :]. Where a layer
      does not broadcast with Aᵀ, its weights B (B, H, m, N) as well. Row i: Σ_r B[r, i]·A[r, :].
    - ``"softmax"``, MSSA: W (B, H, N, p); MHSA: Q and K. Row i: softmax(scale·Q[i]·Kᵀ).
    - ``"kernel"``, linear attention: φ(Q) and φ(K). Row i: φ(Q)[i]·φ(K)ᵀ over its sum, 0 if that is 0.
    - ``"membership"``, TSSA: Π (B, H, N), the share of each token in each head. There are no rows: it is a
      softmax over heads, not a map over tokens, and no token is a query.
    - ``"none"``: the layer mixes channels or directions, through no map over tokens.
    """

    kind: str
    factors: tuple[Tensor, ...]
    scale: float  # of the scores, for "softmax"; 1 otherwise

    def row(self, query: int) -> Tensor:
        """Row ``query`` of the map over all tokens, (B, H, N); nothing N×N is formed."""
        if self.kind in ("membership", "none"):
            raise TypeError(f"this layer has no map over tokens (its factors are of kind {self.kind!r})")
        tokens = self.factors[0].shape[-1 if self.kind == "extraction" else -2]
        if check_int("query", query, at_least=0) >= tokens:
            raise ValueError(f"query must be below the number of tokens, {tokens}, got {query}")
        if self.kind == "extraction":
            a, broadcast = self.factors[0], self.factors[-1]
            return (broadcast[..., query].unsqueeze(-2) @ a).squeeze(-2)
        q, k = self.factors[0], self.factors[-1]
        products: Tensor = (self.scale * q[..., query, None, :] @ k.mT).squeeze(-2)
        if self.kind == "softmax":
            return products.softmax(-1)
        total = products.sum(-1, keepdim=True)
        return products / total.where(total > 0, 1)


@dataclass(frozen=True)
class AttentionFactors:
    """Factors of some layers of a model."""

    factors: tuple[LayerFactors, ...]
    layers: tuple[int, ...]  # which layers of the model these are, from 0
    grid: tuple[int, int]  # (h, w) patches


def attention_factors(
    model: nn.Module, images: Images, layers: Sequence[int] | None = None
) -> AttentionFactors:
    """Take from each layer the small factors that every row of its attention map follows from.

    They are of size N·m or N·p a head, so that the maps of all tokens, N×N, can be had one by one.
    :func:`cbsa.analysis.attention_maps` returns the map of one token in all layers.

    Args:
        model: any model that probes know (:class:`cbsa.analysis.Anatomy`); its mode and hooks are left as
            they were.
        images: (B, C, height, width), of any size, or an iterable of such batches, all of one size.
        layers: which blocks, counted from 0, or from the end if negative; all by default.

    Returns:
        Factors on the model's device, in float32 (float64 for a float64 model).
    """
    looked = look_into(model, images, lambda anatomy: anatomy.chosen(layers), factors_of, one_size=True)
    return AttentionFactors(tuple(map(_join, looked.found)), looked.layers, looked.grid)


def factors_of(layer: Layer, streams: Sequence[Tensor], grid: Grid) -> LayerFactors:
    """Factors of a layer from tokens by heads (B, H, N, p), one stream or query, key and value."""
    factors: tuple[Tensor, ...] = ()
    if layer.kind == "extraction":
        found = layer.extraction(streams, grid)
        transposes = found.broadcast is found.weights
        factors = (found.weights,) if transposes else (found.weights, found.broadcast)
    elif layer.kind == "softmax":
        factors = tuple(streams[:2])
    elif layer.kind == "kernel":
        phi = KERNELS[layer.kernel]
        factors = (phi(streams[0]), phi(streams[1]))
    elif layer.kind == "membership":
        energy = F.normalize(streams[0], dim=-2).square().sum(-1)  # (B, H, N)
        factors = ((energy * layer.attention.temp).softmax(1),)
    return LayerFactors(layer.kind, factors, layer.scale if layer.kind == "softmax" else 1.0)


def _join(batches: Sequence[LayerFactors]) -> LayerFactors:
    """The factors of several batches as those of one."""
    first = batches[0]
    factors = tuple(torch.cat(parts) for parts in zip(*(b.factors for b in batches), strict=True))
    return LayerFactors(first.kind, factors, first.scale)
