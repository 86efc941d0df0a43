"""All that a run must remember to go on as if nothing had happened."""

import json
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.optim import Optimizer

from cbsa.models.checkpoints import model_arguments
from cbsa.train.averaging import WeightAverage
from cbsa.train.distributed import World, local_part


@dataclass
class Progress:
    """Where a run stands.

    The order and the augmentation of images are functions of seed, epoch and image, so that ``step`` is all
    there is to the position of the sampler.
    """

    step: int = 0  # optimiser steps done
    epoch_loss: float = 0.0  # sum of the losses of the present epoch's steps
    best: float = -1.0  # score of the best epoch, in percent
    best_epoch: int = 0
    seconds: float = 0.0  # time spent so far, evaluation included

    @classmethod
    def of(cls, stored: dict[str, Any]) -> "Progress":
        """Progress as it is stored; the score was called ``best_top1`` when there were classifiers alone."""
        return cls(**{"best" if name == "best_top1" else name: value for name, value in stored.items()})


@dataclass
class TrainState:
    """Model, optimiser, gradient scaler, weight average, progress and random numbers of a run.

    States are saved in full and by name, wherever the parameters lie: a run can go on with another number of
    processes, or with FSDP instead of DDP.
    """

    model: nn.Module
    optimizer: Optimizer
    scaler: torch.amp.GradScaler
    average: WeightAverage | None
    progress: Progress
    world: World
    arguments_of: Callable[[nn.Module], dict[str, Any]] = model_arguments  # what makes the same model again

    def capture(self) -> dict[str, Any]:
        """The whole state, on the CPU; all processes take part, and the main one has the result."""
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        state: dict[str, Any] = {
            "model": get_model_state_dict(self.model, options=options),
            "optimizer": get_optimizer_state_dict(self.model, self.optimizer, options=options),
            "scaler": self.scaler.state_dict(),
            "progress": asdict(self.progress),
            "random": self.world.gather(_random_state(self.world.device)),
            "model_args": json.dumps(self.arguments_of(self.model)),
        }
        if self.average is not None:
            with self.average.swapped():
                averaged: dict[str, Any] = get_model_state_dict(self.model, options=options)
                # On a CPU these are the live tensors, which are about to get their own values back.
                state["average"] = {name: value.clone() for name, value in averaged.items()}
            state["average_updates"] = self.average.updates
        return state

    def restore(self, state: dict[str, Any] | None) -> None:
        """Go back to a captured state, given by the main process; the others may pass None."""
        several = self.world.size > 1
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=several)
        state = state if self.world.is_main and state is not None else {}
        small = self.world.share(
            {k: state.get(k) for k in ("scaler", "progress", "random", "average_updates")}
        )
        if self.average is not None and small["average_updates"] is not None:
            set_model_state_dict(self.model, state.get("average", {}), options=options)
            self.average.restart(small["average_updates"])
        set_model_state_dict(self.model, state.get("model", {}), options=options)
        set_optimizer_state_dict(self.model, self.optimizer, state.get("optimizer", {}), options=options)
        self.scaler.load_state_dict(small["scaler"])
        self.progress = Progress.of(small["progress"])
        if self.world.rank < len(small["random"]):
            _set_random_state(small["random"][self.world.rank], self.world.device)

    def first_non_finite(self) -> str | None:
        """Name of a parameter with a value that is not finite; such a state is not worth keeping."""
        parts = {name: local_part(p) for name, p in self.model.named_parameters()}
        names = [name for name, part in parts.items() if part.numel()]
        norms = torch._foreach_norm([parts[name] for name in names], float("inf"))
        finite = torch.stack([norm.float() for norm in norms]).isfinite()
        return None if bool(finite.all()) else names[int((~finite).nonzero()[0])]


def _random_state(device: torch.device) -> dict[str, Any]:
    """States of all generators, as tensors and plain values."""
    numpy_state: Any = np.random.get_state(legacy=True)  # noqa: NPY002  # timm's mixup draws from it
    kind, keys, position, has_gauss, gauss = numpy_state
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "python": random.getstate(),
        "numpy": (kind, torch.from_numpy(keys.astype(np.int64)), position, has_gauss, gauss),
    }


def _set_random_state(state: dict[str, Any], device: torch.device) -> None:
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)
    random.setstate(state["python"])
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))  # noqa: NPY002
