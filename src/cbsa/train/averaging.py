"""A moving average of the weights."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from cbsa.train.distributed import local_part


class WeightAverage:
    """Exponential moving average of a model's parameters and floating-point buffers.

    It keeps tensors, not a second model: sharded parameters stay sharded, and evaluation with the average
    swaps values in place, so that compiled code and CUDA graphs stay valid. In the first steps the decay is
    (1 + t)/(10 + t) if that is less, so that the random initialisation is forgotten soon.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.updates = 0
        self._live = [local_part(t) for t in model.state_dict().values() if t.is_floating_point()]
        self._average = [t.detach().clone() for t in self._live]

    @torch.no_grad()
    def update(self) -> None:
        """Take in the model's present weights."""
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        torch._foreach_lerp_(self._average, self._live, 1 - decay)

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Let the model have the average as its weights, and give it back its own afterwards."""
        own = [t.detach().clone() for t in self._live]
        with torch.no_grad():
            torch._foreach_copy_(self._live, self._average)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self._live, own)

    @torch.no_grad()
    def restart(self, updates: int) -> None:
        """Take the model's present weights for the average after ``updates`` updates."""
        self.updates = updates
        torch._foreach_copy_(self._average, self._live)
