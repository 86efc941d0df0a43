"""Kernels beside the operator's on memory that 32 bits cannot count; for those, see test_long_sequences."""

from functools import partial

import pytest
import torch

from cbsa.ops import agent_attention, contract_broadcast_kv
from tests.adapt.test_operators import AGENT_NAMES, STAR_NAMES, agent_inputs, star_inputs
from tests.compare import KERNEL_DEVICES, value_and_grads

triton = pytest.importorskip("triton", reason="needs Triton, which comes with PyTorch on Linux")
import triton.language as tl  # noqa: E402

from cbsa.ops.kernels import batch_norm, pooling, stem  # noqa: E402
from tests.ops.test_fused_rates import head_coding_rates  # noqa: E402

DEVICE = KERNEL_DEVICES[0]


def places(kernel, size, *given):
    """What a kernel that writes offsets and whether they exist, (2, *size), wrote."""
    out = torch.full((2, *size), -1, dtype=torch.int64, device=DEVICE)
    kernel[(1,)](out, *given)
    return out.cpu()


@triton.jit
def write_pixels(out, block, blocks, count, first, COUT: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr):
    place, inside = stem.place_pixels(block, blocks, count, first, COUT, BP, BC)
    here = tl.arange(0, BP)[:, None] * BC + tl.arange(0, BC)[None, :]
    tl.store(out + here, place)
    tl.store(out + BP * BC + here, inside.to(tl.int64))


@pytest.mark.parametrize("image", [0, 3])
@pytest.mark.parametrize("side", [6_700, 8_192, 50_000])  # output pixels; CBT-S passes 2³¹ numbers at 6,689
def test_pixels_of_large_maps(side, image):
    """The last two blocks of an image of side² pixels, with 48 channels of which the last block has 16."""
    count, channels, size = side * side, 48, (128, 16)
    blocks = -(-count // size[0])
    for block in (blocks - 2, blocks - 1):
        place, inside = places(write_pixels, size, image * blocks + block, blocks, count, 32, channels, *size)
        pixels = block * size[0] + torch.arange(size[0])[:, None]
        assert torch.equal(place, (image * count + pixels) * channels + 32 + torch.arange(size[1]))
        assert torch.equal(inside.bool(), (pixels < count).expand(size))


@triton.jit
def write_windows(
    out, x, block, blocks, side, BP: tl.constexpr, BK: tl.constexpr
):  # an image of one number: every window is 9 times it, or less at the border
    windows = stem.load_windows(x, block, blocks, 2 * side, 2 * side, side, side, 0, 0, 0, 0, 1, BP, BK, True)
    here = tl.arange(0, BP)[:, None] * BK + tl.arange(0, BK)[None, :]
    tl.store(out + here, windows.to(tl.int64))


def test_windows_of_more_pixels_than_32_bits_count():
    side, size = 50_000, (128, 16)
    blocks = -(-side * side // size[0])
    x = torch.full((1,), 3.0, device=DEVICE)
    windows = places(write_windows, size, x, blocks - 1, blocks, side, *size)[0]
    last = side * side - (blocks - 1) * size[0]  # pixels of the last block that exist
    assert torch.equal(windows[:last, :9], torch.full((last, 9), 3))
    assert torch.equal(windows[:, 9], (torch.arange(size[0]) < last).long())
    assert not windows[last:].any()


@triton.jit
def write_rows(out, row, end, C: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr):
    place, inside = batch_norm.block_of(row, end, C, BR, BC)
    here = tl.arange(0, BR)[:, None] * BC + tl.arange(0, BC)[None, :]
    tl.store(out + here, place)
    tl.store(out + BR * BC + here, tl.broadcast_to(inside, (BR, BC)).to(tl.int64))


def test_rows_of_large_maps():
    row, size = 8_192 * 8_192, (32, 16)
    place, inside = places(write_rows, size, row, row + 5, 48, *size)
    assert torch.equal(place, (row + torch.arange(size[0])[:, None]) * 48 + torch.arange(size[1]))
    assert torch.equal(inside.bool(), (torch.arange(size[0]) < 5)[:, None].expand(size))


# --- strides that lead beyond 2³¹ elements, through memory that is reserved and never touched --------------


@pytest.fixture(scope="module")
def memory():
    try:
        return torch.empty(2**31 + 2**30 + 2**16, dtype=torch.float16, device=DEVICE)
    except RuntimeError as error:
        pytest.skip(f"needs 7 GB to reserve: {error}")


def scatter(memory, tensors, strides):
    """The same tensors far apart in memory, one after the other within 2¹³ numbers."""
    return [memory.as_strided(x.shape, strides, i << 13).copy_(x) for i, x in enumerate(tensors)]


FAR = {  # shape (B, H, N, d), and strides
    "tokens": ((1, 2, 70, 16), (0, 16, 2**25, 1)),
    "heads": ((1, 4, 70, 16), (0, 2**30, 16, 1)),
    "images": ((4, 1, 70, 16), (2**30, 0, 16, 1)),
}


@pytest.mark.parametrize("far", FAR)
@pytest.mark.parametrize("operator", ["star", "agent"])
def test_queries_keys_and_values_far_apart(memory, operator, far):
    (batch, heads, n, d), strides = FAR[far]
    run, draw, names = {
        "star": (contract_broadcast_kv, star_inputs, STAR_NAMES),
        "agent": (agent_attention, agent_inputs, AGENT_NAMES),
    }[operator]
    inputs = draw(batch, heads, n, 18, d, device=DEVICE, dtype=torch.float16)
    of_tokens = [i for i, x in enumerate(inputs) if x.shape == (batch, heads, n, d)]
    weight = torch.randn_like(inputs[of_tokens[0]])
    *moved, far_weight = scatter(memory, [*(inputs[i] for i in of_tokens), weight], strides)
    far_inputs = list(inputs)
    for i, x in zip(of_tokens, moved, strict=True):
        far_inputs[i] = x
    run = partial(run, impl="triton")
    expected = value_and_grads(run, inputs, weight)
    for name, a, t in zip(
        ["output", *names], value_and_grads(run, far_inputs, far_weight), expected, strict=True
    ):
        assert torch.equal(a, t), name


@pytest.mark.parametrize("far", FAR)
def test_pooling_and_rates_of_tokens_far_apart(memory, far):
    shape, strides = FAR[far]
    w = torch.randn(shape, dtype=torch.float16, device=DEVICE)
    (far_w,) = scatter(memory, [w], strides)
    near, distant = (torch.zeros(shape[0], 6, shape[1] * shape[3], device=DEVICE) for _ in range(2))
    for tokens, out in ((w, near), (far_w, distant)):
        pooling.run(tokens.transpose(1, 2), out, (7, 10), (3, 2), spread=False)
    assert near.any()
    assert torch.equal(distant, near)
    rates = partial(head_coding_rates, eps=0.1)
    assert torch.equal(rates(far_w), rates(w))
