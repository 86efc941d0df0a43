"""What all probes share: watching a model without leaving a trace."""

import contextlib
from collections.abc import Iterator

import torch
from torch import nn

from cbsa.analysis.anatomy import Anatomy
from cbsa.analysis.layers import Grid


@contextlib.contextmanager
def probing(model: nn.Module) -> Iterator[tuple[Anatomy, contextlib.ExitStack]]:
    """Put ``model`` into evaluation mode without gradients, and take the hooks off again at the end.

    Enter the handles of hooks into the stack that this yields, beside the anatomy of the model: they are
    removed, and every module's mode is set back, on errors too. Compiled blocks run eagerly meanwhile, since
    compiled code may skip hooks.
    """
    anatomy = Anatomy(model)
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            anatomy.follow(stack)
            yield anatomy, stack
    finally:
        for module, training in modes:
            module.training = training  # train() would undo a model's inference form


def one_grid(grids: set[Grid]) -> Grid:
    """The one grid of patches of all images; maps of several sizes do not fit into one tensor."""
    if len(grids) > 1:
        sizes = " and ".join(f"{h}×{w}" for h, w in sorted(grids))
        raise ValueError(f"images must all have one size, got grids of {sizes} patches: give one size a call")
    return next(iter(grids))
