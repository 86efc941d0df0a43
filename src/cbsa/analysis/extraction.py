"""The extraction of CBSA layers: the factors A_k whose products A_k A_kᵀ stand for the attention matrix."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cbsa._checks import check_int
from cbsa.analysis.batches import Images
from cbsa.analysis.layers import Grid, Layer
from cbsa.analysis.probing import look_into


@dataclass(frozen=True)
class ExtractionFactors:
    """A_k of eq. cross-attn by layer and head; each row is a distribution over prefix tokens and patches."""

    factors: Tensor  # (layers, B, H, m, N), representatives as rows: the transposed A_k of the paper
    broadcast: Tensor  # the same shape: by which tokens take representatives up; ``factors`` where that is Aᵀ
    layers: tuple[int, ...]  # which layers of the model these are, from 0
    grid: tuple[int, int]  # (h, w) patches

    def row(self, query: int) -> Tensor:
        """Row ``query`` of A_k A_kᵀ over all tokens, (layers, B, H, N); nothing N×N is formed.

        Where a layer does not broadcast with Aᵀ, its own weights of the query stand in its place.
        """
        tokens = self.factors.shape[-1]
        if check_int("query", query, at_least=0) >= tokens:
            raise ValueError(f"query must be below the number of tokens, {tokens}, got {query}")
        return (self.broadcast[..., query].unsqueeze(-2) @ self.factors).squeeze(-2)


def extraction_factors(
    model: nn.Module, images: Images, layers: Sequence[int] | None = None
) -> ExtractionFactors:
    """Take the factors A_k (eq. cross-attn) of CBSA and Agent layers, from which any token's map follows.

    Args:
        model: a model with such layers (:class:`cbsa.analysis.Anatomy` says of which kinds); its mode and
            hooks are left as they were.
        images: (B, C, height, width), of any size, or an iterable of such batches, all of one size.
        layers: which blocks, counted from 0, or from the end if negative; by default those with CBSA.

    Returns:
        Factors on the model's device, in float32 (float64 for a float64 model).
    """

    def take(layer: Layer, streams: Sequence[Tensor], grid: Grid) -> tuple[Tensor, Tensor]:
        found = layer.extraction(streams, grid)
        return found.weights, found.broadcast

    def stacked(which: int) -> Tensor:
        return torch.stack([torch.cat([pair[which] for pair in batches]) for batches in looked.found])

    looked = look_into(
        model, images, lambda anatomy: anatomy.with_representatives(layers), take, one_size=True
    )
    factors = stacked(0)
    transposes = all(a is b for batches in looked.found for a, b in batches)
    return ExtractionFactors(factors, factors if transposes else stacked(1), looked.layers, looked.grid)
