"""Loss and gradients of one optimiser step, eagerly or as one CUDA graph."""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from cbsa.data import Batch
from cbsa.train.config import RunConfig
from cbsa.train.task import Objective

_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
_WARM_UPS = 3  # runs before a capture: autotuning, compilation and lazy initialisation happen in them


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Autocast in the run's precision; disabled for float32."""
    return torch.autocast(device.type, dtype=_HALF.get(precision), enabled=precision in _HALF)


class GradientStep:
    """Puts the gradients of a batch into the parameters and returns its loss.

    Args:
        model: the model, wrapped for parallel training or not.
        config: settings of the run.
        scaler: gradient scaler; disabled but for fp16.
        device: where the model is.
        objective: how a batch is learnt from.
    """

    def __init__(
        self,
        model: nn.Module,
        config: RunConfig,
        scaler: torch.amp.GradScaler,
        device: torch.device,
        objective: Objective,
    ) -> None:
        self.model, self.config, self.scaler, self.device = model, config, scaler, device
        self.objective = objective
        self.graph = _CapturedStep(self) if self._can_capture() else None

    def __call__(self, batches: Iterator[Batch]) -> Tensor:
        """Gradients of the next ``accumulate`` micro-batches; returns their mean loss, not waited for."""
        parts = self.config.accumulate
        losses = []
        for part in range(parts):
            images, targets = self.prepare(next(batches))
            if self.graph is not None:
                return self.graph(images, targets)
            if part == 0:
                self.model.zero_grad(set_to_none=True)
            with self._gradient_sync(last=part == parts - 1):
                losses.append(self.forward_backward(images, targets))
        return torch.stack(losses).mean()

    def prepare(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """What the model takes of a batch, and what its output is compared with."""
        return self.objective.prepare(batch)

    def forward_backward(self, images: Tensor, targets: Tensor) -> Tensor:
        """Accumulate the gradients of one micro-batch; returns its loss."""
        precision = autocast(self.device, self.config.runtime.precision)
        loss = self.objective.measure(self.model, images, targets, precision)
        self.scaler.scale(loss / self.config.accumulate).backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def forget_graph(self) -> None:
        """Capture anew in the next step: the model computes something else from now on."""
        if self.graph is not None:
            self.graph.captured = None

    def _gradient_sync(self, last: bool) -> Any:
        """Exchange gradients between processes with the last micro-batch alone."""
        if isinstance(self.model, FSDPModule):
            self.model.set_requires_gradient_sync(last)
        elif isinstance(self.model, DistributedDataParallel) and not last:
            return self.model.no_sync()
        return nullcontext()

    def _can_capture(self) -> bool:
        wanted = self.config.runtime.cuda_graph
        obstacles = {
            "the device is no GPU": self.device.type != "cuda",
            "there are several processes": isinstance(self.model, (DistributedDataParallel, FSDPModule)),
            "accumulate is above 1": self.config.accumulate > 1,
            "model.checkpointing is on": bool(self.config.model.checkpointing),
        }
        present = [what for what, holds in obstacles.items() if holds]
        if wanted == "on" and present:
            raise ValueError(f"runtime.cuda_graph=on is not possible: {'; '.join(present)}")
        return wanted != "off" and not present


class _CapturedStep:
    """Forward and backward as one CUDA graph: hundreds of small kernels are launched at once.

    Gradients live in the graph's memory and are overwritten by each replay, so nobody may set them to None.
    """

    def __init__(self, step: GradientStep) -> None:
        self.step = step
        self.captured: torch.cuda.CUDAGraph | None = None

    def __call__(self, images: Tensor, targets: Tensor) -> Tensor:
        if self.captured is None:
            self._capture(images, targets)
        assert self.captured is not None
        self.images.copy_(images, non_blocking=True)
        self.targets.copy_(targets, non_blocking=True)
        self.captured.replay()
        return self.loss.clone()

    def _capture(self, images: Tensor, targets: Tensor) -> None:
        model = self.step.model
        self.images, self.targets = images.clone(), targets.clone()
        buffers = [b.clone() for b in model.buffers()]  # batch statistics: warm-ups must leave no trace
        random_state = torch.cuda.get_rng_state(self.step.device)
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                model.zero_grad(set_to_none=True)
                self.step.forward_backward(self.images, self.targets)
        torch.cuda.current_stream().wait_stream(stream)
        model.zero_grad(set_to_none=True)
        self.captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.captured):
            self.loss = self.step.forward_backward(self.images, self.targets)
        with torch.no_grad():
            for buffer, before in zip(model.buffers(), buffers, strict=True):
                buffer.copy_(before)
        torch.cuda.set_rng_state(random_state, self.step.device)
