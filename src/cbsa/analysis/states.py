"""The tokens from block to block."""

from typing import Any

import torch
from torch import Tensor

from cbsa.analysis.batches import Images, image_batches
from cbsa.analysis.probing import probing, to_blocks
from cbsa.models import Transformer


def token_states(model: Transformer, images: Images) -> Tensor:
    """Take the tokens that enter the first block and those that leave each one.

    Args:
        model: any :class:`cbsa.models.Transformer`; its mode and hooks are left as they were.
        images: (B, C, height, width), of any size, or an iterable of such batches, all of one size.

    Returns:
        (1 + depth, B, N, dim), CLS first, on the model's device.
    """
    taken: list[Tensor] = []
    batches: list[Tensor] = []

    def enter(block: Any, args: tuple[Any, ...]) -> None:
        taken.append(args[0])

    def leave(block: Any, args: tuple[Any, ...], out: Tensor) -> None:
        taken.append(out)

    with probing(model) as stack:
        blocks: Any = model.blocks
        stack.enter_context(blocks[0].register_forward_pre_hook(enter))
        for block in blocks:
            stack.enter_context(block.register_forward_hook(leave))
        for batch in image_batches(images):
            to_blocks(model, batch)
            batches.append(torch.stack(taken))
            taken.clear()
    return torch.cat(batches, dim=1)
