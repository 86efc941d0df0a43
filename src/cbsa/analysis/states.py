"""The tokens from block to block."""

from typing import Any

import torch
from torch import Tensor, nn

from cbsa.analysis.batches import Images, image_batches
from cbsa.analysis.probing import probing


def token_states(model: nn.Module, images: Images) -> Tensor:
    """Take the tokens that enter the first block and those that leave each one.

    Args:
        model: any model that probes know (:class:`cbsa.analysis.Anatomy`); its mode and hooks are left as
            they were.
        images: (B, C, height, width), of any size, or an iterable of such batches, all of one size.

    Returns:
        (1 + depth, B, N, dim), prefix tokens first, on the model's device. These are CLS, or the classes in
        the decoder of a segmenter; the original ToST has none in its blocks.
    """
    taken: list[Tensor] = []
    batches: list[Tensor] = []

    def enter(block: Any, args: tuple[Any, ...]) -> None:
        taken.append(args[0])

    def leave(block: Any, args: tuple[Any, ...], out: Tensor) -> None:
        taken.append(out)

    with probing(model) as (anatomy, stack):
        blocks = [layer.block for layer in anatomy.layers]
        stack.enter_context(blocks[0].register_forward_pre_hook(enter))
        for block in blocks:
            stack.enter_context(block.register_forward_hook(leave))
        for batch in image_batches(images):
            anatomy.run(batch)
            batches.append(torch.stack(taken))
            taken.clear()
    return torch.cat(batches, dim=1)
