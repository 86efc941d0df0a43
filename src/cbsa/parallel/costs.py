"""What a model over several processes sends and stores: docs/scaling.md is made of these numbers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from cbsa.layers import CBSA, MSSA, TSSA, Attention, ChannelCBSA, ConvStem, LinearAttention, LinearCBSA
from cbsa.models import memory
from cbsa.models.block import Block
from cbsa.models.transformer import Transformer
from cbsa.ops.precision import accumulation_dtype
from cbsa.parallel.shard import split


class Sent(NamedTuple):
    """Bytes that one process hands to collectives for a batch, in each direction."""

    forward: int
    backward: int


def attention_bytes(
    layer: Attention,
    batch: int = 1,
    dtype: torch.dtype = torch.float32,
    masked: Sequence[int] | None = None,
) -> Sent:
    """What an attention layer sums over processes for a batch, whatever the number of tokens is.

    Args:
        layer: the layer; whether its tokens are spread already makes no difference.
        batch: number of sequences.
        dtype: of the tokens; what is summed is float32 or wider.
        masked: the grid of the tokens if they have a mask, of which the axes after the first matter: what is
            exchanged on padding has no gradient, and adds to the forward alone.
    """
    sent = _sums_bytes(layer, batch, dtype)
    return sent if masked is None else Sent(sent.forward + _mask_bytes(layer, batch, masked), sent.backward)


def _mask_bytes(layer: Attention, batch: int, grid: Sequence[int]) -> int:
    """What processes tell each other about padding.

    Pooled CBSA: counts of the windows (float32), the number of rows that are not all padding (int64), and of
    each slice along the other axes whether it is (a byte). Exact MSSA: the number of real tokens (float64).
    """
    if isinstance(layer, CBSA) and layer.initial_reps is None:
        counts = layer.num_representatives * torch.float32.itemsize
        return batch * (counts + torch.int64.itemsize + sum(grid[1:]))
    return batch * torch.float64.itemsize if isinstance(layer, MSSA) else 0


def _sums_bytes(layer: Attention, batch: int, dtype: torch.dtype) -> Sent:
    """What is summed with or without a mask."""
    heads, d, number = batch * layer.num_heads, layer.head_dim, accumulation_dtype(dtype).itemsize
    if isinstance(layer, CBSA):
        m, pooled = layer.num_representatives, layer.initial_reps is None
        forward = m * (d + 2) * layer.iterations + m * d * pooled
        reads_lse = layer.broadcast == "per_token" or (
            layer.broadcast == "transpose" and layer.rep_norm != "none"
        )
        backward = m * d * layer.iterations + m * reads_lse
        backward += m * d * (pooled and not layer.stop_gradient)
        return Sent(heads * forward * number, heads * backward * number)
    if isinstance(layer, TSSA):
        return Sent(*[heads * (2 * d + 1) * number] * 2)
    if isinstance(layer, LinearAttention):
        return Sent(*[heads * d * (d + 1) * number] * 2)
    if isinstance(layer, ChannelCBSA):
        return Sent(*[heads * d * number] * 2)
    if isinstance(layer, LinearCBSA) or (isinstance(layer, MSSA) and layer.contraction == "exact"):
        return Sent(*[heads * d * d * torch.float64.itemsize] * 2)
    raise TypeError(f"tokens of {type(layer).__name__} cannot be spread over processes")


def convolution_bytes(
    layer: Attention, grid: Sequence[int], batch: int = 1, dtype: torch.dtype = torch.float32
) -> Sent:
    """What the depth-wise convolution of a layer exchanges in a process with neighbours, if it has one.

    As many rows as its filters reach go to the processes above and below, and their gradients back; of the
    grid, the axes after the first matter.
    """
    if layer.local is None:
        return Sent(0, 0)
    row = math.prod(grid[1:]) * layer.num_heads * layer.head_dim
    return Sent(*[2 * (layer.local.kernel_size // 2) * batch * row * dtype.itemsize] * 2)


def stem_bytes(stem: ConvStem, width: int, batch: int = 1, dtype: torch.dtype = torch.float32) -> Sent:
    """What the stem of a process with neighbours exchanges in training, for images of ``width`` pixels.

    One row of the input of each stage goes to the process below, and its gradient back, but for the image's;
    BatchNorm sums C + 1 and C numbers forward and 2·C backward. Nothing depends on the number of rows.
    """
    forward = backward = 0
    wide = accumulation_dtype(dtype).itemsize
    for index, stage in enumerate(list(stem.proj)[::2]):
        conv = stage[0]  # type: ignore[index]
        row = batch * conv.in_channels * width * dtype.itemsize
        forward += row + (2 * conv.out_channels + 1) * wide
        backward += (row if index else 0) + 2 * conv.out_channels * wide
        width = -(-width // 2)
    return Sent(forward, backward)


def blocks_bytes(model: Transformer, batch: int = 1, dtype: torch.dtype = torch.float32) -> Sent:
    """What the attention of all blocks sums over processes."""
    each = [attention_bytes(b.attn, batch, dtype) for b in model.blocks if isinstance(b, Block)]
    return Sent(sum(sent.forward for sent in each), sum(sent.backward for sent in each))


# --- beside others: what one device sends over the wire, per layer -------------------------------------


def ring_all_reduce(payload: float, devices: int) -> float:
    """Bytes that each device of a ring sends to sum a payload of so many bytes."""
    return 2 * payload * (devices - 1) / devices


def context_parallel_wire(layer: Attention, devices: int, dtype: torch.dtype = torch.bfloat16) -> float:
    """Bytes that each device sends for one image in one layer, forward and backward."""
    return ring_all_reduce(sum(attention_bytes(layer, 1, dtype)), devices)


def ring_attention_wire(tokens: int, dim: int, devices: int, dtype: torch.dtype = torch.bfloat16) -> float:
    """The same for softmax attention whose keys and values go around.

    Forward, the keys and values of every other device's tokens pass; backward, they and their gradients.
    """
    return (2 + 4) * tokens * dim * dtype.itemsize * (devices - 1) / devices


def tensor_parallel_wire(tokens: int, dim: int, devices: int, dtype: torch.dtype = torch.bfloat16) -> float:
    """The same for a block whose heads and hidden channels are divided: two sums of all tokens each way."""
    return 4 * ring_all_reduce(tokens * dim * dtype.itemsize, devices)


# --- memory --------------------------------------------------------------------------------------------


# Numbers that a block with ISTA keeps for each token and channel if it has softmax attention: query, key,
# value and output in place of w and the operator's output. What is not of these four is outside of the heads.
_SOFTMAX_BLOCK, _OF_HEADS = memory.BLOCK["ista"] + 2, 4


# Tensors of the size of the tokens that are alive at once in a block without a backward, not fused: its
# input, and in attention the normed tokens, the heads and what comes out.
_ALIVE = 4


def context_parallel_kept(tokens: int, dim: int, devices: int, dtype: torch.dtype = torch.bfloat16) -> float:
    """Bytes that each device keeps of a block with CBSA and ISTA for the backward; of the few, nothing."""
    return memory.BLOCK["ista"] * tokens * dim / devices * dtype.itemsize


def ring_attention_kept(tokens: int, dim: int, devices: int, dtype: torch.dtype = torch.bfloat16) -> float:
    """The same with softmax attention, and the keys and values that pass: two pairs, here and on the way."""
    return (_SOFTMAX_BLOCK + 4) * tokens * dim / devices * dtype.itemsize


def tensor_parallel_kept(tokens: int, dim: int, devices: int, dtype: torch.dtype = torch.bfloat16) -> float:
    """The same where heads are divided: what is not within heads, every device has of all tokens."""
    return (_SOFTMAX_BLOCK - _OF_HEADS + _OF_HEADS / devices) * tokens * dim * dtype.itemsize


@dataclass(frozen=True)
class Memory:
    """Bytes of activations on one device, for one image.

    Attributes:
        training: kept for the backward.
        recomputing: the same if stem and blocks are recomputed, with one of them under way.
        inference: largest at any time, of what is alive in eager mode.
    """

    training: int
    recomputing: int
    inference: int


def activation_memory(
    model: Transformer, height: int, width: int, devices: int = 1, dtype: torch.dtype = torch.bfloat16
) -> Memory:
    """Activations of an image of height × width pixels, its rows of patches divided among the devices.

    For models with a convolutional stem and ISTA. Nothing of size tokens × representatives is kept. In
    inference the stem runs in tiles if it takes more than the model's ``stem_bytes``.
    """
    stem = model.patch_embed
    if not isinstance(stem, ConvStem) or model.feed_forward != "ista":
        raise ValueError("the memory of models with a convolutional stem and ISTA alone is known")
    rows = split(-(-height // stem.patch_size), devices)[0]  # of patches, on a device that has most
    columns = -(-width // stem.patch_size)
    image = stem.in_chans * min(rows * stem.patch_size, height) * width
    patches = rows * columns
    stages = [n * patches for n in memory.stage_numbers(stem)]
    tokens = patches * model.embed_dim
    depth, block = len(model.blocks), memory.BLOCK[model.feed_forward]
    kept = image + memory.STAGE * sum(stages[:-1]) + stages[-1]
    while_blocks = image + sum(stages[:-1]) + (depth + block) * tokens  # of the stem, inputs of stages
    numbers = (
        kept + depth * block * tokens,
        max(while_blocks, image + memory.STAGE * stages[0]),
        image + max(_stem_in_inference(model, stages[0], rows, columns, dtype), _ALIVE * tokens),
    )
    return Memory(*(n * dtype.itemsize for n in numbers))


def _stem_in_inference(model: Transformer, widest: int, rows: int, columns: int, dtype: torch.dtype) -> int:
    """Numbers of the widest stage, before and after GELU; of a tile and the maps, where there are tiles."""
    row = 2 * widest // rows  # of patches
    if max(1, model.stem_bytes // (row * dtype.itemsize)) >= rows:
        return row * rows
    tile = max(1, min(model.stem_bytes, model.tile_bytes) // (row * dtype.itemsize))
    return row * (tile + 1) + rows * columns * model.embed_dim
