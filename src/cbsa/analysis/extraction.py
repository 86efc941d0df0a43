"""The extraction of CBSA layers: the factors A_k whose products A_k A_kᵀ stand for the attention matrix."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cbsa._checks import check_int
from cbsa.analysis.batches import Images, image_batches
from cbsa.analysis.probing import head_tokens, probing, to_blocks
from cbsa.layers import CBSA, Attention
from cbsa.models import Transformer
from cbsa.ops.precision import accumulation_dtype, no_autocast
from cbsa.ops.reference import extraction_weights


@dataclass(frozen=True)
class ExtractionFactors:
    """A_k of eq. cross-attn by layer and head; each row is a distribution over CLS and the patches."""

    factors: Tensor  # (layers, B, H, m, 1 + h·w), representatives as rows: the transposed A_k of the paper
    layers: tuple[int, ...]  # which layers of the model these are, from 0
    grid: tuple[int, int]  # (h, w) patches

    def row(self, query: int) -> Tensor:
        """Row ``query`` of A_k A_kᵀ over all tokens, (layers, B, H, 1 + h·w); nothing N×N is formed."""
        tokens = self.factors.shape[-1]
        if check_int("query", query, at_least=0) >= tokens:
            raise ValueError(f"query must be below the number of tokens, {tokens}, got {query}")
        return (self.factors[..., query].unsqueeze(-2) @ self.factors).squeeze(-2)


def extraction_factors(
    model: Transformer, images: Images, layers: Sequence[int] | None = None
) -> ExtractionFactors:
    """Take the factors A_k (eq. cross-attn) of CBSA and Agent layers, from which any token's map follows.

    Args:
        model: a :class:`cbsa.models.Transformer` with such layers; its mode and hooks are left as they were.
        images: (B, C, height, width), of any size, or an iterable of such batches, all of one size.
        layers: which blocks, counted from 0, or from the end if negative; by default those with CBSA.

    Returns:
        Factors on the model's device, in float32 (float64 for a float64 model).
    """
    taken: dict[int, list[Tensor]] = {}
    grids: set[tuple[int, int]] = set()

    def look(index: int, attention: CBSA, args: tuple[Any, ...]) -> None:
        *_, a = extraction(attention, *args)
        taken.setdefault(index, []).append(a)
        grids.add(args[1])

    with probing(model) as stack:
        wanted = cbsa_layers(model, layers)
        for index in dict.fromkeys(wanted):
            block: Any = model.blocks[index]
            stack.enter_context(block.attn.register_forward_pre_hook(partial(look, index)))
        for batch in image_batches(images):
            to_blocks(model, batch)
            one_grid(grids)
    return ExtractionFactors(torch.stack([torch.cat(taken[i]) for i in wanted]), wanted, one_grid(grids))


def extraction(layer: CBSA, x: Tensor, grid: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens w (B, H, N, p), representatives Q (B, H, m, p) and their A (B, H, m, N) in a layer.

    Q are the initial ones, or those that enter the last of several extractions.

    In the accumulation dtype of the tokens, whatever autocast says.

    Args:
        layer: a CBSA layer.
        x: (B, N, dim) normed tokens.
        grid: layout of the patches.
    """
    (w,) = head_tokens(layer, x)
    return extraction_of(layer, w.to(accumulation_dtype(w.dtype)), grid)


def extraction_of(layer: CBSA, w: Tensor, grid: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """As :func:`extraction`, from the projected tokens w (B, H, N, p)."""
    with no_autocast(w.device):
        reps = layer.last_representatives(w, grid)
        return w, reps, extraction_weights(w, reps, layer.head_dim**-0.5)


def cbsa_layers(model: Transformer, layers: Sequence[int] | None) -> tuple[int, ...]:
    """Indices of the CBSA layers asked for; all there are by default, and an error if there is none."""
    attentions: list[Attention] = [block.attn for block in model.blocks]  # type: ignore[misc, union-attr]
    if layers is None:
        found = tuple(i for i, attention in enumerate(attentions) if isinstance(attention, CBSA))
        if not found:
            kinds = ", ".join(sorted({type(attention).__name__ for attention in attentions}))
            raise TypeError(
                f"the model has no CBSA or Agent layer (its attention is {kinds}), so no representatives to "
                "look at: take another model"
            )
        return found
    wanted = block_indices(layers, len(attentions))
    for index in wanted:
        if not isinstance(attentions[index], CBSA):
            raise TypeError(
                f"layer {index} is {type(attentions[index]).__name__}, which has no representatives: "
                "ask for CBSA or Agent layers by layers=, or take another model"
            )
    return wanted


def block_indices(layers: Sequence[int] | None, depth: int) -> tuple[int, ...]:
    """Blocks asked for, counted from 0; all by default."""
    if layers is None:
        return tuple(range(depth))
    if not layers or not all(-depth <= layer < depth for layer in layers):
        raise ValueError(f"layers must be some of the {depth} blocks, {-depth} to {depth - 1}, got {layers}")
    return tuple(layer % depth for layer in layers)


def one_grid(grids: set[tuple[int, int]]) -> tuple[int, int]:
    """The one grid of patches of all images; maps of several sizes do not fit into one tensor."""
    if len(grids) > 1:
        sizes = " and ".join(f"{h}×{w}" for h, w in sorted(grids))
        raise ValueError(f"images must all have one size, got grids of {sizes} patches: give one size a call")
    return next(iter(grids))
