"""How results are compared: by relative error to a float64 truth, beside plain PyTorch's in that dtype."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

# The same tests run on the GPU of a machine that has one.
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
# Triton's kernels run on the GPU, or in its interpreter where there is none: never both in one process.
KERNEL_DEVICES = DEVICES[-1:]
# Both with every dtype, but bfloat16, which Triton's interpreter multiplies wrongly, on the GPU alone.
KERNEL_CASES = [
    pytest.param(device, dtype, id=f"{device}-{dtype}")
    for device in KERNEL_DEVICES
    for dtype in (torch.float32, torch.float16, torch.bfloat16)
    if device == "cuda" or dtype != torch.bfloat16
]
# Problems over which their errors are averaged; the interpreter takes seconds for each.
KERNEL_DRAWS = 4 if KERNEL_DEVICES == ["cuda"] else 2
HALF_DTYPES = [torch.bfloat16, torch.float16]


def relative_error(actual: Tensor, truth: Tensor) -> float:
    """‖actual − truth‖ / ‖truth‖ in float64; NaN and Inf count as infinitely wrong."""
    assert actual.shape == truth.shape, f"shape {tuple(actual.shape)} instead of {tuple(truth.shape)}"
    actual, truth = actual.detach().double(), truth.detach().double()
    if not actual.isfinite().all():
        return float("inf")
    norm = truth.norm().item()
    error = (actual - truth).norm().item()
    return error / norm if norm > 1e-12 else error


def assert_close(actual: Tensor, truth: Tensor, tolerance: float, what: str = "result") -> None:
    error = relative_error(actual, truth)
    assert error <= tolerance, f"{what}: relative error {error:.3g} > {tolerance:.3g}"


def value_and_grads(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], weight: Tensor
) -> tuple[Tensor, ...]:
    """``function(*inputs)`` and the gradients of <weight, function(*inputs)> with respect to all inputs."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    out = function(*leaves)
    return out.detach(), *torch.autograd.grad(out, leaves, weight.to(out.dtype))


def assert_as_good_as(
    function: Callable[..., Tensor],
    plain: Callable[..., Tensor],
    truth: Callable[..., Tensor],
    draw: Callable[[], Sequence[Tensor]],
    dtype: torch.dtype,
    names: Sequence[str],
    floor_ulps: float = 0.5,
    draws: int = 8,
) -> None:
    """In ``dtype``, outputs and every gradient of ``function`` err at most twice as much as ``plain``'s.

    Inputs are rounded to ``dtype`` first; ``truth`` runs on them in float64. Errors are root mean squares
    over several draws, since one rounding error beside another is a matter of luck; one rounding of the
    result itself (``floor_ulps``) is granted to both.
    """
    labels = ["output", *names]
    ours, theirs, size = (torch.zeros(len(labels), dtype=torch.float64) for _ in range(3))
    for _ in range(draws):
        rounded = [x.to(dtype) for x in draw()]
        precise = [x.double() for x in rounded]
        weight = torch.randn_like(truth(*precise)).to(dtype)
        exact = value_and_grads(truth, precise, weight.double())
        mine = value_and_grads(function, rounded, weight)
        assert mine[0].dtype == dtype
        for total, results in ((ours, mine), (theirs, value_and_grads(plain, rounded, weight)), (size, None)):
            for i, t in enumerate(exact):
                total[i] += (t if results is None else results[i].double() - t).square().sum().item()
    floor = torch.finfo(dtype).eps * floor_ulps
    for name, a, b, s in zip(labels, ours.sqrt(), theirs.sqrt(), size.sqrt(), strict=True):
        error, allowed = (a / s).item(), 2 * max((b / s).item(), floor)
        assert error <= allowed, f"{name} in {dtype}: relative error {error:.3g} > {allowed:.3g}"


def assert_written_and_repeatable(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], weight: Tensor
) -> None:
    """Output and gradients are finite where memory that nothing wrote is NaN, and the same bits again."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)  # fills new memory
    try:
        first, second = (value_and_grads(function, inputs, weight) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(before)
    assert all(result.isfinite().all() for result in first)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
