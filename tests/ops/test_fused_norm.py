"""LayerNorm in Triton: on a GPU, and everywhere else in Triton's interpreter."""

from functools import partial

import pytest
import torch
from torch.nn import functional as F

from tests.compare import (
    KERNEL_CASES,
    KERNEL_DEVICES,
    assert_as_good_as,
    assert_close,
    assert_written_and_repeatable,
    value_and_grads,
)

pytest.importorskip("triton", reason="needs Triton, which comes with PyTorch on Linux")
from cbsa.ops import fused_norm

EPS = 1e-5


def draw(*shape, device):
    """Tokens, an update of them, a shift of all, weight and bias."""
    x = torch.randn(*shape, device=device) * torch.rand(*shape[:-1], 1, device=device) + 0.5
    return [x, torch.randn_like(x), *torch.randn(3, shape[-1], device=device)]


def of_sum(x, update, shift, weight, bias):
    return fused_norm.add_layer_norm(x, update, shift, weight, bias, EPS)


def plain_of_sum(x, update, shift, weight, bias):
    return F.layer_norm(x + (update + shift), x.shape[-1:], weight, bias, EPS)


def beside(x, update, shift, weight, bias):
    """The residual around something that depends on the norm, as in a block."""
    same, normed = fused_norm.layer_norm_beside(x, weight, bias, EPS)
    return same + (update * normed + shift)


def plain_beside(x, update, shift, weight, bias):
    return x + (update * F.layer_norm(x, x.shape[-1:], weight, bias, EPS) + shift)


FUNCTIONS = [pytest.param(of_sum, plain_of_sum, id="sum"), pytest.param(beside, plain_beside, id="beside")]


@pytest.mark.parametrize(("device", "dtype"), KERNEL_CASES)
@pytest.mark.parametrize("shape", [(3, 5, 24), (1, 1, 192), (7, 100), (4100, 16), (2, 3, 2)], ids=str)
@pytest.mark.parametrize(("function", "plain"), FUNCTIONS)
def test_value_and_every_gradient_are_as_good_as_plain_pytorch(function, plain, shape, device, dtype):
    names, floor = ("dx", "dupdate", "dshift", "dweight", "dbias"), 4 if dtype == torch.float32 else 0.5
    make = partial(draw, *shape, device=device)
    assert_as_good_as(function, plain, plain, make, dtype, names, floor_ulps=floor, draws=3)


@pytest.mark.parametrize("device", KERNEL_DEVICES)
@pytest.mark.parametrize("function", [of_sum, beside])
def test_inference_has_the_same_bits(function, device):
    inputs = draw(9, 48, device=device)
    with torch.no_grad():
        assert torch.equal(function(*inputs), function(*[x.requires_grad_() for x in inputs]).detach())


@pytest.mark.parametrize("device", KERNEL_DEVICES)
@pytest.mark.parametrize("function", [of_sum, beside])
def test_every_element_is_written_and_the_same_every_time(function, device):
    inputs = draw(1, 131, 20, device=device)
    assert_written_and_repeatable(function, inputs, torch.randn_like(inputs[0]))


@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_tokens_in_half_precision_keep_weights_in_single(device):
    x, update, *parameters = draw(40, 48, device=device)
    inputs = [x.half(), update.half(), *parameters]
    out, *grads = value_and_grads(of_sum, inputs, torch.randn_like(x))
    half, single = torch.float16, torch.float32
    assert [t.dtype for t in (out, *grads)] == [half, half, half, single, single, single]


@pytest.mark.parametrize("device", KERNEL_DEVICES)
@pytest.mark.parametrize("function", [of_sum, beside])
def test_any_strides(function, device):
    """Also of parameters; one number may stand for all channels."""
    x, update, shift, scale, bias = draw(6, 10, 32, device=device)
    weight = torch.randn(10, 6, 16, device=device)
    turned = [x.transpose(0, 1)[..., ::2], update.transpose(0, 1)[..., :16]]
    turned += [shift[:1].expand(16), scale[::2], bias[16:]]
    packed = [t.contiguous() for t in turned]
    for a, b in zip(
        value_and_grads(function, turned, weight), value_and_grads(function, packed, weight), strict=True
    ):
        assert torch.equal(a, b)


