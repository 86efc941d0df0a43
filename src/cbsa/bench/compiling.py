"""``torch.compile`` without surprises: nothing left from the last row, no silent fall back to eager code."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


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
    """Compile a model in place: its stem and each of its blocks, which share code, or all of it at once."""
    blocks = getattr(model, "blocks", None)
    if whole or not isinstance(blocks, (nn.ModuleList, nn.Sequential)):
        model.compile(dynamic=False)  # type: ignore[no-untyped-call]
        return
    for block in blocks:
        block.compile(dynamic=False)
    stem = getattr(model, "patch_embed", None)
    if isinstance(stem, nn.Module):
        stem.compile(dynamic=False)  # type: ignore[no-untyped-call]
