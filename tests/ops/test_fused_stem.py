"""The first stage of a stem in Triton: on a GPU, and everywhere else in Triton's interpreter."""

from functools import partial

import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from tests.compare import (
    KERNEL_CASES,
    KERNEL_DEVICES,
    assert_as_good_as,
    assert_close,
    assert_written_and_repeatable,
    value_and_grads,
)

pytest.importorskip("triton", reason="needs Triton, which comes with PyTorch on Linux")
from cbsa.ops import fused_stem

SHAPES = [(2, 3, 16, 16, 24), (1, 1, 7, 9, 5), (4, 4, 1, 5, 48), (1, 3, 33, 20, 12)]  # B, C_in, h, w, C_out
EPS = 1e-5


def draw(batch, channels, height, width, out_channels, device):
    """Images that are not centred, and parameters."""
    size = (batch, channels, height, width)
    images = (0.5 + torch.randn(size, device=device)).to(memory_format=torch.channels_last)
    gamma, beta = (torch.randn(out_channels, device=device) for _ in range(2))
    return images, torch.randn(out_channels, channels, 3, 3, device=device), gamma, beta


def plain(weight, gamma, beta, images):
    """The stage, layer by layer; the BatchNorm sees the convolution's output as it is stored."""
    maps = F.conv2d(images.to(weight.dtype), weight, stride=2, padding=1)
    return F.gelu(F.batch_norm(maps, None, None, gamma, beta, training=True, eps=EPS))


def in_training(weight, gamma, beta, images, dtype):
    return fused_stem.first_stage_in_training(images, weight, gamma, beta, EPS, dtype)[0]


@pytest.mark.parametrize(("device", "dtype"), KERNEL_CASES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_training_and_its_gradients(shape, device, dtype):
    images = draw(*shape, device)[0].to(dtype).float()  # the truth sees what the kernel sees
    assert_as_good_as(
        partial(in_training, images=images, dtype=dtype),
        partial(plain, images=images),
        partial(plain, images=images),
        lambda: draw(*shape, device)[1:],
        dtype, ("dweight", "dgamma", "dbeta"), floor_ulps=32 if dtype == torch.float32 else 1,
    )  # fmt: skip


@pytest.mark.parametrize("device", KERNEL_DEVICES)
@pytest.mark.parametrize("centre", [0, 30])
def test_statistics(device, centre):
    """Mean and biased variance of the convolution's output, also of images far from 0."""
    images, weight, gamma, beta = draw(2, 3, 17, 12, 8, device)
    images += centre
    _, mean, var = fused_stem.first_stage_in_training(images, weight, gamma, beta, EPS, torch.float32)
    maps = F.conv2d(images.double(), weight.double(), stride=2, padding=1)
    assert_close(mean, maps.mean((0, 2, 3)), 1e-5)
    assert_close(var, maps.var((0, 2, 3), correction=0), 1e-5)


@pytest.mark.parametrize("device", KERNEL_DEVICES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_with_batch_norm_folded_in(shape, device):
    images, weight, _, bias = draw(*shape, device)
    out = fused_stem.first_stage(images, weight, bias, torch.float32)
    expected = F.gelu(F.conv2d(images.double(), weight.double(), bias.double(), stride=2, padding=1))
    assert_close(out, expected, 1e-5)
    assert out.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_gelu_and_its_slope_over_their_range(device):
    """With one channel whose convolution is the identity: values from −12 to 12, and the tails."""
    values = torch.linspace(-12, 12, 4801, device=device)
    images = torch.zeros(1, 1, 1, 2 * len(values), device=device)
    images[..., ::2] = values
    weight, one, zero = torch.zeros(1, 1, 3, 3, device=device), *torch.tensor([[1.0], [0.0]], device=device)
    weight[..., 1, 1] = 1
    out = fused_stem.first_stage(images, weight, zero, torch.float32).flatten()
    truth = F.gelu(values.double())
    assert (out - truth).abs().max() < 1e-6
    grad = torch.zeros(1, 1, 1, len(values), device=device)
    slopes = torch.func.vmap(torch.func.grad(F.gelu))(values.double())
    for place in (0, 2000, 2399, 2400, 2401, 2650, 4800):
        grad.zero_()[..., place] = 1
        sums = fused_stem._backward(grad, images, weight, one, zero, torch.float32)
        assert abs(sums[0, -1].item() - slopes[place].item()) < 1e-6


@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_every_element_is_written_and_the_same_every_time(device):
    images, *parameters = draw(2, 3, 21, 13, 20, device)
    run = partial(in_training, images=images, dtype=torch.float32)
    assert_written_and_repeatable(run, parameters, torch.randn(2, 20, 11, 7, device=device))


@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_any_layout_of_the_images(device):
    images, *parameters = draw(2, 3, 10, 12, 8, device)
    weight = torch.randn(2, 8, 5, 6, device=device)
    results = [
        value_and_grads(partial(in_training, images=x, dtype=torch.float32), parameters, weight)
        for x in (images, images.contiguous(), images.transpose(2, 3).contiguous().transpose(2, 3))
    ]
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_flops_are_counted_like_pytorchs(device):
    """Those of the convolution and of its weight's gradient, and not that the former is done twice."""
    images, *parameters = draw(2, 3, 9, 8, 4, device)
    weight = torch.ones(2, 4, 5, 4, device=device)
    counts = []
    for function in (partial(in_training, dtype=torch.float32), plain):
        with FlopCounterMode(display=False) as counter:
            value_and_grads(partial(function, images=images), parameters, weight)
        counts.append(counter.get_flop_counts()["Global"])
    ours = sum(n for op, n in counts[0].items() if "first_stage" in str(op))
    assert ours == sum(n for op, n in counts[1].items() if "convolution" in str(op)) > 0


@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_no_images(device):
    images, *parameters = draw(0, 3, 8, 8, 4, device)
    run = partial(in_training, images=images, dtype=torch.float32)
    out, *grads = value_and_grads(run, parameters, torch.empty(0, 4, 4, 4, device=device))
    assert out.shape == (0, 4, 4, 4)
    assert not any(grad.any() for grad in grads)


@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_the_operators_are_well_formed_and_compile(device):
    images, weight, gamma, beta = draw(1, 3, 8, 8, 4, device)
    tests = ("test_schema", "test_faketensor")
    for scale in (None, gamma):
        arguments = (images, weight, scale, beta, torch.float32)
        torch.library.opcheck(fused_stem._forward, arguments, test_utils=tests)
    torch.library.opcheck(fused_stem._window_moments, (images, torch.float32), test_utils=tests)
    grad = torch.randn(1, 4, 4, 4, device=device)
    arguments = (grad, images, weight, gamma, beta, torch.float32)
    torch.library.opcheck(fused_stem._backward, arguments, test_utils=tests)
    run = partial(in_training, images=images, dtype=torch.float32)
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    results = [value_and_grads(f, [weight, gamma, beta], grad) for f in (compiled, run)]
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)
