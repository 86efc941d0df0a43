"""What the compiler makes of the Triton kernels: registers, spills and shared memory, without a GPU.

The operators run on the CPU with their launch code believing in a GPU: argument types, block sizes, warps and
stages are those that it would choose there. Triton compiles for that GPU, with its own assembler, what
it is asked to launch, and launches nothing; results are whatever lay in memory. Triton must not be in its
interpreter (``TRITON_INTERPRET``), which is chosen when kernels are imported.
"""

import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from cbsa.ops.kernels import gpu
from cbsa.ops.kernels.gpu import GPU

# Multiprocessors, shared memory and compute capability as the vendor's documents have them.
GPUS = {
    "H200": GPU(132, 227 << 10, (9, 0)),
    "A100": GPU(108, 163 << 10, (8, 0)),
    "L4": GPU(58, 99 << 10, (8, 9)),
}
_REPORTED = re.compile(r"REG:(\d+) STACK:(\d+)")
_LABEL = re.compile(r"\s*\.(L_x_\d+):")
_INSTRUCTION = re.compile(r"\s*/\*[0-9a-f]+\*/\s+(.*)")
_BRANCH = re.compile(r"BRA.*`\(\.(L_x_\d+)\)")


class Resources(NamedTuple):
    """What a compiled kernel takes.

    Attributes:
        kernel: its name.
        warps: of a program.
        stages: of its pipelines.
        registers: of a thread.
        spilled: bytes of memory in which a thread keeps what its registers do not hold.
        in_loops: reads and writes there in loops that have no loop within: what costs time.
        shared: bytes of shared memory of a program.
        error: of the compiler, where it failed.
    """

    kernel: str
    warps: int = 0
    stages: int = 0
    registers: int = 0
    spilled: int = 0
    in_loops: int = 0
    shared: int = 0
    error: str = ""

    def fits(self, chip: GPU) -> bool:
        """Whether the kernel can be launched."""
        return not self.error and self.shared <= chip.shared_memory


class _Driver:
    """As much of a driver as compiling takes; a kernel keeps what was compiled for each device."""

    def __init__(self, chip: GPU) -> None:
        self._arch = 10 * chip.capability[0] + chip.capability[1]

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._arch, 32)

    def get_current_device(self) -> int:
        return self._arch

    def get_current_stream(self, device: int) -> int:
        return 0


@contextmanager
def compiled_for(chip: GPU) -> Iterator[list[Resources]]:
    """Within, kernels are compiled for the GPU instead of launched; gives a list of them, each once."""
    if knobs.runtime.interpret:
        raise RuntimeError("kernels are in Triton's interpreter; start Python without TRITON_INTERPRET=1")
    found: list[Resources] = []
    seen: set[str] = set()
    launch = JITFunction.run

    def compile_only(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        try:
            compiled = launch(kernel, *args, grid=grid, warmup=True, **kwargs)
        except Exception as error:  # the compiler's; there is no telling of which kind
            found.append(Resources(kernel.fn.__name__, error=f"{type(error).__name__}: {error}"))
            return
        if compiled.hash not in seen:
            seen.add(compiled.hash)
            found.append(_resources(kernel.fn.__name__, compiled))

    with (
        mock.patch.object(driver, "_active", _Driver(chip)),
        mock.patch.object(JITFunction, "run", compile_only),
        mock.patch.object(gpu, "find_gpu", return_value=chip),
        mock.patch.object(gpu, "INTERPRETED", True),  # tokens on the CPU are welcome
    ):
        yield found


def _resources(name: str, compiled: Any) -> Resources:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        told = _told(knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name)
        reported = _REPORTED.search(told)
        if reported is None:
            raise RuntimeError(f"cuobjdump of Triton {triton.__version__} tells no registers, but {told!r}")
        registers, spilled = map(int, reported.groups())
        code = _told(knobs.nvidia.nvdisasm.path, "-c", file.name) if spilled else ""
    made = compiled.metadata
    in_loops = spills_in_loops(code)
    return Resources(name, made.num_warps, made.num_stages, registers, spilled, in_loops, made.shared)


def _told(*command: str) -> str:
    output: str = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return output


def spills_in_loops(code: str) -> int:
    """Instructions that read or write a thread's local memory in the innermost loops of disassembled code."""
    places: dict[str, int] = {}  # of labels, among the instructions
    instructions: list[str] = []
    loops: list[tuple[int, int]] = []
    for line in code.splitlines():
        if label := _LABEL.match(line):
            places[label[1]] = len(instructions)
        elif instruction := _INSTRUCTION.match(line):
            instructions.append(instruction[1])
            branch = _BRANCH.search(instruction[1])
            if branch and branch[1] in places:  # backwards
                loops.append((places[branch[1]], len(instructions)))
    innermost = [
        (first, last)
        for first, last in loops
        if not any(
            first <= start and stop <= last and (start, stop) != (first, last) for start, stop in loops
        )
    ]
    bodies = (instructions[first:last] for first, last in innermost)
    return sum("LDL" in instruction or "STL" in instruction for body in bodies for instruction in body)
