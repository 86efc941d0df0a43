"""Programmatic dependent launch: a kernel gets ready while the one before it runs, from Hopper on."""

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from cbsa.ops.kernels import gpu


def launched_ahead(device: torch.device) -> dict[str, bool]:
    """Options that launch a kernel ahead of the end of the one before, where the device can."""
    able = gpu.find_gpu(device).capability >= (9, 0)
    return {"PDL": True, "launch_pdl": True} if able else {"PDL": False}


@triton.jit
def announce(PDL: tl.constexpr):
    """Let the next kernel get ready while this one runs (programmatic dependent launch)."""
    if PDL:
        gdc_launch_dependents()


@triton.jit
def follow(PDL: tl.constexpr):
    """Wait for the kernel before to end, ahead of which this one was launched, and let the next get ready."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
