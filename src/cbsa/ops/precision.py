"""Which precision a computation runs in."""

import contextlib
from collections.abc import Iterator

import torch


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Dtype for sums over values of ``dtype``: float32, or float64 for float64."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def solve_dtype(device: torch.device) -> torch.dtype:
    """Dtype for factorising Gram matrices: float64 wherever the device has it.

    Forming a Gram matrix squares the condition number: for I + c·XᵀX it passes 1e7, the limit of
    float32, on ordinary token matrices.
    """
    return torch.float32 if device.type == "mps" else torch.float64


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """Dtype that autocast asks for on the device, None outside autocast."""
    if device.type != "meta" and torch.is_autocast_enabled(device.type):
        return torch.get_autocast_dtype(device.type)
    return None


def no_autocast(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Context in which autocast leaves dtypes alone (the meta device knows no autocast)."""
    if device.type == "meta":
        return contextlib.nullcontext()
    return torch.autocast(device.type, enabled=False)


@contextlib.contextmanager
def single_products_in_tf32() -> Iterator[None]:
    """Context in which a GPU takes float32 products on its tensor cores, rounded to 11 bits."""
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision  # readable whichever of PyTorch's two switches was used
    matmul.allow_tf32 = True  # sets both of them
    try:
        yield
    finally:
        matmul.allow_tf32 = before == "tf32"
        matmul.fp32_precision = before
