"""``torch.compile`` for models made of blocks."""

from typing import Any

from torch import nn


def compile_blocks(model: nn.Module, **options: Any) -> None:
    """Compile, in place, the parts of a model: stem, sequence of tokens, and each block.

    One compilation serves all blocks, so that it takes a fraction of the time of the whole model's. Names of
    parameters stay as they are. Of a model that is put together from such models, as a segmenter is from
    encoder and decoder, each is compiled in this way; any other model as a whole.

    Args:
        model: one of ours or of timm's.
        options: of ``torch.compile``.
    """
    blocks = _blocks(model)
    if not blocks:
        made_of = [child for child in model.children() if _blocks(child)]
        for child in made_of:
            compile_blocks(child, **options)
        if not made_of:
            model.compile(**options)
        return
    parts = (getattr(model, name, None) for name in ("patch_embed", "sequence"))
    for part in (*parts, *blocks):
        if isinstance(part, nn.Module):
            part.compile(**options)


def _blocks(model: nn.Module) -> list[nn.Module]:
    blocks = getattr(model, "blocks", None)
    return list(blocks) if isinstance(blocks, (nn.ModuleList, nn.Sequential)) else []