@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_one_channel(device):
    """It is always the mean: the output is the bias, and nothing depends on the tokens."""
    inputs = draw(5, 1, device=device)
    out, dx, dupdate, dshift, dweight, dbias = value_and_grads(of_sum, inputs, torch.ones_like(inputs[0]))
    assert_close(out, inputs[4].expand(5, 1), 1e-6)
    assert max(g.abs().max().item() for g in (dx, dupdate, dshift, dweight)) < 1e-4
    assert dbias.item() == 5


@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_no_shift_is_one_of_nothing(device):
    x, update, shift, *parameters = draw(30, 48, device=device)
    weight = torch.randn_like(x)
    ours = value_and_grads(
        lambda *inputs: of_sum(*inputs[:2], None, *inputs[2:]), [x, update, *parameters], weight
    )
    out, dx, dupdate, _, *rest = value_and_grads(of_sum, [x, update, 0 * shift, *parameters], weight)
    for a, b in zip(ours, (out, dx, dupdate, *rest), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_no_rows(device):
    _, _, *parameters = draw(1, 8, device=device)
    x = torch.empty(0, 8, device=device)
    out, dx, dupdate, *sums = value_and_grads(of_sum, [x, x, *parameters], x)
    assert out.shape == dx.shape == dupdate.shape == (0, 8)
    assert not any(s.any() for s in sums)


@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_the_operators_are_well_formed(device):
    x, update, shift, weight, bias = draw(20, 16, device=device)
    tests = ("test_schema", "test_faketensor")
    for keep in (False, True):
        for added in ((None, None), (update, None), (update, shift)):
            arguments = (x, *added, weight, bias, EPS, keep)
            torch.library.opcheck(fused_norm._forward, arguments, test_utils=tests)
    _, mean, rstd = torch.native_layer_norm(x, (16,), weight, bias, EPS)
    for more, shifted in ((None, False), (update, False), (None, True)):
        arguments = (torch.randn_like(x), more, x, mean.squeeze(-1), rstd.squeeze(-1), weight, shifted)
        torch.library.opcheck(fused_norm._backward, arguments, test_utils=tests)


@pytest.mark.parametrize("device", KERNEL_DEVICES)
@pytest.mark.parametrize("function", [of_sum, beside])
def test_compiles_into_one_graph(function, device):
    inputs = draw(20, 16, device=device)
    weight = torch.randn_like(inputs[0])
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for a, b in zip(
        value_and_grads(compiled, inputs, weight), value_and_grads(function, inputs, weight), strict=True
    ):
        assert torch.equal(a, b)


@pytest.mark.parametrize(("device", "dtype"), KERNEL_CASES)
@pytest.mark.parametrize("shape", [(3, 5, 24), (1, 1, 192), (4100, 16), (0, 8)], ids=str)
def test_norm_into_memory_that_is_there_counts_what_is_not_zero(shape, device, dtype):
    x, _, _, weight, bias = draw(*shape, device=device)
    x = torch.where(torch.rand_like(x) < 0.3, 0.0, x).to(dtype)
    given = [z.to(dtype) for z in (weight, bias)]
    truth = F.layer_norm(x.double(), x.shape[-1:], *(z.double() for z in given), EPS)
    out = torch.full((2, *shape), torch.nan, device=device, dtype=dtype)
    count = torch.ones((), device=device, dtype=torch.int64)
    fused_norm.layer_norm_into(out[1], x, *given, EPS, count)
    if x.numel():
        assert_close(out[1], truth, 4 * torch.finfo(dtype).eps)
    assert out[0].isnan().all()
    assert count.item() == 1 + x.count_nonzero().item()
    fused_norm.layer_norm_into(out[0], x, *given, EPS)
    assert torch.equal(out[0], out[1])
