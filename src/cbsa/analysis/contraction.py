"""The representatives themselves, before and after their contraction."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cbsa.analysis.batches import Images, image_batches
from cbsa.analysis.extraction import cbsa_layers, extraction
from cbsa.analysis.probing import probing, to_blocks
from cbsa.layers import CBSA
from cbsa.models import Transformer
from cbsa.ops.precision import no_autocast
from cbsa.ops.reference import per_head


@dataclass(frozen=True)
class Representatives:
    """Representatives within each head's subspace, by layer; m may differ from layer to layer."""

    extracted: tuple[Tensor, ...]  # of each layer (B, H, m, p): R = Q_ini + η A w, eq. cross-attn
    contracted: tuple[Tensor, ...]  # of each layer (B, H, m, p): C, the contraction of R, eq. CBSA
    layers: tuple[int, ...]  # which layers of the model these are, from 0


def representatives(
    model: Transformer, images: Images, layers: Sequence[int] | None = None
) -> Representatives:
    """Take the representatives of CBSA and Agent layers as they are extracted, and contracted.

    Agent attention does not contract: both are the same there.

    Args:
        model: a :class:`cbsa.models.Transformer` with such layers; its mode and hooks are left as they were.
        images: (B, C, height, width), of any size, or an iterable of such batches.
        layers: which blocks, counted from 0, or from the end if negative; by default those with CBSA.

    Returns:
        Representatives on the model's device, in float32 (float64 for a float64 model).
    """
    taken: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def look(index: int, layer: CBSA, args: tuple[Any, ...]) -> None:
        w, initial, a = extraction(layer, *args)
        with no_autocast(w.device):
            r = initial + per_head(layer.step_rep, w.dtype) * (a @ w)  # (B, H, m, p)
            c = layer.contract(r)
        taken.setdefault(index, []).append((r, c))

    with probing(model) as stack:
        wanted = cbsa_layers(model, layers)
        for index in dict.fromkeys(wanted):
            block: Any = model.blocks[index]
            stack.enter_context(block.attn.register_forward_pre_hook(partial(look, index)))
        for batch in image_batches(images):
            to_blocks(model, batch)
    extracted, contracted = (
        tuple(torch.cat([pair[i] for pair in taken[index]]) for index in wanted) for i in (0, 1)
    )
    return Representatives(extracted, contracted, wanted)
