"""The Triton kernels of `pool_tokens`: on a GPU, and everywhere else in Triton's interpreter."""

import math
import warnings

import pytest
import torch
from torch.nn import functional as F

from cbsa.ops import pool_tokens
from tests.compare import (
    KERNEL_CASES,
    KERNEL_DEVICES,
    assert_as_good_as,
    assert_close,
    assert_written_and_repeatable,
    value_and_grads,
)

pytest.importorskip("triton", reason="needs Triton, which comes with PyTorch on Linux")
from cbsa.ops import fused_pooling, pooling
from cbsa.ops.availability import kernels_run_on
from cbsa.ops.kernels import pooling as kernels

GEOMETRIES = [
    ((14, 14), (8, 8), 100),  # windows overlap; channels fill no block
    ((7, 5), (3, 4), 1),
    ((3, 2), (8, 8), 5),  # more windows than tokens
    ((1, 1), (2, 2), 3),
    ((32, 32), (8, 8), 4),  # windows divide the grid
    ((13,), (5,), 192),  # several blocks of channels
    ((5,), (13,), 2),
    ((5, 40), (1, 3), 7),  # rectangles
    ((20, 3), (3, 1), 7),
    ((600,), (2,), 64),  # windows of several loads
]


def torch_pool(x, grid, size):
    maps = x.transpose(1, 2).reshape(x.shape[0], x.shape[2], *grid)
    pool = F.adaptive_avg_pool1d if len(grid) == 1 else F.adaptive_avg_pool2d
    return pool(maps, size).flatten(2).transpose(1, 2)


def draw(grid, channels, device, batch=2):
    """Tokens as a model has them: behind a CLS token."""
    return torch.randn(batch, 1 + math.prod(grid), channels, device=device)[:, 1:]


@pytest.fixture
def many_splits(monkeypatch):
    """Split every window, down to one step a program."""
    monkeypatch.setattr(kernels, "_FEW", 1)
    monkeypatch.setattr(kernels, "_PROGRAMS", 1 << 20)
    kernels._plan.cache_clear()
    yield
    kernels._plan.cache_clear()


@pytest.fixture
def few_programs(monkeypatch):
    """Give a program several images."""
    monkeypatch.setattr(kernels, "_MANY_PROGRAMS", 1)
    monkeypatch.setattr(kernels, "_IMAGES", 2)
    kernels._plan.cache_clear()
    yield
    kernels._plan.cache_clear()


def compare(grid, size, channels, device, dtype, batch=2):
    assert_as_good_as(
        lambda x: fused_pooling.pool_tokens(x, grid, size),
        lambda x: torch_pool(x, grid, size),
        lambda x: torch_pool(x, grid, size),
        lambda: [draw(grid, channels, device, batch)],
        dtype,
        ["dx"],
        floor_ulps=1 if dtype == torch.float32 else 0.5,  # an average of one token is exact in PyTorch
        draws=1,
    )


@pytest.mark.parametrize(("device", "dtype"), KERNEL_CASES)
@pytest.mark.parametrize(("grid", "size", "channels"), GEOMETRIES, ids=str)
def test_value_and_gradient_are_as_good_as_pytorchs(grid, size, channels, device, dtype):
    compare(grid, size, channels, device, dtype)


@pytest.mark.parametrize(("device", "dtype"), KERNEL_CASES)
@pytest.mark.parametrize(
    ("grid", "size", "channels"), [((14, 14), (4, 3), 20), ((3, 2), (12, 18), 3), ((700,), (2,), 10)], ids=str
)
@pytest.mark.usefixtures("many_splits")
def test_windows_split_over_programs(grid, size, channels, device, dtype):
    splits = [
        kernels._plan(1, *map(fused_pooling.as_image, (grid, size)), channels, s) for s in (False, True)
    ]
    assert max(math.prod(plan.programs[1:]) for plan in splits) > 1
    compare(grid, size, channels, device, dtype, batch=1)


@pytest.mark.parametrize("device", KERNEL_DEVICES)
@pytest.mark.usefixtures("few_programs")
def test_several_images_a_program(device):
    assert kernels._plan(5, (7, 5), (3, 4), 6, False).work[0] == 2
    compare((7, 5), (3, 4), 6, device, torch.float32, batch=5)


@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_positions_of_64_bits(device, monkeypatch):
    """Long axes take another path; the axis need not be long for it to be right."""
    monkeypatch.setattr(kernels, "_is_wide", lambda *_: True)
    kernels._plan.cache_clear()
    compare((7, 5), (3, 4), 6, device, torch.float32)
    kernels._plan.cache_clear()


