"""Whether this installation can run Triton kernels."""

import os
from functools import lru_cache

import torch
from torch import Tensor

from cbsa._tracing import is_exporting


def kernels_allowed() -> bool:
    """Whether the environment allows them; ``impl="triton"`` asks for them by name and does not care."""
    value = os.environ.get("CBSA_KERNELS", "1")
    if value not in ("0", "1"):
        raise ValueError(f"CBSA_KERNELS={value!r} in the environment: 0 forbids kernels, 1 allows them")
    return value == "1"


_KERNELS_ALLOWED = kernels_allowed()


def kernels_run_on(device: torch.device) -> bool:
    """Whether the Triton kernels are allowed, installed, and made for this GPU (Ampere or later)."""
    return _kernels_run_on(device)


# torch.compiler.assume_constant_result, without the import of the whole compiler that it begins with.
kernels_run_on._dynamo_marked_constant = True  # type: ignore[attr-defined]


@lru_cache
def _kernels_run_on(device: torch.device) -> bool:
    if device.type != "cuda" or not _KERNELS_ALLOWED or torch.version.hip is not None:
        return False
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return torch.cuda.is_available() and torch.cuda.get_device_capability(device)[0] >= 8


def triton_is_missing(error: ImportError) -> ValueError:
    """What to raise where the kernels are asked for by name, and Triton cannot be imported."""
    return ValueError(f"impl='triton' needs Triton, which is not installed ({error})")


def kernels_serve_compiled(x: Tensor) -> bool:
    """Whether kernels take the place of what a compiler would do with x: while compiling for a GPU."""
    return (
        torch.compiler.is_compiling()
        and not is_exporting()
        and x.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and kernels_run_on(x.device)
    )
