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


@lru_cache
def find_gpu(device: torch.device) -> GPU:
    """The GPU that kernels are launched on."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return STAND_IN
    found = torch.cuda.get_device_properties(device)
    return GPU(found.multi_processor_count, found.shared_memory_per_block_optin, (found.major, found.minor))


# Compiled code asks these two, and takes the answers for constants.
@torch.compiler.assume_constant_result
def processors_of(device: torch.device) -> int:
    """Multiprocessors of the GPU."""
    return find_gpu(device).processors


@torch.compiler.assume_constant_result
def shared_memory_of(device: torch.device) -> int:
    """Bytes of shared memory that a program may have there."""
    return find_gpu(device).shared_memory
