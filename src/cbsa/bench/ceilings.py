"""What the machine can do at most: bytes copied and matrix products per second."""

from dataclasses import asdict, dataclass
from typing import Any

import torch

from cbsa.bench.timing import measure

# Sizes large enough for the rate to have levelled off: bytes of the buffer copied, side of the matrices.
_COPY_BYTES = {"cuda": 1 << 30, "cpu": 64 << 20}
_MATRIX_SIDE = {"cuda": 8192, "cpu": 1024}


@dataclass(frozen=True)
class Ceilings:
    """The two ceilings of a machine, measured."""

    device: str
    copy_tb_s: float  # bytes read and bytes written, in TB/s
    matmul_tflops: float
    matmul_dtype: str

    def as_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    def milliseconds_to_move(self, count: float) -> float:
        """The least time in which so many bytes can be read or written."""
        return count / (self.copy_tb_s * 1e12) * 1e3


def measure_ceilings(device: torch.device, seconds: float = 0.2) -> Ceilings:
    """Measure both: a copy of a large buffer, and a product of random matrices (bf16; float32 on a CPU)."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    return Ceilings(
        device_name(device),
        _copy_rate(device, seconds) / 1e12,
        _product_rate(device, dtype, seconds) / 1e12,
        str(dtype).removeprefix("torch."),
    )


def _copy_rate(device: torch.device, seconds: float) -> float:
    """Bytes read and written per second, by a copy or by a kernel that does as good as nothing.

    In a CUDA graph a copy is the business of the copy engines, which are slower than the multiprocessors.
    """
    source = torch.ones(_COPY_BYTES[device.type] // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    ways = (lambda: target.copy_(source), lambda: torch.mul(source, 2.0, out=target))
    fastest = min(measure([way], device, seconds=seconds / 2).median_ms for way in ways)
    return 2 * source.numel() * source.element_size() / (1e-3 * fastest)


def _product_rate(device: torch.device, dtype: torch.dtype, seconds: float) -> float:
    """Floating-point operations per second."""
    side = _MATRIX_SIDE[device.type]
    a, b = (torch.randn(side, side, dtype=dtype, device=device) for _ in range(2))
    timing = measure([lambda: a @ b], device, seconds=seconds)
    return 2 * side**3 / (1e-3 * timing.median_ms)


def device_name(device: torch.device) -> str:
    """The GPU's name, or the CPU with the number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"CPU ({threads} thread{'s' if threads != 1 else ''})"
