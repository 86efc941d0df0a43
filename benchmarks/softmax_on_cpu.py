"""Softmax attention on a CPU: PyTorch's fused kernel beside plain products, with and without a backward.

    python benchmarks/softmax_on_cpu.py --out benchmarks/results/cpu/softmax_on_cpu.json

It is why MSSA and MHSA train by plain products in 16 bits on a CPU (cbsa.layers.softmax). One thread.
"""

import argparse
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor
from torch.nn import functional as F

from cbsa._environment import environment
from cbsa.bench.tables import Grid
from cbsa.bench.timing import measure
from cbsa.experiments.report import save_results

SHAPES = ((128, 4, 65, 16), (32, 3, 65, 64), (8, 3, 257, 64), (2, 6, 1025, 64))  # (B, H, N, p)
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same in three operations; it holds the matrix of weights."""
    weights = ((q * q.shape[-1] ** -0.5) @ k.mT).softmax(-1, dtype=torch.float32)
    return weights.to(v.dtype) @ v


def time_of(form: str, shape: tuple[int, ...], dtype: torch.dtype, train: bool) -> float:
    """Milliseconds of a call, with its backward or without."""
    attend = {"fused": F.scaled_dot_product_attention, "plain": plain}[form]
    w = torch.randn(shape, dtype=dtype, requires_grad=train)
    grad = torch.randn(shape, dtype=dtype)

    def call() -> object:
        out = attend(w, w, w)
        return torch.autograd.grad(out, w, grad) if train else out

    return measure([call], torch.device("cpu"), seconds=0.5).median_ms


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows, cells = [], []
    for dtype in DTYPES:
        for shape in SHAPES:
            for train in (True, False):
                times = {form: time_of(form, shape, dtype, train) for form in ("fused", "plain")}
                mode, name = ("training" if train else "inference"), str(dtype).removeprefix("torch.")
                rows.append({"dtype": name, "shape": shape, "mode": mode, **times})
                ratio = times["fused"] / times["plain"]
                cells.append(
                    (
                        name,
                        "×".join(map(str, shape)),
                        mode,
                        *map("{:.2f}".format, times.values()),
                        f"{ratio:.2f}",
                    )
                )
    columns = ("dtype", "B×H×N×p", "mode", "fused, ms", "plain, ms", "fused / plain")
    Console().print(Grid("Softmax attention on one CPU thread", columns, cells).rich())
    if options.out:
        save_results(options.out, {"environment": environment(), "rows": rows})


if __name__ == "__main__":
    main()