def test_the_longest_window():
    for n in range(1, 30):
        for o in range(1, 30):
            longest = max(-(-(i + 1) * n // o) - i * n // o for i in range(o))
            assert kernels._longest(n, o) == longest


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_every_element_is_written_and_the_same_every_time(device, split, request):
    """Sizes fill no block."""
    if split:
        request.getfixturevalue("many_splits")
    grid, size = (9, 7), (2, 3)
    x, weight = draw(grid, 20, device), torch.randn(2, 6, 20, device=device)
    assert_written_and_repeatable(lambda t: fused_pooling.pool_tokens(t, grid, size), [x], weight)


@pytest.mark.parametrize("device", KERNEL_DEVICES)
@pytest.mark.parametrize(("grid", "size"), [((14, 14), (8, 8)), ((16, 20), (2, 2))])
def test_windows_that_overlap_or_divide_are_the_same_every_time(grid, size, device):
    x, weight = draw(grid, 24, device), torch.randn(2, math.prod(size), 24, device=device)
    assert_written_and_repeatable(lambda t: fused_pooling.pool_tokens(t, grid, size), [x], weight)


@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_any_strides(device):
    x = torch.randn(2, 30, 12, device=device)
    expected = fused_pooling.pool_tokens(x, (5, 6), (2, 4))
    with_prefix = torch.cat([torch.full((2, 3, 12), torch.nan, device=device), x], 1)[:, 3:]
    wide, transposed = torch.cat([x, x * torch.nan], -1)[..., :12], x.mT.contiguous().mT
    for other in (with_prefix, wide, transposed):
        assert not other.is_contiguous()
        assert torch.equal(fused_pooling.pool_tokens(other, (5, 6), (2, 4)), expected)
    grad = torch.ones(1, 1, 1, device=device).expand(2, 8, 12)
    assert torch.equal(
        fused_pooling._backward(grad, (5, 6), (2, 4)),
        fused_pooling._backward(grad.contiguous(), (5, 6), (2, 4)),
    )


@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_float16_sums_stay_in_range(device):
    x = torch.full((1, 64 * 64, 1), 6e4, dtype=torch.float16, device=device)
    assert (fused_pooling.pool_tokens(x, (64, 64), (2, 2)) == 6e4).all()


@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_an_empty_batch(device):
    x, weight = draw((5, 6), 3, device, batch=0), torch.empty(0, 8, 3, device=device)
    out, grad = value_and_grads(lambda t: fused_pooling.pool_tokens(t, (5, 6), (2, 4)), [x], weight)
    assert out.shape == (0, 8, 3)
    assert grad.shape == x.shape


@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_second_derivative(device):
    x = draw((3, 4), 2, device, batch=1).requires_grad_()

    def slope(pool):
        cubes = pool(x, (3, 4), (2, 3)).pow(3).sum()
        (grad,) = torch.autograd.grad(cubes, x, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), x)[0]

    assert_close(slope(fused_pooling.pool_tokens), slope(torch_pool), 1e-5)


@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_the_operators_are_well_formed(device):
    tests = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    x, grad = (torch.randn(2, n, 3, device=device, requires_grad=True) for n in (30, 8))
    torch.library.opcheck(fused_pooling.pool_tokens, (x, (5, 6), (2, 4)), test_utils=tests)
    torch.library.opcheck(fused_pooling._backward, (grad, (5, 6), (2, 4)), test_utils=tests)


@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_compiles_into_one_graph(device):
    compiled = torch.compile(fused_pooling.pool_tokens, fullgraph=True, backend="aot_eager")
    for grid in [(5, 6), (7, 4), (9, 9)]:  # the latter two with dynamic sizes
        x, weight = draw(grid, 3, device), torch.randn(2, 8, 3, device=device)
        actual = value_and_grads(lambda t, grid=grid: compiled(t, grid, (2, 4)), [x], weight)
        expected = value_and_grads(lambda t, grid=grid: torch_pool(t, grid, (2, 4)), [x], weight)
        for a, t in zip(actual, expected, strict=True):
            assert_close(a, t, 1e-6)


def test_the_processor_keeps_to_plain_pytorch(monkeypatch):
    """Also in Triton's interpreter; and asking is silent under torch.compile."""
    monkeypatch.setattr(fused_pooling, "pool_tokens", None)
    x = torch.randn(2, 30, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = torch.compile(
            lambda t: t.sum() if kernels_run_on(t.device) else t, fullgraph=True, backend="eager"
        )
        assert compiled(x).shape == x.shape
    assert pool_tokens(x, (5, 6), (2, 4)).shape == (2, 8, 3)


@pytest.mark.gpu
@pytest.mark.parametrize("autocast", [False, True])
def test_a_gpu_takes_the_kernels(monkeypatch, autocast):
    x, calls, kernel = draw((5, 6), 3, "cuda"), [], fused_pooling.pool_tokens
    mask = torch.ones(2, 30, dtype=torch.bool, device="cuda")
    monkeypatch.setattr(fused_pooling, "pool_tokens", lambda *a: (calls.append(a), kernel(*a))[1])
    with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
        assert_close(pool_tokens(x, (5, 6), (2, 4)), torch_pool(x, (5, 6), (2, 4)), 1e-6)
        assert len(calls) == 1
        pool_tokens(x, (5, 3, 2), (2, 2, 2))
        pool_tokens(x, (5, 6), (2, 4), mask)
        pool_tokens(x.double(), (5, 6), (2, 4))
        torch.func.vmap(lambda t: pool_tokens(t[None], (5, 6), (2, 4)))(x)
        torch.func.jvp(lambda t: pool_tokens(t, (5, 6), (2, 4)), (x,), (x,))
        assert len(calls) == 1
        monkeypatch.setattr(pooling, "kernels_run_on", lambda device: False)
        pool_tokens(x, (5, 6), (2, 4))
        assert len(calls) == 1


@pytest.mark.gpu
def test_a_gpu_compiles_into_one_graph_in_silence():
    x = draw((14, 14), 16, "cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = torch.compile(pool_tokens, fullgraph=True, backend="aot_eager")
        assert_close(compiled(x, (14, 14), (8, 8)), torch_pool(x, (14, 14), (8, 8)), 1e-6)


@pytest.mark.gpu
def test_more_than_two_to_the_31_elements():
    x = torch.zeros(3, 2**20, 768, dtype=torch.bfloat16, device="cuda")
    x[2, -1] = 1
    out = fused_pooling.pool_tokens(x, (1024, 1024), (8, 8))
    assert (out[2, -1] == 2.0**-14).all()
    assert out.count_nonzero() == 768
    grad = fused_pooling._backward(out, (1024, 1024), (8, 8))
    assert (grad[2, -1] == 2.0**-28).all()
    assert (grad[2, -1 - 128] == 0).all()
