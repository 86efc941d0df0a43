"""The first convolution of a stem in Triton: on a GPU, and everywhere else in Triton's interpreter."""

from functools import partial

import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from tests.compare import KERNEL_DEVICES, assert_as_good_as, assert_close, value_and_grads

pytest.importorskip("triton", reason="needs Triton, which comes with PyTorch on Linux")
from cbsa.ops import fused_stem

CASES = [
    pytest.param(device, dtype, id=f"{device}-{dtype}")
    for device in KERNEL_DEVICES
    for dtype in (torch.float32, torch.float16, torch.bfloat16)
    if device == "cuda" or dtype != torch.bfloat16
]
SHAPES = [(2, 3, 16, 16, 24), (1, 1, 7, 9, 5), (2, 4, 1, 2, 48), (1, 3, 33, 20, 12)]  # B, C_in, h, w, C_out


def draw(batch, channels, height, width, out_channels, device):
    images = torch.randn(batch, channels, height, width, device=device).to(memory_format=torch.channels_last)
    return images, torch.randn(out_channels, channels, 3, 3, device=device)


def plain(weight, images):
    return F.conv2d(images.to(weight.dtype), weight, stride=2, padding=1)


@pytest.mark.parametrize(("device", "dtype"), CASES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_convolution_and_gradient_of_the_weight(shape, device, dtype):
    images, _ = draw(*shape, device)
    images = images.to(dtype).float()  # the truth sees what the kernel sees

    def run(weight):
        return fused_stem.first_convolution(images, weight, dtype)

    assert_as_good_as(
        run, partial(plain, images=images), partial(plain, images=images),
        lambda: [draw(*shape, device)[1]], dtype, ("dweight",),
        floor_ulps=8 if dtype == torch.float32 else 0.5, draws=3,
    )  # fmt: skip


@pytest.mark.parametrize("device", KERNEL_DEVICES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_with_bias_and_gelu(shape, device):
    images, weight = draw(*shape, device)
    bias = torch.randn(shape[-1], device=device)
    out = fused_stem.first_convolution_gelu(images, weight, bias, torch.float32)
    expected = F.gelu(F.conv2d(images.double(), weight.double(), bias.double(), stride=2, padding=1))
    assert_close(out, expected, 1e-5)
    assert out.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_any_layout_of_the_images(device):
    images, weight = draw(2, 3, 10, 12, 8, device)
    run = partial(fused_stem.first_convolution, weight=weight, dtype=torch.float32)
    expected = run(images)
    for other in (images.contiguous(), images.transpose(2, 3).contiguous().transpose(2, 3)):
        assert torch.equal(run(other), expected)


@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_flops_are_counted_like_pytorchs(device):
    images, weight = draw(2, 3, 9, 8, 4, device)
    counts = []
    for function in (
        partial(fused_stem.first_convolution, images, dtype=torch.float32),
        partial(plain, images=images),
    ):
        with FlopCounterMode(display=False) as counter:
            value_and_grads(
                lambda weight, f=function: f(weight=weight), [weight], torch.ones(2, 4, 5, 4, device=device)
            )
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_no_images(device):
    images, weight = draw(0, 3, 8, 8, 4, device)

    def run(weight):
        return fused_stem.first_convolution(images, weight, torch.float32)

    out, grad = value_and_grads(run, [weight], torch.empty(0, 4, 4, 4, device=device))
    assert out.shape == (0, 4, 4, 4)
    assert not grad.any()


@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_the_operators_are_well_formed_and_compile(device):
    images, weight = draw(1, 3, 8, 8, 4, device)
    tests = ("test_schema", "test_faketensor")
    for bias in (None, torch.randn(4, device=device)):
        torch.library.opcheck(fused_stem._forward, (images, weight, bias, torch.float32), test_utils=tests)
    grad = torch.randn(1, 4, 4, 4, device=device)
    torch.library.opcheck(fused_stem._weight_gradient, (grad, images), test_utils=tests)

    def run(weight):
        return fused_stem.first_convolution(images, weight, torch.float32)

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    for a, b in zip(
        value_and_grads(compiled, [weight], grad), value_and_grads(run, [weight], grad), strict=True
    ):
        assert torch.equal(a, b)
