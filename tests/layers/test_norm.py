"""LayerNorm in the dtype of its tokens."""

import pytest
import torch
from torch import nn

from cbsa.layers import LayerNorm
from tests.compare import DEVICES, assert_close


def pair(dim, device):
    """Ours and PyTorch's, with the same parameters."""
    ours, theirs = LayerNorm(dim).to(device), nn.LayerNorm(dim).to(device)
    with torch.no_grad():
        for p in ours.parameters():
            p.normal_()
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


@pytest.mark.parametrize("device", DEVICES)
def test_it_is_pytorchs_without_autocast(device):
    ours, theirs = pair(24, device)
    x = torch.randn(3, 5, 24, device=device)
    assert torch.equal(ours(x), theirs(x))
    assert torch.equal(ours.bfloat16()(x.bfloat16()), theirs.bfloat16()(x.bfloat16()))


@pytest.mark.parametrize("device", DEVICES)
def test_autocast_leaves_the_dtype_and_the_precision(device):
    ours, theirs = pair(24, device)
    x = torch.randn(3, 5, 24, device=device).bfloat16()
    with torch.autocast(device, torch.bfloat16):
        out, wide = ours(x), theirs(x.float())
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, wide.bfloat16())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiled_training(device, dtype):
    """On a GPU this takes the kernel: values and gradients are those of float64."""
    ours, theirs = pair(48, device)
    x = torch.randn(40, 48, device=device, dtype=dtype)
    weight = torch.randn(40, 48, device=device, dtype=dtype)
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)
    leaf = x.clone().requires_grad_()
    compiled(leaf).backward(weight)
    truth = x.double().requires_grad_()
    theirs.double()(truth).backward(weight.double())
    tolerance = 1e-5 if dtype == torch.float32 else 5e-3
    assert_close(leaf.grad, truth.grad, tolerance, "dx")
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert_close(a.grad, b.grad, tolerance, "dparameter")
