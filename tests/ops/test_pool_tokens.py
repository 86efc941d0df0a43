"""`pool_tokens` against PyTorch's adaptive pooling, closed forms, and the image without its padding."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from cbsa.ops import pool_tokens
from tests.compare import DEVICES, HALF_DTYPES, assert_as_good_as, assert_close, value_and_grads

TORCH_POOL = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}


def torch_pool(x, grid, size):
    """The same by PyTorch's own operator, channels first."""
    maps = x.transpose(1, 2).reshape(x.shape[0], x.shape[2], *grid)
    return TORCH_POOL[len(grid)](maps, size).flatten(2).transpose(1, 2)


@st.composite
def geometries(draw):
    rank = draw(st.integers(1, 3))
    side = st.integers(1, (90, 14, 6)[rank - 1])  # along one axis also more windows than a matrix is made for
    grid = tuple(draw(side) for _ in range(rank))
    size = tuple(draw(side) for _ in range(rank))
    return draw(st.integers(1, 3)), grid, size, draw(st.integers(1, 5)), draw(st.integers(0, 2**31))


@pytest.mark.parametrize("device", DEVICES)
@given(geometry=geometries())
def test_windows_are_those_of_adaptive_pooling(device, geometry):
    batch, grid, size, channels, seed = geometry
    torch.manual_seed(seed)
    x = torch.randn(batch, math.prod(grid), channels, dtype=torch.float64, device=device)
    weight = torch.randn(batch, math.prod(size), channels, dtype=torch.float64, device=device)
    actual = value_and_grads(lambda t: pool_tokens(t, grid, size), [x], weight)
    expected = value_and_grads(lambda t: torch_pool(t, grid, size), [x], weight)
    for a, t in zip(actual, expected, strict=True):
        assert_close(a, t, 1e-12)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, *HALF_DTYPES], ids=str)
