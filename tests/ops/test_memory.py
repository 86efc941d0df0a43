"""Peak memory: the fused form's by the operating system, the kernels' by PyTorch's count on a GPU."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from cbsa.ops import contract_broadcast
from tests.compare import value_and_grads

MIB = 2**20

# Forward and backward over N tokens and m representatives; prints by how many bytes the resident set peaked.
PROGRAM = """
import sys, torch
from cbsa.layers import CBSA
from cbsa.ops import contract_broadcast

def peak():
    return 1024 * next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmHWM"))

impl, n, m, masked = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "True"

def step(n):
    if impl == "layer":
        layer = CBSA(16, 2, representatives=m, num_prefix_tokens=0, impl="sdpa")
        return layer(torch.randn(1, n, 16)).square().sum().backward()
    torch.manual_seed(0)
    w = torch.randn(1, n, 2, 8).transpose(1, 2).requires_grad_()
    reps, steps = torch.randn(1, 2, m, 8, requires_grad=True), torch.ones(2, 2, requires_grad=True)
    mask = torch.rand(1, n) < 0.9 if masked else None
    contract_broadcast(w, reps, *steps, mask=mask, impl=impl).square().sum().backward()

torch.set_num_threads(1)
step(64)  # libraries and kernels are loaded
open("/proc/self/clear_refs", "w").write("5")
before = peak()
step(n)
print(peak() - before)
"""


def peak_bytes(impl, n, m, masked=False):
    command = [sys.executable, "-c", PROGRAM, impl, str(n), str(m), str(masked)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


needs_proc = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc to measure peak memory"
)


@needs_proc
@pytest.mark.parametrize("masked", [False, True])
def test_nothing_n_by_m_is_stored(masked):
    n, m, heads, d = 100_000, 128, 2, 8
    tokens, weights = 4 * heads * n * d, 4 * heads * n * m  # bytes of w and of A: 6 MiB and 98 MiB
    fused = peak_bytes("sdpa", n, m, masked)
    assert fused < 14 * tokens < weights
    assert peak_bytes("reference", n, m, masked) > weights  # what is measured does show such a matrix


@needs_proc
def test_a_layer_over_a_sequence_stores_nothing_n_by_m_either():
    """Pooling included: 64 and 512 representatives of 100,000 tokens."""
    few, many = (peak_bytes("layer", 100_000, m) for m in (64, 512))
    assert abs(many - few) < 40 * MIB  # 448 more representatives would be 340 MiB of weights


@needs_proc
def test_memory_does_not_grow_with_the_number_of_representatives():
    few, many = peak_bytes("sdpa", 100_000, 16), peak_bytes("sdpa", 100_000, 128)
    assert abs(many - few) < 40 * MIB  # 112 more representatives would be 85 MiB of weights


# --- on a GPU --------------------------------------------------------------------------------------------


def gpu_bytes(function):
    """By how many bytes memory peaked while ``function`` ran, and how many its result holds."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = function()
    torch.cuda.synchronize()
    left = torch.cuda.memory_allocated() - before
    del result
    return torch.cuda.max_memory_allocated() - before, left


def total_bytes(*tensors):
    return sum(x.numel() * x.element_size() for x in tensors)


@pytest.mark.gpu
@pytest.mark.parametrize(("batch", "n"), [(16, 1025), (1, 65_537)])
def test_the_kernels_need_little_more_than_inputs_output_and_gradients(batch, n):
    """At most 1.3 times those in training; without gradients, nothing is left but the output."""
    pytest.importorskip("triton", reason="needs Triton, which comes with PyTorch on Linux")
    like = {"device": "cuda", "dtype": torch.bfloat16}
    w = torch.randn(batch, n, 6, 64, **like).transpose(1, 2)
    reps = torch.randn(batch, 6, 64, 64, **like)
    inputs, weight = (w, reps, *torch.randn(2, 6, device="cuda").unbind()), torch.randn_like(w)
    given = total_bytes(*inputs, weight)
    necessary = given + total_bytes(*inputs, w)  # gradients of the inputs, and the output
    peaks = {}
    for impl in ("triton", "reference"):
        step = partial(value_and_grads, partial(contract_broadcast, impl=impl), inputs, weight)
        step()  # kernels are compiled, work spaces of libraries allocated
        peaks[impl] = given + gpu_bytes(step)[0]
    assert peaks["triton"] <= 1.3 * necessary, f"{peaks['triton'] / necessary:.2f} times what is necessary"
    assert peaks["reference"] > 1.3 * necessary  # what is measured does show matrices of size N×m

    with torch.no_grad():
        peak, left = gpu_bytes(lambda: contract_broadcast(*inputs, impl="triton"))
    assert left < total_bytes(w) + MIB
    assert given + peak <= 1.3 * (given + total_bytes(w))
