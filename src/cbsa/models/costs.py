"""What a model costs: multiply-accumulates and pairwise similarities, in closed form and counted."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from cbsa.layers import (
    CBSA,
    ISTA,
    MHSA,
    MSSA,
    TSSA,
    Attention,
    ChannelCBSA,
    ConvStem,
    LinearAttention,
    LinearCBSA,
)
from cbsa.models.block import Block
from cbsa.models.tost import ToST
from cbsa.models.transformer import Transformer


@dataclass(frozen=True)
class Tokens:
    """How many tokens there are, and how their patches lie."""

    count: int
    grid: tuple[int, int]
    pooling: bool  # whether the products of our pooling are counted


def closed_form_macs(model: Transformer | ToST, img_size: int, *, paper_rule: bool = True) -> int:
    """Multiply-accumulates for one square image of ``img_size`` pixels.

    Args:
        model: a model.
        img_size: side of the image.
        paper_rule: count as the paper does: N is the number of patches without CLS, and pooling is free.
            Otherwise everything that our plain implementation multiplies is counted.
    """
    if isinstance(model, ToST):
        return _tost(model, img_size)
    side = -(-img_size // model.patch_size)
    patches = side * side
    tokens = Tokens(
        patches if paper_rule else patches + model.num_prefix_tokens, (side, side), not paper_rule
    )
    blocks = sum(_block(block, tokens) for block in model.blocks if isinstance(block, Block))
    return _stem(model, img_size) + blocks + model.embed_dim * model.num_classes


def counted_macs(model: nn.Module, img_size: int, in_chans: int = 3) -> int:
    """The same by PyTorch's flop counter, from a forward pass without data; the model loses its weights."""
    with torch.device("meta"):
        image = torch.empty(1, in_chans, img_size, img_size)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        model.to("meta").eval()(image)
    return int(counter.get_total_flops()) // 2


def pairwise_similarities(model: Transformer | ToST, img_size: int) -> int:
    """Similarities computed between tokens (or tokens and representatives) in all layers and heads.

    MSSA and MHSA: N² per head; CBSA: mN + m(m+1)/2; Agent: mN; the channel mixers: N·p, as the paper counts
    TSSA. N includes CLS.
    """
    if isinstance(model, ToST):
        patches = (img_size // model.patch_size) ** 2
        class_rows = sum(block.attn.num_heads for block in _modules(model.cls_attn_blocks))
        return len(model.blocks) * patches * int(model.embed_dim) + int(class_rows) * (patches + 1)
    side = -(-img_size // model.patch_size)
    n = side * side + model.num_prefix_tokens
    return sum(layer_similarities(block.attn, n) for block in model.blocks if isinstance(block, Block))


def layer_similarities(layer: Attention, n: int) -> int:
    """Similarities that one attention layer computes for n tokens; see :func:`pairwise_similarities`."""
    if isinstance(layer, CBSA):
        m = layer.num_representatives
        among = m * (m + 1) // 2 if layer.contraction != "none" else 0
        return layer.num_heads * (layer.iterations * m * n + among)
    if isinstance(layer, (MSSA, MHSA)):
        return layer.num_heads * n * n
    return layer.num_heads * n * layer.head_dim


def attention_macs(layer: Attention, tokens: Tokens) -> int:
    """Multiply-accumulates of one attention layer, its projections included."""
    inner = layer.num_heads * layer.head_dim
    nearby = 0 if layer.local is None else math.prod(tokens.grid) * layer.local.kernel_size**2 * inner
    return tokens.count * layer.dim * inner * (layer.streams + 1) + _mixing(layer, inner, tokens) + nearby


def _stem(model: Transformer, img_size: int) -> int:
    stem = model.patch_embed
    if not isinstance(stem, ConvStem):
        side = -(-img_size // model.patch_size)
        return side * side * stem.proj.in_features * stem.proj.out_features
    return _conv_stages(stem.proj, img_size)


def _conv_stages(stages: nn.Sequential, img_size: int) -> int:
    total, side = 0, img_size
    for stage in list(stages)[::2]:
        conv = stage[0]  # type: ignore[index]
        side = -(-side // 2)
        total += side * side * 9 * conv.in_channels * conv.out_channels
    return total


def _tost(model: ToST, img_size: int) -> int:
    """Original ToST: stem, Fourier positions, blocks over the patches, class attention, head."""
    n, d = (img_size // model.patch_size) ** 2, int(model.embed_dim)
    blocks = len(model.blocks) * (2 * n * d * d + n * d + 8 * n * d * d)
    # Class attention: query, output and MLP of one token, keys and values of all.
    one_token, all_tokens = 2 * d * d + 8 * d * d, 2 * (n + 1) * d * d + 2 * (n + 1) * d
    classes = len(_modules(model.cls_attn_blocks)) * (one_token + all_tokens)
    stem: Any = model.patch_embed
    return _conv_stages(stem.proj, img_size) + n * 64 * d + blocks + classes + d * int(model.num_classes)


def _modules(container: object) -> list[Any]:
    """What an ``nn.ModuleList`` holds."""
    return list(container) if isinstance(container, nn.ModuleList) else []


def _block(block: Block, tokens: Tokens) -> int:
    products = 2 if isinstance(block.ff, ISTA) else 8
    return attention_macs(block.attn, tokens) + products * tokens.count * block.attn.dim**2


def _mixing(layer: Attention, inner: int, tokens: Tokens) -> int:
    """Products between tokens, summed over heads."""
    n, p = tokens.count, layer.head_dim
    if isinstance(layer, CBSA):
        m = layer.num_representatives
        (h, w), (rows, columns) = tokens.grid, layer.representatives
        by_products = tokens.pooling and bool(h % rows or w % columns)  # windows that divide need none
        pooling = h * w * columns * inner + h * rows * columns * inner if by_products else 0
        passes = (1 + 2 * layer.iterations) * n * m * inner
        return passes + (2 * m * m * inner if layer.contraction == "softmax" else 0) + pooling
    if isinstance(layer, (MSSA, MHSA)):
        return 2 * n * n * inner
    if isinstance(layer, TSSA):
        return n * inner
    if isinstance(layer, LinearAttention):
        return 2 * n * inner * p + n * inner
    if isinstance(layer, ChannelCBSA):
        return 0
    if isinstance(layer, LinearCBSA):
        return 2 * n * inner * p
    raise TypeError(f"no closed form is known for {type(layer).__name__}")
