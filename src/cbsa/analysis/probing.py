"""What all probes share: watching a model without leaving a trace, and the tokens within each head."""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

from cbsa.layers import Attention
from cbsa.models import Transformer


@contextlib.contextmanager
def probing(model: Transformer) -> Iterator[contextlib.ExitStack]:
    """Put ``model`` into evaluation mode without gradients, and take the hooks off again at the end.

    Enter the handles of hooks into the stack that this yields: they are removed, and every module's mode is
    set back, on errors too. Compiled blocks run eagerly meanwhile, since compiled code may skip hooks.
    """
    if not isinstance(model, Transformer):
        raise TypeError(
            f"model must be a cbsa.models.Transformer, got {type(model).__name__}: "
            "a wrapper (DistributedDataParallel, torch.compile) holds one as .module or ._orig_mod"
        )
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            yield stack
    finally:
        for module, training in modes:
            module.training = training  # train() would undo a model's inference form


def to_blocks(model: Transformer, images: Tensor) -> None:
    """Run images (B, C, height, width) through the blocks, on the model's device; hooks see the rest."""
    model.forward_features(images.to(model.pos_embed.device))


def head_tokens(attention: Attention, x: Tensor) -> tuple[Tensor, ...]:
    """Normed tokens x (B, N, dim) within each head, (B, H, N, p): one tensor, or query, key and value."""
    return by_heads(attention, attention.proj(x))


def by_heads(attention: Attention, projected: Tensor) -> tuple[Tensor, ...]:
    """What ``attention.proj`` returns, by heads: (B, H, N, p), once or for query, key and value."""
    sizes = attention.streams, attention.num_heads, attention.head_dim
    heads = projected.view(*projected.shape[:2], *sizes)
    return heads.permute(2, 0, 3, 1, 4).unbind(0)
