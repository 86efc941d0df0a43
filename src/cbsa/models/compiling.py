"""``torch.compile`` for models made of blocks."""

from typing import Any

from torch import nn


def compile_blocks(model: nn.Module, **options: Any) -> None:
    """Compile, in place, the parts of a model: stem, sequence of tokens, and each block.

    One compilation serves all blocks, so that it takes a fraction of the time of the whole model's. Names of
    parameters stay as they are. A model without blocks is compiled as a whole.

    Args:
        model: one of ours or of timm's.
        options: of ``torch.compile``.
    """
    blocks = getattr(model, "blocks", None)
    if not isinstance(blocks, (nn.ModuleList, nn.Sequential)):
        model.compile(**options)
        return
    parts = (getattr(model, name, None) for name in ("patch_embed", "sequence"))
    for part in (*parts, *blocks):
        if isinstance(part, nn.Module):
            part.compile(**options)