@pytest.mark.parametrize("grid", [(14, 14), (3, 40), (24,), (200,), (4, 6, 9)])
def test_low_precision_is_as_good_as_plain_pytorch(dtype, grid, device):
    size = (64,) if grid == (200,) else tuple(min(8, 1 + n // 2) for n in grid)
    assert_as_good_as(
        lambda x: pool_tokens(x, grid, size),
        lambda x: torch_pool(x, grid, size),
        lambda x: torch_pool(x, grid, size),
        lambda: [1 + torch.randn(3, math.prod(grid), 16, device=device)],
        dtype,
        ["dx"],
    )


def test_float16_sums_of_many_tokens_stay_in_range():
    x = torch.full((1, 512 * 512, 1), 60.0, dtype=torch.float16)
    assert (pool_tokens(x, (512, 512), (2, 2)) == 60).all()
    assert (pool_tokens(x, (1, 512 * 512), (1, 1)) == 60).all()
    assert (pool_tokens(x, 512 * 512, 1) == 60).all()
    assert (pool_tokens(x, 512 * 512, 64) == 60).all()


@pytest.mark.parametrize("windows", [3, 40])
@pytest.mark.parametrize(("grid", "real"), [((9, 12), (5, 7)), ((80,), (61,)), ((4, 5, 6), (2, 4, 3))])
def test_padding_an_image_leaves_its_pooled_tokens_as_they_are(grid, real, windows):
    size, channels = (windows, *(2 for _ in grid[1:])), 4
    image = torch.randn(2, *real, channels, dtype=torch.float64)
    padded = torch.full((2, *grid, channels), torch.nan, dtype=torch.float64)
    mask = torch.zeros(2, *grid, dtype=torch.bool)
    corner = (slice(None), *(slice(1, 1 + n) for n in real))  # padding on all sides
    padded[corner], mask[corner] = image, True
    tokens, weight = padded.flatten(1, -2), torch.randn(2, math.prod(size), channels, dtype=torch.float64)
    out, grad = value_and_grads(lambda t: pool_tokens(t, grid, size, mask.flatten(1)), [tokens], weight)
    expected, expected_grad = value_and_grads(
        lambda t: pool_tokens(t.flatten(1, -2), real, size), [image], weight
    )
    assert_close(out, expected, 1e-12)
    assert_close(grad.reshape(padded.shape)[corner], expected_grad, 1e-12)
    assert (grad.reshape(padded.shape)[~mask] == 0).all()


def test_holes_are_left_out_of_the_averages():
    x = torch.arange(16, dtype=torch.float64).reshape(1, 16, 1)
    mask = torch.ones(1, 16, dtype=torch.bool)
    mask[0, [0, 10]] = False
    pooled = pool_tokens(x, (4, 4), (2, 2), mask)
    assert_close(
        pooled.flatten(),
        torch.tensor([(1 + 4 + 5) / 3, 4.5, 10.5, (11 + 14 + 15) / 3], dtype=torch.float64),
        1e-12,
    )


@pytest.mark.parametrize("windows", [2, 40])
def test_nothing_but_padding_gives_zero(windows):
    x = torch.full((2, 6, 3), torch.nan, requires_grad=True)
    out = pool_tokens(x, (2, 3), (windows, 2), torch.zeros(2, 6, dtype=torch.bool))
    out.sum().backward()
    assert (out == 0).all()
    assert (x.grad == 0).all()


def test_empty_batch():
    x = torch.zeros(0, 6, 3, requires_grad=True)
    out = pool_tokens(x, (2, 3), (2, 2))
    out.sum().backward()
    assert out.shape == (0, 4, 3)
    assert x.grad.shape == x.shape


def test_any_strides():
    x = torch.randn(2, 4, 30, dtype=torch.float64).transpose(1, 2)
    assert_close(pool_tokens(x, (5, 6), (2, 4)), pool_tokens(x.contiguous(), (5, 6), (2, 4)), 1e-12)
    with_prefix = torch.cat([torch.randn(2, 3, 4, dtype=torch.float64), x], 1)
    assert_close(pool_tokens(with_prefix[:, 3:], (5, 6), (2, 4)), pool_tokens(x, (5, 6), (2, 4)), 1e-12)


def test_autocast_leaves_float32_alone():
    x = torch.randn(2, 30, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = pool_tokens(x, (5, 6), (2, 4))
    assert torch.equal(actual, pool_tokens(x, (5, 6), (2, 4)))


def test_exports_with_a_dynamic_grid():
    """Grids smaller and larger than the traced one, also across the number of windows."""

    class Pool(torch.nn.Module):
        def forward(self, maps):
            return pool_tokens(maps.flatten(2).transpose(1, 2), (maps.shape[2], maps.shape[3]), (8, 8))

    h, w = torch.export.Dim("h", min=2, max=100), torch.export.Dim("w", min=2, max=100)
    program = torch.export.export(Pool(), (torch.randn(2, 4, 14, 13),), dynamic_shapes=({2: h, 3: w},))
    for grid in [(14, 13), (5, 7), (9, 31), (60, 8)]:
        maps = torch.randn(2, 4, *grid)
        expected = F.adaptive_avg_pool2d(maps, (8, 8)).flatten(2).transpose(1, 2)
        assert_close(program.module()(maps), expected, 1e-6)


def test_compiles_into_one_graph():
    compiled = torch.compile(pool_tokens, fullgraph=True, backend="aot_eager")
    for grid in [(5, 6), (7, 4), (9, 9)]:
        x = torch.randn(2, math.prod(grid), 3)
        mask = torch.rand(2, math.prod(grid)) < 0.7
        assert_close(compiled(x, grid, (2, 4)), pool_tokens(x, grid, (2, 4)), 1e-6)
        assert_close(compiled(x, grid, (2, 4), mask), pool_tokens(x, grid, (2, 4), mask), 1e-6)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((torch.randn(2, 30), (5, 6), (2, 2)), ValueError, r"x must have shape \(B, N, C\) .*\(2, 30\)"),
        ((torch.randn(2, 31, 3), (5, 6), (2, 2)), ValueError, r"grid=\(5, 6\) holds 30 tokens.*are 31"),
        (
            (torch.randn(2, 30, 3), (5, 6), (4,)),
            ValueError,
            r"grid=\(5, 6\) and size=\(4,\) must have",
        ),
        ((torch.randn(2, 30, 3), (5, 6), (0, 2)), ValueError, r"size\[0\] must be at least 1, got 0"),
        ((torch.randn(2, 30, 3), (5, 6.0), (2, 2)), TypeError, r"grid\[1\] must be an integer, got 6.0"),
        ((torch.randn(2, 30, 3), "56", (2, 2)), TypeError, "grid must be an integer or a non-empty sequence"),
        (
            (torch.ones(2, 30, 3).long(), (5, 6), (2, 2)),
            TypeError,
            "x must be of a real floating-point dtype",
        ),
        (
            (torch.randn(2, 30, 3), (5, 6), (2, 2), torch.ones(2, 5).bool()),
            ValueError,
            r"\(2, 30\), got \(2, 5\)",
        ),
    ],
)
def test_bad_input_is_named(arguments, error, message):
    with pytest.raises(error, match=message):
        pool_tokens(*arguments)
