"""What a decoder costs for one image, in closed form and counted."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from cbsa.layers import MLP
from cbsa.models.block import Block
from cbsa.models.costs import Tokens, attention_macs, layer_similarities
from cbsa.segmentation.decoders import Decoder, DepictDecoder
from cbsa.segmentation.decoders.layer import DecoderLayer


@dataclass(frozen=True)
class DecoderCost:
    """Costs of a decoder alone, for one image.

    Attributes:
        parameters: parameters, class tokens included.
        macs: multiply-accumulates of its layers over patches and class tokens. Pooling, the masks, and maps
            before and after the layers are left out: twice this is what the authors call its FLOPs.
        counted_macs: those of everything, by PyTorch's flop counter.
        similarities: similarities between tokens, or with representatives, in all layers and heads.
    """

    parameters: int
    macs: int
    counted_macs: int
    similarities: int


def decoder_cost(decoder: Decoder, grid: tuple[int, int]) -> DecoderCost:
    """Costs of a decoder for an image of ``grid`` patches."""
    return DecoderCost(
        sum(p.numel() for p in decoder.parameters()),
        layer_macs(decoder, grid),
        counted_macs(decoder, grid),
        pairwise_similarities(decoder, grid),
    )


def layer_macs(decoder: Decoder, grid: tuple[int, int]) -> int:
    """Multiply-accumulates of the layers: see :class:`DecoderCost`."""
    tokens = Tokens(_tokens(decoder, grid), grid, pooling=False)
    total = 0
    for block in _blocks(decoder):
        total += attention_macs(block.attn, tokens)
        if isinstance(block, Block) and isinstance(block.ff, MLP):
            total += 2 * tokens.count * block.ff.fc1.in_features * block.ff.fc1.out_features
    patches, classes = grid[0] * grid[1], decoder.num_classes
    for block in _cross_blocks(decoder):
        inner = block.attn.num_heads * block.attn.head_dim
        # Patches in; classes in and back; scores and their sums.
        total += (patches + 2 * classes) * decoder.dim * inner + 2 * classes * patches * inner
    return total


def pairwise_similarities(decoder: Decoder, grid: tuple[int, int]) -> int:
    """Similarities of all layers and heads; see :func:`cbsa.models.costs.pairwise_similarities`."""
    n, patches = _tokens(decoder, grid), grid[0] * grid[1]
    crossing = sum(block.attn.num_heads for block in _cross_blocks(decoder)) * decoder.num_classes * patches
    return sum(layer_similarities(block.attn, n) for block in _blocks(decoder)) + crossing


def counted_macs(decoder: Decoder, grid: tuple[int, int]) -> int:
    """All multiply-accumulates by PyTorch's flop counter, from a forward pass without data."""
    shapes = {name: torch.empty_like(tensor, device="meta") for name, tensor in decoder.state_dict().items()}
    patches = torch.empty(1, grid[0] * grid[1], decoder.dim, device="meta")
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        torch.func.functional_call(decoder, shapes, (patches, grid))
    return int(counter.get_total_flops()) // 2


def _tokens(decoder: Decoder, grid: tuple[int, int]) -> int:
    """Tokens that the layers see: patches, and classes unless they only gather from them."""
    alone = isinstance(decoder, DepictDecoder) and decoder.mode == "cross"
    return grid[0] * grid[1] + (0 if alone else decoder.num_classes)


def _blocks(decoder: Decoder) -> list[DecoderLayer | Block]:
    blocks = decoder.blocks
    assert isinstance(blocks, nn.ModuleList)
    return [block for block in blocks if isinstance(block, (DecoderLayer, Block))]


def _cross_blocks(decoder: Decoder) -> list[DecoderLayer]:
    blocks = getattr(decoder, "cross_blocks", ())
    return [block for block in blocks if isinstance(block, DecoderLayer)]
