"""A model in the form in which it is timed: for inference, or for a training step."""

import copy
import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
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
    """How a model is run; subclasses run something else than a whole model of timm's registry."""

    name: str
    img_size: int
    batch: int
    mode: str
    precision: str
    compilation: str
    num_classes: int = 1000

    def create(self) -> nn.Module:
        """The model for images of its size, in float32, with random weights."""
        import timm

        import cbsa.models  # noqa: F401  # registers ours

        options: dict[str, Any] = {"img_size": self.img_size, "num_classes": self.num_classes}
        model: nn.Module = timm.create_model(self.name, pretrained=False, **options)
        return model

    def draw(self, device: torch.device, generator: torch.Generator) -> Tensor:
        """Random input of the model, a batch in float32."""
        size = (self.batch, 3, self.img_size, self.img_size)
        images = torch.randn(size, device=device, generator=generator)
        return images.to(memory_format=torch.channels_last)

    def arguments(self) -> tuple[Any, ...]:
        """What the model takes beside its input."""
        return ()

    def attending(self, device: torch.device) -> AbstractContextManager[object]:
        """The context of what is timed; subclasses choose a kernel of softmax attention."""
        return nullcontext()

    def targets(self) -> tuple[int, ...]:
        """Shape of the classes that a training step learns."""
        return (self.batch,)


Prepared = tuple[Callable[[], Tensor], list[Check]]


def prepare(form: Form, device: torch.device) -> Prepared:
    """The work to time, a call that returns the logits, and what the gate says of it.

    The gate compares the logits with those of the same model, not compiled, in float32; they may err at most
    three times as much as those of the model, not compiled, in the precision that is timed. Gradients must be
    finite: of all parameters, and of the input if it needs one.
    """
    torch.manual_seed(0)
    with torch.device(device):
        model = form.create()
    model.to(device)
    generator = torch.Generator(device).manual_seed(0)
    inputs = form.draw(device, generator)
    if form.mode == INFERENCE:
        return _inference(form, model, inputs)
    targets = torch.randint(form.num_classes, form.targets(), device=device, generator=generator)
    return _training(form, model, inputs, targets)


def _inference(form: Form, model: nn.Module, inputs: Tensor) -> Prepared:
    dtype, arguments = PRECISIONS[form.precision], form.arguments()
    model.eval()
    inputs = inputs.detach()
    picked = list(range(min(form.batch, _MOST_CHECKED)))
    with torch.no_grad():
        truth = model(inputs[picked], *arguments)
        plain = copy.deepcopy(model).to(dtype)(inputs[picked].to(dtype), *arguments)
    fuse = getattr(model, "fuse", None)
    if callable(fuse):
        fuse()
    model.to(dtype).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    inputs = inputs.to(dtype)
    if form.compilation != "none":
        compile_model(model, whole=form.compilation == "model")

    def infer() -> Tensor:
        with torch.no_grad(), form.attending(inputs.device):
            logits: Tensor = model(inputs, *arguments)
            return logits

    return infer, [check_logits(infer()[picked], truth, plain, dtype)]


def _training(form: Form, model: nn.Module, inputs: Tensor, targets: Tensor) -> Prepared:
    dtype, device, arguments = PRECISIONS[form.precision], inputs.device, form.arguments()
    model.train().to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def autocast() -> torch.autocast:
        # Without its cache: a CUDA graph must hold the casts of the weights that it reads.
        return torch.autocast(device.type, dtype, enabled=dtype != torch.float32, cache_enabled=False)

    with torch.no_grad():
        truth = model(inputs, *arguments)
        with autocast():
            plain = model(inputs, *arguments)
    if form.compilation != "none":
        compile_model(model, whole=form.compilation == "model")

    def step() -> Tensor:
        model.zero_grad(set_to_none=True)
        inputs.grad = None
        with autocast(), form.attending(device):
            logits: Tensor = model(inputs, *arguments)
        F.cross_entropy(logits.float(), targets).backward()  # type: ignore[no-untyped-call]
        return logits.detach()

    return step, [check_logits(step(), truth, plain, dtype), check_gradients([*model.parameters(), inputs])]


def check_logits(logits: Tensor, truth: Tensor, plain: Tensor, dtype: torch.dtype) -> Check:
    """Compare logits with the float32 model's."""
    floor = _FLOOR_SINGLE if dtype == torch.float32 else _FLOOR * torch.finfo(dtype).eps
    allowed = max(_FACTOR * _relative_error(plain, truth), floor)
    return Check("output", _relative_error(logits, truth), allowed if math.isfinite(allowed) else 0.0)


def check_gradients(leaves: Iterable[Tensor]) -> Check:
    """Whether all leaves that need a gradient have one, and all are finite; the error is infinite if not."""
    needed = [leaf for leaf in leaves if leaf.requires_grad]
    wrong = sum(leaf.grad is None or not bool(leaf.grad.isfinite().all()) for leaf in needed)
    return Check("gradients", math.inf if wrong else 0.0, 0.0)


def _relative_error(actual: Tensor, truth: Tensor) -> float:
    actual, truth = actual.double(), truth.double()
    error = ((actual - truth).norm() / truth.norm().clamp_min(1e-12)).item()
    return error if math.isfinite(error) else math.inf
