"""Activations that are computed again in the backward instead of being kept."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint


def recomputed(function: Callable[..., Tensor], *given: Any, module: nn.Module) -> Tensor:
    """``function(*given)``, a part of ``module`` without randomness, computed again in the backward.

    What BatchNorms of the module count, they count once.
    """
    out: Tensor = checkpoint(
        function,
        *given,
        use_reentrant=False,
        preserve_rng_state=False,
        context_fn=lambda: (nullcontext(), _counting_nothing(module)),
    )
    return out


@contextmanager
def _counting_nothing(module: nn.Module) -> Iterator[None]:
    """Let BatchNorms update copies of their running statistics, which are then forgotten."""
    norms = [norm for norm in module.modules() if isinstance(norm, _BatchNorm)]
    counted = [dict(norm._buffers) for norm in norms]
    for norm, buffers in zip(norms, counted, strict=True):
        norm._buffers.update({name: None if b is None else b.clone() for name, b in buffers.items()})
    try:
        yield
    finally:
        for norm, buffers in zip(norms, counted, strict=True):
            norm._buffers.update(buffers)
