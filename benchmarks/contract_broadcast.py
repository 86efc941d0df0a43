"""Time the implementations of `contract_broadcast` beside full softmax attention, on the CPU or a GPU.

    python benchmarks/contract_broadcast.py --device cuda --out benchmarks/results/NAME.json

Timings mean something only as ratios within one run. A result is refused if the outputs disagree.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from cbsa._environment import environment
from cbsa.ops import contract_broadcast

# (batch, heads, tokens, representatives, channels of a head)
GEOMETRIES = {
    "cpu": [
        (8, 3, 65, 64, 64),
        (8, 6, 197, 64, 64),
        (32, 6, 197, 64, 64),
        (4, 6, 1025, 64, 64),
        (1, 6, 4097, 64, 64),
        (1, 6, 16385, 64, 64),
        (1, 6, 65537, 64, 64),
    ],
    "cuda": [
        (256, 6, 197, 64, 64),
        (64, 6, 1025, 64, 64),
        (16, 6, 4097, 64, 64),
        (4, 6, 16385, 64, 64),
        (1, 6, 65537, 64, 64),
    ],
}
QUADRATIC_LIMIT = {"cpu": 5_000, "cuda": 70_000}  # tokens beyond which full attention is left out


def milliseconds(function: Callable[[], object], device: str, seconds: float) -> float:
    """Median time of a call, after a warm-up."""
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    function()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or (time.perf_counter() < end and len(times) < 100):
        synchronize()
        start = time.perf_counter()
        function()
        synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def candidates(w: Tensor, reps: Tensor, steps: Tensor, compiled: bool) -> dict[str, Callable[[], Tensor]]:
    """What is timed, by name."""
    calls: dict[str, Callable[[], Tensor]] = {
        impl: partial(contract_broadcast, w, reps, *steps, impl=impl) for impl in ("reference", "sdpa")
    }
    if compiled:
        compiled_operator = torch.compile(contract_broadcast)
        calls["reference, compiled"] = partial(compiled_operator, w, reps, *steps, impl="reference")
    if w.shape[-2] <= QUADRATIC_LIMIT[w.device.type]:
        calls["full attention"] = partial(scaled_dot_product_attention, w, w, w)
    return calls


def measure(
    geometry: tuple[int, ...], dtype: torch.dtype, device: str, seconds: float, compiled: bool
) -> list[dict[str, Any]]:
    """Times of all candidates at one size."""
    batch, heads, n, m, d = geometry
    torch.manual_seed(0)
    w = torch.randn(batch, n, heads, d, dtype=dtype, device=device).transpose(1, 2).requires_grad_()
    reps = torch.randn(batch, heads, m, d, dtype=dtype, device=device, requires_grad=True)
    steps = torch.randn(2, heads, device=device, requires_grad=True)
    calls = candidates(w, reps, steps, compiled)
    wide = [x.detach().double() for x in (w, reps, *steps)]
    truth = (
        contract_broadcast(*wide, impl="reference") if n <= 20_000 else calls["reference"]().detach().double()
    )
    rows = []
    for name, call in calls.items():
        inputs = [w] if name == "full attention" else [w, reps, steps]
        if name != "full attention":
            error = ((call().double() - truth).norm() / truth.norm()).item()
            if not error < 20 * torch.finfo(dtype).eps:
                raise SystemExit(f"{name} at {geometry} in {dtype} errs by {error:.2g}: no time is reported")

        def train(call: Callable[[], Tensor] = call, inputs: list[Tensor] = inputs) -> None:
            out = call()
            torch.autograd.grad(out, inputs, torch.ones_like(out))

        with torch.no_grad():
            forward = milliseconds(call, device, seconds)
        both = milliseconds(train, device, seconds)
        shape = dict(zip(("batch", "heads", "tokens", "representatives", "channels"), geometry, strict=True))
        rows.append({**shape, "dtype": str(dtype), "what": name, "forward_ms": forward, "both_ms": both})
    return rows


def main() -> None:
    """Measure, show and save."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--seconds", type=float, default=1.0, help="time spent on each number")
    parser.add_argument("--compile", action="store_true", help="also time the compiled reference")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    arguments = parser.parse_args()
    rows = [
        row
        for dtype in arguments.dtypes
        for geometry in GEOMETRIES[arguments.device]
        for row in measure(
            geometry, getattr(torch, dtype), arguments.device, arguments.seconds, arguments.compile
        )
    ]
    table = Table("B×H×N×m×d", "dtype", "what", "forward ms", "with backward")
    for row in rows:
        size = "×".join(str(row[k]) for k in ("batch", "heads", "tokens", "representatives", "channels"))
        name = str(row["dtype"]).removeprefix("torch.")
        table.add_row(size, name, row["what"], f"{row['forward_ms']:.2f}", f"{row['both_ms']:.2f}")
    Console().print(table)
    command = "python benchmarks/contract_broadcast.py --device " + arguments.device
    command += f" --dtypes {' '.join(arguments.dtypes)} --seconds {arguments.seconds:g}"
    command += (" --compile" if arguments.compile else "") + f" --out {arguments.out}"
    origin = {"command": command, "environment": environment() | {"threads": str(torch.get_num_threads())}}
    if arguments.device == "cpu":
        origin["environment"]["device"] = "CPU"
    arguments.out.write_text(json.dumps(origin | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
