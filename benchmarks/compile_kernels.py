"""Every Triton kernel of the package, compiled as it would be launched, for GPUs that need not be there.

    python benchmarks/compile_kernels.py --out benchmarks/results/compiled

A row is a kernel as an operator's launch code chooses it for some size: registers of a thread, bytes that
it spills, and bytes of shared memory of a program, which must not be more than the GPU has. ``--quick``
takes each kernel in few forms: the tests run that.
"""

import argparse
import csv
import itertools
import json
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from cbsa.bench.kernel_resources import GPUS, Resources, compiled_for
from cbsa.bench.origin import command_line, describe_environment
from cbsa.ops import (
    agent_attention,
    contract_broadcast,
    contract_broadcast_kv,
    fused_batch_norm,
    fused_extended,
    fused_norm,
    fused_pooled,
    fused_pooling,
    fused_rates,
    fused_stem,
)

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
LENGTHS = {197: 256, 1025: 64, 4097: 16, 16385: 4, 65537: 1}  # tokens: images; S width has 6 heads
HEADS = 6


class Case(NamedTuple):
    """An operator at some size: ``sizes`` are in the order of the operator's own function below."""

    operator: str
    dtype: str
    sizes: tuple[int, ...]


def tokens(n: int, d: int, dtype: torch.dtype) -> Tensor:
    """Tokens (B, H, N, d) as a projection leaves them; nothing is ever written there."""
    return torch.empty(LENGTHS[n], n, HEADS, d, dtype=dtype).transpose(1, 2).requires_grad_()


def representatives(n: int, d: int, m: int, dtype: torch.dtype, learn: bool = True) -> Tensor:
    """Representatives (B, H, m, d)."""
    return torch.empty(LENGTHS[n], HEADS, m, d, dtype=dtype).requires_grad_(learn)


def steps() -> list[Tensor]:
    """Both steps of each head."""
    return [torch.zeros(HEADS, requires_grad=True) for _ in range(2)]


def with_backward(out: Tensor) -> None:
    """Run the backward too."""
    out.backward(torch.empty_like(out))


def cbsa(
    dtype: torch.dtype, n: int, d: int, m: int, learn: bool = True, masked: bool = False, **options: Any
) -> None:
    """The operator; without ``learn``, with the stop-gradient."""
    mask = torch.ones(LENGTHS[n], n, dtype=torch.bool) if masked else None
    w, reps = tokens(n, d, dtype), representatives(n, d, m, dtype, learn)
    with torch.no_grad():
        contract_broadcast(w, reps, *steps(), mask=mask, impl="triton", **options)
    with_backward(contract_broadcast(w, reps, *steps(), mask=mask, impl="triton", **options))


def star(dtype: torch.dtype, n: int, d: int, m: int, masked: bool = False) -> None:
    """CBSA*, with keys and values of their own."""
    k, v = (tokens(n, d, dtype) for _ in range(2))
    mask = torch.ones(LENGTHS[n], n, dtype=torch.bool) if masked else None
    with_backward(contract_broadcast_kv(k, v, representatives(n, d, m, dtype), mask=mask, impl="triton"))


def agent(dtype: torch.dtype, n: int, d: int, m: int, masked: bool = False) -> None:
    """CBSA∨, Agent attention."""
    q, k, v = (tokens(n, d, dtype) for _ in range(3))
    mask = torch.ones(LENGTHS[n], n, dtype=torch.bool) if masked else None
    with_backward(agent_attention(q, k, v, representatives(n, d, m, dtype), mask=mask, impl="triton"))


def options(dtype: torch.dtype, n: int, d: int, m: int) -> None:
    """Extraction and the three broadcasts of the options one by one."""
    scale = d**-0.5
    w, reps = tokens(n, d, dtype), representatives(n, d, m, dtype)
    fused_extended.refuse(w, scale, "softmax", "transpose")
    delta, lse = fused_extended.extract(w, reps, None, scale)
    torch.autograd.backward([delta, lse], [torch.empty_like(delta), torch.empty_like(lse)])
    c = representatives(n, d, m, torch.float32)
    for broadcast in (
        fused_extended.broadcast_transposed,
        fused_extended.broadcast_by_softmax,
        fused_extended.broadcast_per_token,
    ):
        if broadcast is fused_extended.broadcast_per_token:
            fused_extended.refuse(w, scale, "softmax", "per_token")
        with_backward(broadcast(w, reps, c, lse.detach(), None, scale))


def pooled(dtype: torch.dtype, n: int, d: int, p: int, q: int) -> None:
    """Pooling and operator as one."""
    side = round((n - 1) ** 0.5)
    w = tokens(n, d, dtype)
    with_backward(
        fused_pooled.pooled_contract_broadcast(w, *steps(), (side, side), (p, q), 1, d**-0.5, "softmax")
    )


