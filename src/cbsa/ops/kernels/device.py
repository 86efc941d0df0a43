"""What launches need to know of a GPU."""

import os
from functools import lru_cache
from typing import NamedTuple

import torch

# Triton's interpreter runs the kernels on a CPU; it is chosen when they are imported.
INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"


class GPU(NamedTuple):
    """Multiprocessors; bytes of shared memory that a program may have; and the compute capability."""

    processors: int
    shared_memory: int
    capability: tuple[int, int]


STAND_IN = GPU(processors=4, shared_memory=227 << 10, capability=(8, 0))  # for the interpreter's CPU


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def gpu_of(device: torch.device) -> GPU:
    """The GPU that kernels are launched on."""
    return find_gpu(device)


@lru_cache
def find_gpu(device: torch.device) -> GPU:
    """Ask PyTorch, once."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return STAND_IN
    found = torch.cuda.get_device_properties(device)
    return GPU(found.multi_processor_count, found.shared_memory_per_block_optin, (found.major, found.minor))
