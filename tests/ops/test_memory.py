"""Peak memory of the fused form, measured by the operating system in a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

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


pytestmark = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc to measure peak memory"
)


@pytest.mark.parametrize("masked", [False, True])
def test_nothing_n_by_m_is_stored(masked):
    n, m, heads, d = 100_000, 128, 2, 8
    tokens, weights = 4 * heads * n * d, 4 * heads * n * m  # bytes of w and of A: 6 MiB and 98 MiB
    fused = peak_bytes("sdpa", n, m, masked)
    assert fused < 14 * tokens < weights
    assert peak_bytes("reference", n, m, masked) > weights  # what is measured does show such a matrix


def test_a_layer_over_a_sequence_stores_nothing_n_by_m_either():
    """Pooling included: 64 and 512 representatives of 100,000 tokens."""
    few, many = (peak_bytes("layer", 100_000, m) for m in (64, 512))
    assert abs(many - few) < 40 * MIB  # 448 more representatives would be 340 MiB of weights


def test_memory_does_not_grow_with_the_number_of_representatives():
    few, many = peak_bytes("sdpa", 100_000, 16), peak_bytes("sdpa", 100_000, 128)
    assert abs(many - few) < 40 * MIB  # 112 more representatives would be 85 MiB of weights
