"""`contract_broadcast` over very many tokens, and over memory that 32 bits cannot count."""

from functools import partial
from importlib.util import find_spec

import pytest
import torch

from cbsa.ops import contract_broadcast
from tests import truth
from tests.compare import KERNEL_DEVICES, assert_close, relative_error, value_and_grads
from tests.streamed import Streamed

LENGTHS = [65_537, 262_145]
NAMES = ("output", "dw", "dreps", "dstep_rep", "dstep_out")
needs_triton = pytest.mark.skipif(
    find_spec("triton") is None,
    reason="needs Triton, which comes with PyTorch on Linux",
)


def make_inputs(batch, heads, n, m, d, device="cpu", dtype=torch.float32):
    """Inputs and a gradient of the output. Scores are a few units, so that some tokens matter more."""
    w = torch.randn(batch, n, heads, d, device=device).transpose(1, 2)  # as a projection leaves it
    reps = 2 * torch.randn(batch, heads, m, d, device=device)
    steps = torch.randn(2, heads, device=device).unbind()
    return [x.to(dtype) for x in (w, reps, *steps)], torch.randn_like(w).to(dtype)


def make_mask(batch, n, device):
    """Padding here and there, and a last third of nothing else: whole splits of the tokens are padding."""
    mask = torch.rand(batch, n, device=device) < 0.9
    mask[:, 2 * n // 3 :] = False
    return mask


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("contraction", ["softmax", "none"])
def test_the_streamed_truth_is_autograds(contraction, masked):
    inputs, grad = make_inputs(2, 3, 37, 5, 8, dtype=torch.float64)
    options = {"contraction": contraction, "mask": make_mask(2, 37, "cpu") if masked else None}
    expected = value_and_grads(partial(truth.contract_broadcast, **options), inputs, grad)
    streamed = Streamed(*inputs, grad, **options, chunk=10).results()
    for name, a, t in zip(NAMES, streamed, expected, strict=True):
        assert_close(a, t, 1e-12, name)


@pytest.mark.parametrize(("n", "masked"), [(LENGTHS[0], True), (LENGTHS[1], False)])
def test_long_sequences_in_float32(n, masked):
    inputs, grad = make_inputs(1, 2, n, 8, 16)
    mask = make_mask(1, n, "cpu") if masked else None
    expected = Streamed(*inputs, grad, mask=mask).results()
    for impl in ("reference", "sdpa"):
        actual = value_and_grads(partial(contract_broadcast, mask=mask, impl=impl), inputs, grad)
        for name, a, t in zip(NAMES, actual, expected, strict=True):
            # A step's gradient is one number, summed with cancellation.
            assert_close(a, t, 5e-5 if "step" in name else 1e-5, f"{name}, {impl}")


# In Triton's interpreter every block of tokens costs milliseconds: few of them, and one dtype.
KERNEL_CASES = [
    pytest.param(device, dtype, masked, id=f"{device}-{dtype}-{'padded' if masked else 'whole'}")
    for device in KERNEL_DEVICES
    for dtype in (torch.bfloat16, torch.float16, torch.float32)
    for masked in (False, True)
    if device == "cuda" or (dtype == torch.float16 and not masked)
]


@needs_triton
@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize(("device", "dtype", "masked"), KERNEL_CASES)
def test_kernels_over_long_sequences_are_as_good_as_plain_pytorch(device, dtype, masked, n):
    if device == "cpu" and n > 100_000:
        pytest.skip("takes a minute in Triton's interpreter; runs on a GPU")
    shape = (1, 6, n, 64, 64) if device == "cuda" else (1, 1, n, 16, 16)
    inputs, grad = make_inputs(*shape, device=device, dtype=dtype)
    mask = make_mask(1, n, device) if masked else None
    if mask is not None:
        mask[:, -1] = True
    ours, plain = (
        value_and_grads(partial(contract_broadcast, mask=mask, impl=impl), inputs, grad)
        for impl in ("triton", "reference")
    )
    expected = Streamed(*inputs, grad, mask=mask).results()
    # One draw: in float32 a step's gradient, a few numbers summed with cancellation, is a matter of luck.
    floor = torch.finfo(dtype).eps * (40 if dtype == torch.float32 else 1)
    for name, a, p, t in zip(NAMES, ours, plain, expected, strict=True):
        assert a.dtype == dtype
        assert_close(a, t, 2 * relative_error(p, t) + floor, f"{name} in {dtype}")
    for name, a, p, t in zip(NAMES[:2], ours, plain, expected, strict=False):  # the last block has one token
        a, p, t = (x[:, :, -1:] for x in (a, p, t))
        assert_close(a, t, 2 * relative_error(p, t) + 4 * floor, f"{name} of the last token in {dtype}")


@needs_triton
@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_long_runs_of_padding_in_the_kernels(device):
    """Whole blocks and whole splits see nothing but padding, before and after the real tokens."""
    inputs, grad = make_inputs(2, 1, 1500, 16, 16, device=device)
    mask = torch.zeros(2, 1500, dtype=torch.bool, device=device)
    mask[0, 1100:1200], mask[1, 3] = True, True
    actual = value_and_grads(partial(contract_broadcast, mask=mask, impl="triton"), inputs, grad)
    for name, a, t in zip(NAMES, actual, Streamed(*inputs, grad, mask=mask).results(), strict=True):
        assert_close(a, t, 1e-5, name)


# --- offsets of 64 bits ----------------------------------------------------------------------------------

FAR = {  # shape of w, strides of w and of the output's gradient, strides of reps (18 of them)
    "tokens": ((1, 2, 300, 16), (0, 16, 2**23, 1), (0, 16, 2**27, 1)),
    "tokens of a short sequence": ((1, 2, 70, 16), (0, 16, 2**25, 1), (0, 16, 2**27, 1)),
    "heads": ((1, 3, 300, 16), (0, 2**30, 16, 1), (0, 2**30, 16, 1)),
    "images": ((3, 1, 300, 16), (2**30, 0, 16, 1), (2**30, 0, 16, 1)),
}


@needs_triton
@pytest.mark.parametrize("far", FAR)
@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_elements_far_apart_in_memory(device, far):
    """The same bits as from adjacent ones: an offset of 32 bits would leave the memory, and end the process.

    Memory between the elements is reserved and, on a CPU, never touched.
    """
    shape, strides, rep_strides = FAR[far]
    batch, heads, n, d = shape
    (w, reps, *steps), grad = make_inputs(batch, heads, n, 18, d, device, torch.float16)
    last = [
        sum(s * (size - 1) for s, size in zip(stride, x.shape, strict=True))
        for x, stride in ((w, strides), (reps, rep_strides))
    ]
    assert min(last) >= 2**31
    try:
        memory = torch.empty(max(last) + 2**15, dtype=torch.float16, device=device)
    except RuntimeError as error:
        pytest.skip(f"needs 5 GB to reserve: {error}")

    def scatter(x, stride, offset):
        return memory.as_strided(x.shape, stride, offset).copy_(x)

    far_w, far_grad = scatter(w, strides, 0), scatter(grad, strides, 2**13)
    far_reps = scatter(reps, rep_strides, 2**14)
    run = partial(contract_broadcast, impl="triton")
    expected = value_and_grads(run, (w, reps, *steps), grad)
    actual = value_and_grads(run, (far_w, far_reps, *steps), far_grad)
    for name, a, t in zip(NAMES, actual, expected, strict=True):
        assert torch.equal(a, t), name


@needs_triton
@pytest.mark.gpu
def test_more_elements_than_32_bits_can_count():
    """Sums are dominated, and the output's gradient is given, by tokens that lie beyond 2³¹ elements."""
    free = torch.cuda.mem_get_info()[0] / 2**30
    if free < 60:
        pytest.skip(f"needs 60 GiB of free GPU memory, {free:.0f} are")
    check_beyond(first=2**24, n=2**24 + 2**16 + 3, m=64, d=64, device="cuda", dtype=torch.bfloat16)


def check_beyond(first, n, m, d, device, dtype):
    like = {"device": device, "dtype": dtype}
    w = torch.randn(1, n, 2, d, **like).transpose(1, 2)
    w[:, :, first:] += 1
    reps = 1 + torch.randn(1, 2, m, d, **like)  # scores there are higher by √d on average
    steps = (torch.tensor([0.5, -0.4], **like), torch.tensor([1.0, -0.7], **like))
    grad = torch.zeros(1, 2, n, d, **like)  # heads apart, unlike those of w
    grad[:, :, first:].normal_()
    inputs = (w, reps, *steps)
    out, grad_w, grad_reps, *_ = value_and_grads(partial(contract_broadcast, impl="triton"), inputs, grad)
    expected = Streamed(*inputs, grad, chunk=2**18)
    tolerance = 4 * torch.finfo(dtype).eps
    for tokens in (slice(n - 4096, n), slice(first - 100, first + 100)):
        assert_close(out[:, :, tokens], expected.output(tokens), tolerance, f"output of {tokens}")
        assert_close(grad_w[:, :, tokens], expected.grad_w(tokens), tolerance, f"dw of {tokens}")
    assert_close(grad_reps, expected.grad_reps, tolerance, "dreps")