def pooling(dtype: torch.dtype, n: int, d: int, p: int, q: int) -> None:
    """Pooling alone."""
    side = round((n - 1) ** 0.5)
    x = torch.empty(LENGTHS[n], side * side, HEADS * d, dtype=dtype, requires_grad=True)
    with_backward(fused_pooling.pool_tokens(x, (side, side), (p, q)))


def norm(dtype: torch.dtype, n: int, d: int) -> None:
    """LayerNorm with what is added before it, and with what its gradient is added to."""
    rows = (LENGTHS[n], n, d)
    x, update = (torch.empty(rows, dtype=dtype, requires_grad=True) for _ in range(2))
    weight, bias, shift = (torch.empty(d, requires_grad=True) for _ in range(3))
    with torch.no_grad():
        fused_norm.add_layer_norm(x, update, shift, weight, bias, 1e-6)
    with_backward(fused_norm.add_layer_norm(x, update, shift, weight, bias, 1e-6))
    with_backward(fused_norm.add_layer_norm(x, update, None, weight, bias, 1e-6))
    fused_norm.layer_norm_into(x.detach().clone(), x, weight, bias, 1e-6, torch.zeros((), dtype=torch.int64))
    same, out = fused_norm.layer_norm_beside(x, weight, bias, 1e-6)
    torch.autograd.backward([same, out], [torch.empty_like(same), torch.empty_like(out)])


def batch_norm(dtype: torch.dtype, batch: int, channels: int, side: int) -> None:
    """BatchNorm and GELU in training."""
    y = torch.empty(batch, channels, side, side, dtype=dtype, memory_format=torch.channels_last)
    gamma, beta = (torch.empty(channels, requires_grad=True) for _ in range(2))
    with_backward(fused_batch_norm.batch_norm_gelu(y.requires_grad_(), gamma, beta, 1e-5)[0])


def stem(dtype: torch.dtype, batch: int, channels: int, side: int) -> None:
    """The stem's first stage, in inference and in training, of images in 32 bits."""
    images, weight = torch.empty(batch, 3, side, side), torch.empty(channels, 3, 3, 3, requires_grad=True)
    gamma, beta = (torch.empty(channels, requires_grad=True) for _ in range(2))
    fused_stem.first_stage(images, weight.detach(), beta.detach(), dtype)
    with_backward(fused_stem.first_stage_in_training(images, weight, gamma, beta, 1e-5, dtype)[0])


def far_stem(dtype: torch.dtype, channels: int) -> None:
    """The same of an image whose numbers 32 bits cannot count: its rows are far apart."""
    image = torch.empty(9 << 28, dtype=torch.uint8).as_strided((1, 3, 8, 8), (0, 1, (1 << 28) + (1 << 26), 3))
    fused_stem.first_stage(image, torch.empty(channels, 3, 3, 3), torch.empty(channels), dtype)


def far_pooling(dtype: torch.dtype, n: int, m: int) -> None:
    """Pooling of a sequence so long that products of its positions need 64 bits."""
    x = torch.empty(1, n, 64, dtype=dtype, requires_grad=True)
    with_backward(fused_pooling.pool_tokens(x, (n,), (m,)))


def rates(dtype: torch.dtype, n: int, d: int) -> None:
    """Coding rates of the heads."""
    w, side = tokens(n, d, dtype).detach(), fused_rates.gram_size(d)
    grams = torch.empty(*w.shape[:2], 2, side, side)
    fused_rates.head_grams(w, grams)
    fused_rates.half_log_determinants(grams, d / (n * 0.1**2))


OPERATORS: dict[str, Callable[..., None]] = {
    "cbsa": cbsa,
    "cbsa, stop-gradient": partial(cbsa, learn=False),
    "cbsa, mask": partial(cbsa, masked=True),
    "cbsa, no contraction": partial(cbsa, contraction="none"),
    "cbsa*": star,
    "cbsa*, mask": partial(star, masked=True),
    "agent": agent,
    "agent, mask": partial(agent, masked=True),
    "options": options,
    "pooled cbsa": pooled,
    "pooling": pooling,
    "pooling, far": far_pooling,
    "layer norm": norm,
    "batch norm": batch_norm,
    "stem": stem,
    "stem, far": far_stem,
    "rates": rates,
}
OF_HEADS = [name for name in OPERATORS if name.split(",")[0] in ("cbsa", "cbsa*", "agent", "options")]


