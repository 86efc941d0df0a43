"""``torch.compile`` without surprises: nothing left from the last row, no silent fall back to eager code."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from cbsa.models.compiling import compile_blocks


@contextmanager
def fresh_compiler() -> Iterator[None]:
    """Forget compiled code before and after, and raise where the limit on recompilations is hit."""
    from torch._dynamo import config

    torch.compiler.reset()
    try:
        with config.patch(fail_on_recompile_limit_hit=True):
            yield
    finally:
        torch.compiler.reset()


def compile_model(model: nn.Module, whole: bool = False) -> None:
    """Compile a model in place: its parts, of which the blocks share code, or all of it at once."""
    if whole:
        model.compile(dynamic=False)  # type: ignore[no-untyped-call]
        return
    compile_blocks(model, dynamic=False)
    add_positions = getattr(model, "_pos_embed", None)  # timm's: what our models have a module for
    if callable(add_positions):
        model._pos_embed = torch.compile(add_positions, dynamic=False)  # type: ignore[assignment]
