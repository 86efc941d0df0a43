"""What all probes share: watching a model without leaving a trace."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from cbsa.analysis.anatomy import Anatomy
from cbsa.analysis.batches import Images, image_batches
from cbsa.analysis.layers import Grid, Layer

Found = TypeVar("Found")


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


@dataclass(frozen=True)
class Looked(Generic[Found]):
    """What was taken from some layers of a model."""

    found: tuple[list[Found], ...]  # of each layer, by batch
    layers: tuple[int, ...]  # which layers of the model these are, from 0
    grids: frozenset[Grid]  # (h, w) patches of all the images

    @property
    def grid(self) -> Grid:
        """The one grid of all images."""
        return _one_grid(self.grids)


def look_into(
    model: nn.Module,
    images: Images,
    choose: Callable[[Anatomy], tuple[int, ...]],
    take: Callable[[Layer, Sequence[Tensor], Grid], Found],
    *,
    one_size: bool = False,
) -> Looked[Found]:
    """Run images through a model, and take something from what enters some of its layers.

    Args:
        model: any model that probes know (:class:`cbsa.analysis.Anatomy`).
        images: one batch, or an iterable of batches.
        choose: which layers, by number, of the model's anatomy.
        take: called with a layer, its tokens by heads (B, H, N, p), one stream or query, key and value, and
            the grid of the patches.
        one_size: refuse images of several sizes, whose maps would not fit into one tensor.
    """
    taken: dict[int, list[Found]] = {}
    grids: set[Grid] = set()

    def look(index: int, layer: Layer, streams: Sequence[Tensor], grid: Grid) -> None:
        taken.setdefault(index, []).append(take(layer, streams, grid))
        grids.add(grid)

    with probing(model) as (anatomy, stack):
        wanted = choose(anatomy)
        anatomy.watch(stack, wanted, look)
        for batch in image_batches(images):
            anatomy.run(batch)
            if one_size:
                _one_grid(grids)
    return Looked(tuple(taken[index] for index in wanted), wanted, frozenset(grids))


def _one_grid(grids: set[Grid] | frozenset[Grid]) -> Grid:
    """The one grid of patches of all images; maps of several sizes do not fit into one tensor."""
    if len(grids) > 1:
        sizes = " and ".join(f"{h}×{w}" for h, w in sorted(grids))
        raise ValueError(f"images must all have one size, got grids of {sizes} patches: give one size a call")
    return next(iter(grids))
