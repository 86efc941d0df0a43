"""A model in the form in which it is timed: for inference, or for a training step."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cbsa.bench.compiling import compile_model
from cbsa.bench.gate import Check

INFERENCE, TRAINING = "inference", "training"
MODES = (INFERENCE, TRAINING)
PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
COMPILATIONS = ("blocks", "model", "none")
# The logits may err three times as much as the plain model's in the same precision, or by so much (float32:
# its convolutions run in TF32 on a GPU).
_FACTOR, _FLOOR, _FLOOR_SINGLE = 3.0, 8.0, 1e-3  # the second in units of eps
_MOST_CHECKED = 8  # images whose logits are checked in inference


@dataclass(frozen=True)
class Form:
    """How a model is run."""

    name: str
    img_size: int
    batch: int
    mode: str
    precision: str
    compilation: str
    num_classes: int = 1000


def create(form: Form, device: torch.device) -> nn.Module:
    """The model for images of its size, in float32, with random weights."""
    import timm

    import cbsa.models  # noqa: F401  # registers ours

    torch.manual_seed(0)
    options: dict[str, Any] = {"img_size": form.img_size, "num_classes": form.num_classes}
    with torch.device(device):
        model: nn.Module = timm.create_model(form.name, pretrained=False, **options)
    return model.to(device)


def prepare(form: Form, device: torch.device) -> tuple[Callable[[], Tensor], list[Check]]:
    """The work to time, a call that returns the logits, and what the gate says of it.

    The gate compares the logits with those of the same model, not compiled, in float32; they may err at most
    three times as much as those of the model, not compiled, in the precision that is timed. Gradients must be
    finite.
    """
    model = create(form, device)
    generator = torch.Generator(device).manual_seed(0)
    size = (form.batch, 3, form.img_size, form.img_size)
    images = torch.randn(size, device=device, generator=generator).to(memory_format=torch.channels_last)
    return (_inference if form.mode == INFERENCE else _training)(form, model, images, generator)


def _inference(
    form: Form, model: nn.Module, images: Tensor, generator: torch.Generator
) -> tuple[Callable[[], Tensor], list[Check]]:
    dtype = PRECISIONS[form.precision]
    model.eval()
    picked = list(range(min(form.batch, _MOST_CHECKED)))
    with torch.no_grad():
        truth = model(images[picked])
        plain = copy.deepcopy(model).to(dtype)(images[picked].to(dtype))
    fuse = getattr(model, "fuse", None)
    if callable(fuse):
        fuse()
    model.to(dtype).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = images.to(dtype)
    if form.compilation != "none":
        compile_model(model, whole=form.compilation == "model")

    def infer() -> Tensor:
        with torch.no_grad():
            logits: Tensor = model(images)
            return logits

    return infer, [check_logits(infer()[picked], truth, plain, dtype)]


def _training(
    form: Form, model: nn.Module, images: Tensor, generator: torch.Generator
) -> tuple[Callable[[], Tensor], list[Check]]:
    dtype, device = PRECISIONS[form.precision], images.device
    model.train().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    targets = torch.randint(form.num_classes, (form.batch,), device=device, generator=generator)

    def autocast() -> torch.autocast:
        # Without its cache: a CUDA graph must hold the casts of the weights that it reads.
        return torch.autocast(device.type, dtype, enabled=dtype != torch.float32, cache_enabled=False)

    with torch.no_grad():
        truth = model(images)
        with autocast():
            plain = model(images)
    if form.compilation != "none":
        compile_model(model, whole=form.compilation == "model")

    def step() -> Tensor:
        model.zero_grad(set_to_none=True)
        with autocast():
            logits: Tensor = model(images)
        F.cross_entropy(logits.float(), targets).backward()  # type: ignore[no-untyped-call]
        return logits.detach()

    return step, [check_logits(step(), truth, plain, dtype), check_gradients(model)]


def check_logits(logits: Tensor, truth: Tensor, plain: Tensor, dtype: torch.dtype) -> Check:
    """Compare logits with the float32 model's."""
    floor = _FLOOR_SINGLE if dtype == torch.float32 else _FLOOR * torch.finfo(dtype).eps
    allowed = max(_FACTOR * _relative_error(plain, truth), floor)
    return Check("output", _relative_error(logits, truth), allowed if math.isfinite(allowed) else 0.0)


def check_gradients(model: nn.Module) -> Check:
    """Whether every parameter has a gradient and all are finite; the error is the share that has not."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    wrong = sum(p.grad is None or not bool(p.grad.isfinite().all()) for p in parameters)
    return Check("gradients", math.inf if wrong else 0.0, 0.0)


def _relative_error(actual: Tensor, truth: Tensor) -> float:
    actual, truth = actual.double(), truth.double()
    error = ((actual - truth).norm() / truth.norm().clamp_min(1e-12)).item()
    return error if math.isfinite(error) else math.inf
