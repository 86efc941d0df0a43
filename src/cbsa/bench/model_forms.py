"""A model in the form in which it is timed: for inference, or for a training step."""

import copy
import math
import re
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cbsa.bench.compiling import compile_model
from cbsa.bench.gate import Check

INFERENCE, TRAINING = "inference", "training"
MODES = (INFERENCE, TRAINING)
PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
COMPILATIONS = ("blocks", "model", "none")
# Logits and gradients may err three times as much as the plain model's in the same precision, or by so much
# (float32: its convolutions run in TF32 on a GPU).
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
    plain_impl: ClassVar[str] = "reference"  # the operators of the model that the gate compares with

    def create(self) -> nn.Module:
        """The model for images of its size, in float32, with random weights."""
        import timm

        import cbsa.models  # noqa: F401  # registers ours

        options: dict[str, Any] = {"img_size": self.img_size, "num_classes": self.num_classes}
        model: nn.Module = timm.create_model(self.name, pretrained=False, **options)
        return model

    def draw(self, device: torch.device, generator: torch.Generator) -> Tensor:
        """Random input of the model, a batch in float32."""
        size = (self.batch, self.img_size, self.img_size, 3)
        return torch.randn(size, device=device, generator=generator).permute(0, 3, 1, 2)  # channels last

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
Gradients = Mapping[str, Tensor | None]  # by name of the parameter


def prepare(form: Form, device: torch.device) -> Prepared:
    """The work to time, a call that returns the logits, and what the gate says of it.

    The gate compares logits and gradients (of all parameters, and of the input if it needs one) with those of
    the same model in float32, not compiled and without kernels of ours; they may err at most three times as
    much as those of that plain model in the precision that is timed.
    """
    torch.manual_seed(0)
    with torch.device(device):
        model = form.create()
    model.to(device)
    generator = torch.Generator(device).manual_seed(0)
    if form.mode == INFERENCE:
        return _inference(form, model, form.draw(device, generator))
    inputs = form.draw(device, generator)
    targets = torch.randint(form.num_classes, form.targets(), device=device, generator=generator)
    return _training(form, model, inputs, targets)


def _inference(form: Form, model: nn.Module, inputs: Tensor) -> Prepared:
    dtype, arguments = PRECISIONS[form.precision], form.arguments()
    model.eval()
    inputs = inputs.detach()
    picked = slice(_MOST_CHECKED)  # a view: large images are not copied
    with torch.no_grad(), plain_operators(model, form.plain_impl):
        plain = truth = model(inputs[picked], *arguments)
        if dtype != torch.float32:
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

    def step(precision: torch.dtype = dtype) -> Tensor:
        model.zero_grad(set_to_none=True)
        inputs.grad = None
        # Without autocast's cache: a CUDA graph must hold the casts of the weights that it reads.
        autocast = torch.autocast(device.type, precision, precision != torch.float32, cache_enabled=False)
        with autocast, form.attending(device) if precision == dtype else nullcontext():
            logits: Tensor = model(inputs, *arguments)
        F.cross_entropy(logits.float(), targets).backward()  # type: ignore[no-untyped-call]
        return logits.detach()

    def step_and_gradients(precision: torch.dtype = dtype) -> tuple[Tensor, Gradients]:
        leaves = {**dict(model.named_parameters()), "input": inputs}
        logits = step(precision)
        return logits, {name: leaf.grad for name, leaf in leaves.items() if leaf.requires_grad}

    with plain_operators(model, form.plain_impl):
        truth, plain = step_and_gradients(torch.float32), step_and_gradients()
    if form.compilation != "none":
        compile_model(model, whole=form.compilation == "model")
    logits, gradients = step_and_gradients()
    checks = [
        check_logits(logits, truth[0], plain[0], dtype),
        check_gradients(gradients, truth[1], plain[1], dtype),
    ]
    return step, checks


@contextmanager
def plain_operators(model: nn.Module, impl: str) -> Iterator[None]:
    """Layers that choose an implementation by themselves take this one in here."""
    changed = [module for module in model.modules() if getattr(module, "impl", None) == "auto"]
    for module in changed:
        module.impl = impl  # type: ignore[assignment]
    try:
        yield
    finally:
        for module in changed:
            module.impl = "auto"  # type: ignore[assignment]


def check_logits(logits: Tensor, truth: Tensor, plain: Tensor, dtype: torch.dtype) -> Check:
    """Compare logits with the float32 model's."""
    return Check("output", _relative_error(logits, truth), _allowed(_relative_error(plain, truth), dtype))


def check_gradients(actual: Gradients, truth: Gradients, plain: Gradients, dtype: torch.dtype) -> Check:
    """Compare gradients with the float32 model's: the check of those that are worst for what is allowed.

    Those of one kind, the same parameter in all blocks, are taken together: the error of a few numbers is a
    matter of luck. With a single image the plain model's own error of a kind is one too, so a kind may err as
    much as half of the kinds do in the plain model. One that is missing errs infinitely.
    """
    missing = [name for name in truth if actual.get(name) is None or truth[name] is None]
    if missing:
        return Check(f"gradient of {missing[0]}", math.inf, 0.0)
    kinds = {kind: [name for name in truth if _kind(name) == kind] for kind in map(_kind, truth)}
    errors = {
        kind: [_relative_error(_joined(grads, names), _joined(truth, names)) for grads in (actual, plain)]
        for kind, names in kinds.items()
    }
    usual = statistics.median(theirs for _, theirs in errors.values()) if errors else 0.0
    worst = Check("gradients", 0.0, 1.0)
    for kind, (mine, theirs) in errors.items():
        found = Check(f"gradient of {kind}", mine, _allowed(max(theirs, usual), dtype))
        if not found.passed or found.error * worst.allowed > worst.error * found.allowed:
            worst = found
        if not found.passed:
            break
    return worst


def _kind(name: str) -> str:
    """Name of a parameter without the numbers of its layers: ``blocks.*.attn.step_rep``."""
    return re.sub(r"(?<=\.)\d+(?=\.)", "*", name)


def _joined(gradients: Gradients, names: list[str]) -> Tensor:
    found = (gradients[name] for name in names)
    return torch.cat([grad.flatten() for grad in found if grad is not None])


def _allowed(plain_error: float, dtype: torch.dtype) -> float:
    floor = _FLOOR_SINGLE if dtype == torch.float32 else _FLOOR * torch.finfo(dtype).eps
    allowed = max(_FACTOR * plain_error, floor)
    return allowed if math.isfinite(allowed) else 0.0


def _relative_error(actual: Tensor, truth: Tensor) -> float:
    actual, truth = actual.double(), truth.double()
    error = ((actual - truth).norm() / truth.norm().clamp_min(1e-12)).item()
    return error if math.isfinite(error) else math.inf
