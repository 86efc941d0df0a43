"""What probing costs: coding rates of some images against the forward pass alone.

    python benchmarks/probe_overhead.py --device cuda --out benchmarks/results/probe_overhead_h200.json

Both run the same batches of random images through the same model, without gradients and not compiled; times
are medians of rounds taken in turn.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import timm
import torch
from rich.console import Console
from rich.table import Table

import cbsa.models  # noqa: F401  # registers the models
from cbsa._environment import environment
from cbsa.analysis import coding_rates


def seconds(function: Callable[[], object], device: torch.device) -> float:
    """Time of a call."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    started = time.perf_counter()
    function()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="cbt_small_patch16_224")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=125)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device, dtype = torch.device(options.device), getattr(torch, options.dtype)
    model = timm.create_model(options.model).eval().to(device, dtype)
    size = (options.batch, 3, *model.img_size)
    batches = [torch.randn(size, device=device, dtype=dtype) for _ in range(options.images // options.batch)]

    def forward() -> None:
        with torch.no_grad():
            for batch in batches:
                model(batch)

    def probe() -> None:
        coding_rates(model, batches)

    for function in (forward, probe):
        function()
    times = [(seconds(forward, device), seconds(probe, device)) for _ in range(options.rounds)]
    plain, probed = (statistics.median(column) for column in zip(*times, strict=True))
    table = Table("model", "dtype", "images", "forward, s", "with coding rates, s", "overhead")
    count = options.batch * len(batches)
    table.add_row(
        options.model, options.dtype, str(count), f"{plain:.3f}", f"{probed:.3f}", f"{probed / plain - 1:.0%}"
    )
    Console().print(table)
    if options.out is not None:
        result = {
            "model": options.model,
            "dtype": options.dtype,
            "images": count,
            "batch": options.batch,
            "forward_s": plain,
            "probed_s": probed,
            "overhead": probed / plain - 1,
            "environment": environment() | {"device": _name(device)},
        }
        options.out.write_text(json.dumps(result, indent=2) + "\n")


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


if __name__ == "__main__":
    main()
