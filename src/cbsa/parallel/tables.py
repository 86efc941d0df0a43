"""The tables of docs/scaling.md, as Markdown."""

import torch

from cbsa.models.block import Block
from cbsa.models.transformer import Transformer
from cbsa.parallel import costs

DEVICES = (1, 8, 64, 1024)
SIDES = (10_000, 31_616, 100_000)  # pixels: 0.1, 1 and 10 gigapixels
_LAYER_TOKENS = (197, 4_097, 65_537, 1_048_577, 39_062_501)
_HBM = 141e9  # bytes of an H200


def cbt_small() -> Transformer:
    """CBT-S without memory for its parameters."""
    return Transformer(device="meta")


def layer_table(devices: int = 8) -> str:
    """Bytes that each device sends in one layer, for one image, forward and backward."""
    model = cbt_small()
    block = model.blocks[0]
    assert isinstance(block, Block)
    lines = [
        "| tokens | context parallelism of CBSA | ring attention | tensor parallelism |",
        "|---|---|---|---|",
    ]
    own = costs.context_parallel_wire(block.attn, devices)
    for tokens in _LAYER_TOKENS:
        ring = costs.ring_attention_wire(tokens, model.embed_dim, devices)
        tensor = costs.tensor_parallel_wire(tokens, model.embed_dim, devices)
        lines.append(f"| {tokens:,} | {_bytes(own)} | {_bytes(ring)} | {_bytes(tensor)} |")
    return "\n".join(lines)


def layer_memory_table(devices: int = 8) -> str:
    """Bytes that each device keeps of one layer for the backward, for one image."""
    dim = cbt_small().embed_dim
    lines = [
        "| tokens | context parallelism of CBSA, kept | ring attention | tensor parallelism |",
        "|---|---|---|---|",
    ]
    ways = (costs.context_parallel_kept, costs.ring_attention_kept, costs.tensor_parallel_kept)
    for tokens in _LAYER_TOKENS:
        cells = " | ".join(_bytes(way(tokens, dim, devices)) for way in ways)
        lines.append(f"| {tokens:,} | {cells} |")
    return "\n".join(lines)


def image_table() -> str:
    """What a device stores and sends for one large image."""
    model = cbt_small()
    depth = len(model.blocks)
    sent = sum(costs.blocks_bytes(model, 1, torch.bfloat16))
    lines = [
        "| image | tokens | GPUs | rows of patches each | inference | training | training, recomputed "
        "| CBSA sends | ring attention sends |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for side in SIDES:
        rows = -(-side // model.patch_size)
        tokens = rows * rows + 1
        for devices in DEVICES:
            start = f"| {side:,}² | {tokens:,} | {devices:,} "
            if devices > rows:
                lines.append(f"{start}| fewer than one: at most {rows:,} GPUs | | | | | |")
                continue
            memory = costs.activation_memory(model, side, side, devices)
            ring = depth * costs.ring_attention_wire(tokens, model.embed_dim, devices)
            lines.append(
                f"{start}| {-(-rows // devices):,} | {_fits(memory.inference)} | {_fits(memory.training)} "
                f"| {_fits(memory.recomputing)} | {_bytes(costs.ring_all_reduce(sent, devices))} "
                f"| {_bytes(ring)} |"
            )
    return "\n".join(lines)


def _bytes(n: float) -> str:
    """Bytes in a unit that suits them, three digits."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= size:
            return f"{n / size:.3g} {unit}" if n < 999.5 * size else f"{n / size:,.0f} {unit}"
    return f"{n:.0f} B"


def _fits(n: float) -> str:
    """The same, in bold if the memory of an H200 holds it."""
    return f"**{_bytes(n)}**" if n <= _HBM else _bytes(n)