def cases(quick: bool) -> Iterator[Case]:
    """All cases; or few, in 16 bits, in which every kernel is launched."""
    if quick:
        yield Case("cbsa", "bfloat16", (197, 64, 64))
        yield Case("cbsa", "bfloat16", (1025, 64, 64))
        yield Case("cbsa", "bfloat16", (65537, 64, 64))
        yield Case("cbsa", "bfloat16", (4097, 64, 257))
        yield Case("cbsa", "bfloat16", (1025, 128, 257))
        yield Case("cbsa*, mask", "bfloat16", (1025, 64, 64))
        yield Case("agent", "bfloat16", (4097, 64, 64))
        yield Case("agent", "bfloat16", (4097, 64, 257))
        yield Case("pooling", "bfloat16", (197, 64, 8, 8))
        yield Case("layer norm", "bfloat16", (197, 384))
        yield Case("batch norm", "bfloat16", (64, 96, 56))
        yield Case("stem", "bfloat16", (64, 48, 224))
        yield Case("rates", "bfloat16", (197, 64))
        return
    for dtype in DTYPES:
        for n, d, m in itertools.product(LENGTHS, (64, 128), (64, 257)):
            yield Case("cbsa", dtype, (n, d, m))
        yield Case("cbsa", dtype, (1025, 100, 100))  # the segmentation decoder's
        if dtype != "float16":
            for operator, n, d in itertools.product(OF_HEADS, (197, 1025), (64, 128)):
                yield Case(operator, dtype, (n, d, 64))
            yield from (Case(operator, dtype, (1025, 128, 257)) for operator in OF_HEADS)
        for n in (197, 65537):
            yield Case("pooled cbsa", dtype, (n, 64, 8, 8))
            yield Case("pooling", dtype, (n, 64, 8, 8))
        yield Case("pooling, far", dtype, (1 << 20, 1 << 10))
        for width in (192, 384, 768, 1024):
            yield Case("layer norm", dtype, (1025, width))
            yield Case("stem", dtype, (64, width // 8, 224))
            yield Case("batch norm", dtype, (64, width // 4, 56))
            yield Case("batch norm", dtype, (64, width // 2, 28))
        yield Case("stem, far", dtype, (48,))
        yield from (Case("rates", dtype, (1025, d)) for d in (32, 64))


class Row(NamedTuple):
    """A kernel of a case, compiled for a GPU."""

    gpu: str
    operator: str
    dtype: str
    sizes: str
    kernel: str
    warps: int
    stages: int
    registers: int
    spilled_bytes: int
    spills_in_loops: int
    shared_bytes: int
    fits: bool
    error: str

    @classmethod
    def of(cls, gpu: str, case: Case, made: Resources) -> "Row":
        """A row from a kernel's resources."""
        sizes = "x".join(map(str, case.sizes))
        *numbers, error = made[1:]
        return cls(gpu, case.operator, case.dtype, sizes, made.kernel, *numbers, made.fits(GPUS[gpu]), error)


def compile_all(gpu: str, chosen: list[Case]) -> Iterator[Row]:
    """Rows of all cases, one for each kernel as it is first needed; and one where an operator refuses."""
    with compiled_for(GPUS[gpu]) as found:
        for case in chosen:
            known = len(found)
            try:
                OPERATORS[case.operator](DTYPES[case.dtype], *case.sizes)
            except ValueError as refused:
                if "use impl='auto'" not in str(refused):
                    raise
                yield Row.of(gpu, case, Resources("", error=str(refused)))
            yield from (Row.of(gpu, case, made) for made in found[known:])


def main() -> None:
    """Compile, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--gpus", default=",".join(GPUS), help=f"some of {', '.join(GPUS)}")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, help="folder of kernels.csv and kernels.json")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", message="TRITON_DEFAULT_FP_FUSION")
    console, rows = Console(), list[Row]()
    for gpu in arguments.gpus.split(","):
        for row in compile_all(gpu, list(cases(arguments.quick))):
            rows.append(row)
            if not row.fits or row.spills_in_loops:
                console.print(*row, soft_wrap=True)
    table = Table("GPU", "kernels", "that spill", "in loops", "most shared memory", "that do not fit")
    for gpu in arguments.gpus.split(","):
        of_gpu = [row for row in rows if row.gpu == gpu]
        table.add_row(
            gpu, str(len(of_gpu)),
            str(sum(row.spilled_bytes > 0 for row in of_gpu)),
            str(sum(row.spills_in_loops > 0 for row in of_gpu)),
            f"{max(row.shared_bytes for row in of_gpu):,}", str(sum(not row.fits for row in of_gpu)),
        )  # fmt: skip
    console.print(table)
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
        with (arguments.out / "kernels.csv").open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(Row._fields)
            writer.writerows(rows)
        environment = describe_environment(torch.device("cpu"), ("ops",))
        origin = {"command": command_line(), "environment": environment}
        (arguments.out / "kernels.json").write_text(json.dumps(origin, indent=2) + "\n")


if __name__ == "__main__":
    main()
