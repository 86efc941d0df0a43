"""The accuracy gate: no speed is printed for something that computes something else.

A candidate runs at its full size. The gradient it is given is zero but for a few batch elements (and, for
softmax attention, a few queries), so that its output there and *all* its gradients have a float64 truth
that is cheap at any size. Every one may err at most twice as much as plain PyTorch in the same dtype.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from cbsa.bench.geometry import Geometry
from cbsa.bench.problems import Function, Problem

_FACTOR = 2.0
# Rounding that is granted whatever plain PyTorch's error, in units of eps; a gradient of a few numbers (step
# sizes) may have more, since its error is a matter of luck. In float32, fused kernels approximate exp.
_FLOOR_HALF, _FLOOR_SINGLE, _FLOOR_SHARED = 1.0, 20.0, 4.0


@dataclass(frozen=True)
class Check:
    """The relative error of an output or of one gradient, and what is allowed."""

    what: str
    error: float
    allowed: float

    @property
    def passed(self) -> bool:
        """Whether the error is within what is allowed; NaN is not."""
        return self.error <= self.allowed

    def as_dict(self) -> dict[str, Any]:
        """As JSON, where an infinite error is a string."""
        values = asdict(self)
        return values if math.isfinite(self.error) else {**values, "error": "not finite"}

    def __str__(self) -> str:
        return f"{self.what} errs by {self.error:.2g}, allowed {self.allowed:.2g}"


def refusal(checks: Sequence[Check]) -> str | None:
    """Why a speed is refused, naming all that failed."""
    return "; ".join(str(check) for check in checks if not check.passed) or None


class Gate:
    """Truth, yardstick and tolerance of one problem at one size; candidates are checked against them.

    Args:
        problem: what is computed.
        geometry: the size.
        inputs: one or more draws of the inputs; errors are root mean squares over them.
        seed: of the gradients that are propagated.
    """

    def __init__(
        self, problem: Problem, geometry: Geometry, inputs: Sequence[Sequence[Tensor]], seed: int = 0
    ) -> None:
        self.problem, self.geometry, self.draws = problem, geometry, inputs
        self.names = ("output", *(f"d{name}" for name in problem.inputs))
        self.picked = sorted({0, geometry.batch // 2, geometry.batch - 1})
        self.rows = problem.rows(geometry)
        generator = torch.Generator(inputs[0][0].device).manual_seed(seed)
        self.weights = [self._weight(draw[0], generator) for draw in inputs]
        self.truths = [
            self._of_picked(problem.truth(geometry), draw, weight, torch.float64)
            for draw, weight in zip(inputs, self.weights, strict=True)
        ]
        plain = [
            self._of_picked(problem.plain(geometry), draw, weight, None)
            for draw, weight in zip(inputs, self.weights, strict=True)
        ]
        self.allowed = self._tolerances(self._errors(plain))

    def check(self, function: Function, gradients: bool = True) -> list[Check]:
        """Run a candidate and compare its output and, if wanted, every gradient."""
        results: list[list[Tensor]] = []
        for draw, weight in zip(self.draws, self.weights, strict=True):
            leaves = [x.detach().requires_grad_(gradients) for x in draw]
            out = function(*leaves)
            grads = torch.autograd.grad(out, leaves, weight) if gradients else ()
            named = zip(self.problem.inputs, grads, strict=gradients)
            results.append([self._checked(out.detach()), *(self._gradient(n, g) for n, g in named)])
        errors = self._errors(results)
        return [Check(name, *pair) for name, *pair in zip(self.names, errors, self.allowed, strict=False)]

    def _weight(self, tokens: Tensor, generator: torch.Generator) -> Tensor:
        """Gradient of the output: random where it is checked, zero elsewhere; laid out like the tokens."""
        batch, heads, n, d = tokens.shape
        weight = torch.zeros(batch, n, heads, d, dtype=tokens.dtype, device=tokens.device).transpose(1, 2)
        for b in self.picked:
            size = (heads, n if self.rows is None else len(self.rows), d)
            values = torch.randn(size, dtype=torch.float32, device=tokens.device, generator=generator)
            weight[b][:, slice(None) if self.rows is None else self.rows] = values.to(tokens.dtype)
        return weight

    def _checked(self, out: Tensor) -> Tensor:
        """The part of an output that has a truth."""
        out = out[self.picked]
        return out if self.rows is None else out[:, :, self.rows]

    def _gradient(self, name: str, grad: Tensor) -> Tensor:
        return grad if name in self.problem.shared else grad[self.picked]

    def _of_picked(
        self, function: Function, draw: Sequence[Tensor], weight: Tensor, dtype: torch.dtype | None
    ) -> list[Tensor]:
        """Output and gradients for the picked batch elements, one after another, by a plain function."""
        shared = [name in self.problem.shared for name in self.problem.inputs]
        options = {} if self.rows is None else {"rows": self.rows}
        outputs: list[Tensor] = []
        gradients: list[list[Tensor]] = [[] for _ in draw]
        for b in self.picked:
            parts = [x if s else x[b : b + 1] for x, s in zip(draw, shared, strict=True)]
            leaves = [x.detach().to(dtype or x.dtype).requires_grad_() for x in parts]
            out = function(*leaves, **options)
            given = weight[b : b + 1] if self.rows is None else weight[b : b + 1, :, self.rows]
            for place, grad in enumerate(torch.autograd.grad(out, leaves, given.to(out.dtype))):
                gradients[place].append(grad)
            outputs.append(out.detach())
        grads = [
            torch.stack(g).double().sum(0) if s else torch.cat(g)
            for g, s in zip(gradients, shared, strict=True)
        ]
        return [torch.cat(outputs), *grads]

    def _errors(self, results: Sequence[Sequence[Tensor]]) -> list[float]:
        """Relative errors over all draws."""
        errors = []
        for place in range(len(results[0])):
            wrong, size = 0.0, 0.0
            for result, truth in zip(results, self.truths, strict=True):
                if result[place].shape != truth[place].shape:
                    return [math.inf] * len(results[0])
                difference = result[place].double() - truth[place]
                wrong += difference.square().sum().item()
                size += truth[place].square().sum().item()
            error = math.sqrt(wrong / size) if size > 0 else math.sqrt(wrong)
            errors.append(error if math.isfinite(error) else math.inf)
        return errors

    def _tolerances(self, plain: Sequence[float]) -> list[float]:
        eps = torch.finfo(self.draws[0][0].dtype).eps
        floor = eps * (_FLOOR_HALF if eps > 1e-4 else _FLOOR_SINGLE)
        few = {f"d{name}" for name in self.problem.shared}
        return [
            max(
                _FACTOR * error if math.isfinite(error) else 0.0,
                floor * (_FLOOR_SHARED if name in few else 1),
            )
            for name, error in zip(self.names, plain, strict=True)
        ]
