"""The backward of LayerNorm in Triton: on a GPU, and everywhere else in Triton's interpreter."""

from functools import partial

import pytest
import torch
from torch.nn import functional as F

from tests.compare import KERNEL_DEVICES, assert_as_good_as, value_and_grads

pytest.importorskip("triton", reason="needs Triton, which comes with PyTorch on Linux")
from cbsa.ops import fused_norm

EPS = 1e-5
NAMES = ("dx", "dweight", "dbias")
CASES = [
    pytest.param(device, dtype, id=f"{device}-{dtype}")
    for device in KERNEL_DEVICES
    for dtype in (torch.float32, torch.float16, torch.bfloat16)
    if device == "cuda" or dtype != torch.bfloat16
]


def draw(*shape, device):
    x = torch.randn(*shape, device=device) * torch.rand(*shape[:-1], 1, device=device) + 0.5
    return [x, torch.randn(shape[-1], device=device), torch.randn(shape[-1], device=device)]


def plain(x, weight, bias):
    return F.layer_norm(x, x.shape[-1:], weight, bias, EPS)


@pytest.mark.parametrize(("device", "dtype"), CASES)
@pytest.mark.parametrize("shape", [(3, 5, 24), (1, 1, 192), (7, 100), (2100, 16), (2, 3, 1)], ids=str)
def test_value_and_every_gradient_are_as_good_as_plain_pytorch(shape, device, dtype):
    assert_as_good_as(
        partial(fused_norm.layer_norm, eps=EPS), plain, plain, partial(draw, *shape, device=device),
        dtype, NAMES, floor_ulps=4 if dtype == torch.float32 else 0.5, draws=3,
    )  # fmt: skip


@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_tokens_in_half_precision_keep_weights_in_single(device):
    x, weight, bias = draw(40, 48, device=device)
    x = x.half()
    out, *grads = value_and_grads(
        partial(fused_norm.layer_norm, eps=EPS), [x, weight, bias], torch.randn_like(x)
    )
    assert [out.dtype, *(g.dtype for g in grads)] == [
        torch.float16,
        torch.float16,
        torch.float32,
        torch.float32,
    ]


@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_any_strides(device):
    x, weight, bias = draw(6, 10, 32, device=device)
    weight_out = torch.randn(10, 6, 32, device=device)
    run = partial(fused_norm.layer_norm, eps=EPS)
    turned = value_and_grads(run, [x.transpose(0, 1), weight, bias], weight_out)
    packed = value_and_grads(run, [x.transpose(0, 1).contiguous(), weight, bias], weight_out)
    assert all(torch.equal(a, b) for a, b in zip(turned, packed, strict=True))


@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_no_rows(device):
    _, weight, bias = draw(1, 8, device=device)
    x = torch.empty(0, 8, device=device)
    out, dx, *sums = value_and_grads(partial(fused_norm.layer_norm, eps=EPS), [x, weight, bias], x)
    assert out.shape == dx.shape == (0, 8)
    assert not any(s.any() for s in sums)


@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_the_operator_is_well_formed(device):
    x, weight, bias = draw(20, 16, device=device)
    _, mean, rstd = torch.native_layer_norm(x, (16,), weight, bias, EPS)
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(
        fused_norm._backward, (torch.randn_like(x), x, mean, rstd, weight), test_utils=tests
    )


@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_compiles_into_one_graph(device):
    inputs = draw(20, 16, device=device)
    weight = torch.randn_like(inputs[0])
    run = partial(fused_norm.layer_norm, eps=EPS)
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    for a, b in zip(
        value_and_grads(compiled, inputs, weight), value_and_grads(run, inputs, weight), strict=True
    ):
        assert torch.equal(a, b)
