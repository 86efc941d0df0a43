"""The representatives themselves, before and after their contraction."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cbsa.analysis.batches import Images
from cbsa.analysis.layers import Grid, Layer
from cbsa.analysis.probing import look_into


@dataclass(frozen=True)
class Representatives:
    """Representatives within each head's subspace, by layer; m may differ from layer to layer."""

    extracted: tuple[Tensor, ...]  # of each layer (B, H, m, p): R = Q_ini + η A w, eq. cross-attn
    contracted: tuple[Tensor, ...]  # of each layer (B, H, m, p): C, the contraction of R, eq. CBSA
    layers: tuple[int, ...]  # which layers of the model these are, from 0


def representatives(model: nn.Module, images: Images, layers: Sequence[int] | None = None) -> Representatives:
    """Take the representatives of CBSA and Agent layers as they are extracted, and contracted.

    Agent attention does not contract: both are the same there. In an adapted ViT values stand for w.

    Args:
        model: a model with such layers (:class:`cbsa.analysis.Anatomy` says of which kinds); its mode and
            hooks are left as they were.
        images: (B, C, height, width), of any size, or an iterable of such batches.
        layers: which blocks, counted from 0, or from the end if negative; by default those with CBSA.

    Returns:
        Representatives on the model's device, in float32 (float64 for a float64 model).
    """

    def take(layer: Layer, streams: Sequence[Tensor], grid: Grid) -> tuple[Tensor, Tensor]:
        return layer.extraction(streams, grid).representatives()

    looked = look_into(model, images, lambda anatomy: anatomy.with_representatives(layers), take)
    extracted, contracted = (
        tuple(torch.cat([pair[i] for pair in batches]) for batches in looked.found) for i in (0, 1)
    )
    return Representatives(extracted, contracted, looked.layers)
