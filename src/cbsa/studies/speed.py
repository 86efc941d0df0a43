"""The speed of a study's models, taken as ``cbsa bench models`` takes it."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from cbsa.bench.model_forms import MODES, Form
from cbsa.bench.models import measure_form
from cbsa.train import TrainConfig
from cbsa.train.distributed import choose_device
from cbsa.train.initial import build_model

_SECONDS = 0.5  # for each measurement
_KEPT = ("status", "reason", "images_s", "median_ms", "peak_bytes")


@dataclass(frozen=True)
class RunForm(Form):
    """The model of a run, as ``cbsa bench`` times models: its batch, precision and compilation."""

    config: TrainConfig = field(default_factory=TrainConfig)

    @classmethod
    def of(cls, config: TrainConfig, classes: int, mode: str) -> "RunForm":
        """In one of the modes, training or inference."""
        runtime = config.runtime
        how = (mode, runtime.precision, "blocks" if runtime.compile else "none", classes)
        return cls(config.model.name, config.data.img_size, config.batch_size, *how, config)

    def create(self) -> nn.Module:
        """The model of the run, with random weights."""
        return build_model(self.config, self.num_classes)

    def draw(self, device: torch.device, generator: torch.Generator) -> Tensor:
        """Random images of the run's size and channels."""
        size = (self.batch, self.config.data.in_chans, self.img_size, self.img_size)
        images = torch.randn(size, device=device, generator=generator)
        return images.to(memory_format=torch.channels_last)


def measure_speed(config: TrainConfig, classes: int) -> dict[str, Any]:
    """Images/s and peak memory of a run's model in training (no optimiser) and in inference.

    Raises:
        RuntimeError: a mode could not be measured; the message says why.
    """
    device = choose_device(config.runtime.device)
    rows = {mode: measure_form(RunForm.of(config, classes, mode), device, _SECONDS) for mode in MODES}
    failed = {mode: row for mode, row in rows.items() if "images_s" not in row}
    if failed:
        raise RuntimeError("; ".join(f"{mode}: {row['reason']}" for mode, row in failed.items()))
    found: dict[str, Any] = {mode: {k: row.get(k) for k in _KEPT} for mode, row in rows.items()}
    device_name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return found | {"batch": config.batch_size, "precision": config.runtime.precision, "device": device_name}
