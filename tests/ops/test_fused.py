"""The Triton kernels: on a GPU, and everywhere else in Triton's interpreter."""

from functools import partial

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from cbsa.ops import contract_broadcast
from tests import truth
from tests.compare import (
    KERNEL_DEVICES,
    KERNEL_DRAWS,
    assert_as_good_as,
    assert_close,
    assert_written_and_repeatable,
    value_and_grads,
)

pytest.importorskip("triton", reason="needs Triton, which comes with PyTorch on Linux")
from cbsa.ops import fused
from cbsa.ops.kernels import gpu, launch

NAMES = ("dw", "dreps", "dstep_rep", "dstep_out")
# (B, H, N, m, d)
FEW = [
    (2, 2, 33, 7, 10),  # odd everywhere
    (1, 1, 1, 16, 8),  # one token
    (1, 2, 130, 16, 16),  # more than one split, the last one short
    (1, 1, 128, 64, 64),  # whole blocks everywhere
    (1, 1, 65, 64, 100),  # a head of 100 dimensions
    (2, 3, 70, 20, 12),  # several images and heads
]
MANY = [
    (1, 1, 100, 100, 24),  # two blocks of representatives, the second one short
    (1, 1, 40, 130, 32),  # more representatives than tokens
]
HALF = [*FEW[:3], MANY[0]]  # those that Triton's interpreter tries in float16 too
# One program a head in one launch or in two passes, tokens split over programs, and many such splits.
REGIMES = ["whole", "passes", "split", "splits"]
run = partial(contract_broadcast, impl="triton")


@pytest.fixture
def regime(request, monkeypatch):
    """Force a way to launch the kernels; many representatives are always split."""
    whole = request.param in ("whole", "passes")
    monkeypatch.setattr(launch, "is_whole", lambda w, m: whole and not launch.in_blocks(w, m))
    if request.param == "passes":
        monkeypatch.setattr(launch, "_FEW_TOKENS", 0)
    if request.param == "splits":
        monkeypatch.setattr(launch, "_FEW_SPLITS", 0)
    return request.param


def make_inputs(batch, heads, n, m, d, device=KERNEL_DEVICES[0], dtype=torch.float32):
    w = torch.randn(batch, n, heads, d, device=device).transpose(1, 2)  # as a projection leaves it
    reps = torch.randn(batch, m, heads, d, device=device).transpose(1, 2)
    steps = torch.randn(2, heads, device=device).unbind()
    return [x.to(dtype) for x in (w, reps, *steps)]


def kinds(shape):
    """Where and in which dtypes to try a shape.

    The interpreter multiplies bfloat16 wrongly in some releases of Triton, and float16 takes the same code as
    float32 but for rounding: there it is for the smaller shapes.
    """
    halves = [torch.float16, torch.bfloat16] if KERNEL_DEVICES == ["cuda"] else [torch.float16]
    dtypes = [torch.float32, *(halves if KERNEL_DEVICES == ["cuda"] or shape in HALF else [])]
    return [(KERNEL_DEVICES[0], dtype) for dtype in dtypes]


PROBLEMS = [
    pytest.param(
        regime, shape, contraction, masked, device, dtype,
        id=f"{regime}-{shape}-{contraction}-{padding}-{device}-{dtype}",
    )
    for regime in REGIMES
    # many representatives are always split, and never put together on the way
    for shape in (FEW + MANY if regime == "split" else FEW)
    for contraction, masked, padding in [
        ("softmax", False, "whole"),
        ("softmax", True, "padded"),
        ("none", True, "padded"),
    ]
    if regime in ("whole", "split") or contraction == "softmax"
    for device, dtype in kinds(shape)
]  # fmt: skip


@pytest.mark.parametrize(
    ("regime", "shape", "contraction", "masked", "device", "dtype"), PROBLEMS, indirect=["regime"]
)
def test_value_and_every_gradient_are_as_good_as_plain_pytorch(
    regime, shape, contraction, masked, device, dtype
):
    options = {"contraction": contraction, "mask": None}
    if masked:
        options["mask"] = torch.rand(shape[0], shape[2], device=device) < 0.7
        options["mask"][:, 0] = True
    assert_as_good_as(
        partial(run, **options),
        partial(truth.listing, **options),
        partial(truth.contract_broadcast, **options),
        partial(make_inputs, *shape, device=device),
        dtype,
        NAMES,
        # A step's gradient is one number, summed with cancellation in another order than PyTorch's: over many
        # draws the errors are alike (4e-7 and 6e-7), in one either may be several times the other. On a GPU
        # float32 is three TF32 products, of wide heads in blocks.
        floor_ulps=(40 if shape[-1] > 64 else 20) if dtype == torch.float32 else 0.5,
        # With one head and many representatives it is luck over two draws as well.
        draws=3 * KERNEL_DRAWS if shape in MANY else KERNEL_DRAWS,
    )


@pytest.mark.parametrize("regime", ["passes", "split"], indirect=True)
@pytest.mark.parametrize("device", KERNEL_DEVICES)
@pytest.mark.parametrize("programs", [2, 4, 7])
def test_programs_that_begin_in_one_head_and_end_in_another(regime, device, programs, monkeypatch):
    """Five blocks of tokens in each of three heads, dealt out over a few programs."""
    launches = (launch.TUNED["spread"][0]._replace(block=64, programs=1),)
    monkeypatch.setitem(launch.TUNED, "spread", launches)
    monkeypatch.setattr(gpu, "find_gpu", lambda _: gpu.STAND_IN._replace(processors=programs))
    inputs = make_inputs(1, 3, 280, 8, 8, device)
    weight = torch.randn_like(inputs[0])
    exact = value_and_grads(truth.contract_broadcast, [x.double() for x in inputs], weight.double())
    for a, b in zip(value_and_grads(run, inputs, weight), exact, strict=True):
        assert_close(a, b, 1e-5)


@pytest.mark.parametrize(
    ("m", "regime"), [*((37, regime) for regime in REGIMES), (70, "split")], indirect=["regime"]
)  # within a block, and in more than one, which are always split
@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_every_element_is_written_and_the_same_every_time(m, regime, device):
    """Sizes fill no block."""
    inputs = make_inputs(2, 1, 131, m, 20, device)
    assert_written_and_repeatable(run, inputs, torch.randn_like(inputs[0]))


@pytest.mark.parametrize("device", KERNEL_DEVICES)
@pytest.mark.parametrize(("n", "m", "d"), [(70, 256, 128), (300, 257, 64), (40, 20, 127)])
def test_the_largest_heads_and_many_representatives(n, m, d, device):
    """The promised limits, and one beyond a power of two."""
    inputs = make_inputs(1, 1, n, m, d, device)
    weight = torch.randn_like(inputs[0])
    exact = value_and_grads(truth.contract_broadcast, [x.double() for x in inputs], weight.double())
    for name, a, b in zip(("output", *NAMES), value_and_grads(run, inputs, weight), exact, strict=True):
        assert_close(a, b, 2e-5, name)


@pytest.mark.parametrize("regime", REGIMES, indirect=True)
@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_padding_never_matters(regime, device):
    """NaN in it does not spread, its output and gradient are 0; also where there is nothing but padding."""
    inputs = make_inputs(2, 2, 90, 16, 16, device)
    mask = torch.arange(90, device=device) < torch.tensor([[50], [0]], device=device)
    inputs[0] = inputs[0].masked_fill(~mask[:, None, :, None], float("nan"))
    out, *grads = value_and_grads(partial(run, mask=mask), inputs, torch.randn(2, 2, 90, 16, device=device))
    for result in (out, grads[0]):
        assert (result.transpose(1, 2)[~mask] == 0).all()
    assert all(grad.isfinite().all() for grad in grads)
    alone = [inputs[0][:1, :, :50], inputs[1][:1], *inputs[2:]]
    assert_close(out[:1, :, :50], truth.contract_broadcast(*[x.double() for x in alone]), 1e-5)


@pytest.mark.parametrize("zero", [2, 3])
def test_steps_of_zero(zero):
    inputs = make_inputs(1, 2, 40, 16, 16)
    inputs[zero] = torch.zeros_like(inputs[zero])
    weight = torch.randn_like(inputs[0])
    wide = [x.double() for x in inputs]
    expected = value_and_grads(truth.contract_broadcast, wide, weight.double())
    for name, a, t in zip(("output", *NAMES), value_and_grads(run, inputs, weight), expected, strict=True):
        assert_close(a, t, 1e-5, name)


def test_any_strides():
    w, reps, *steps = make_inputs(2, 3, 50, 16, 12)
    expected = run(w, reps, *steps)
    laid_out = [w.contiguous(), w.mT.contiguous().mT, torch.cat([w, w], -1)[..., :12]]
    for other in laid_out:
        assert torch.equal(run(other, reps.contiguous(), *steps), expected)
    assert expected.transpose(1, 2).is_contiguous()  # heads of a token are adjacent: merging them is free


@pytest.mark.parametrize("regime", ["whole", "split"], indirect=True)
def test_steps_of_any_strides(regime):
    """One step for all heads, expanded, and every other number of a tensor."""
    w, reps, *_ = make_inputs(1, 3, 20, 16, 8)
    one, numbers = torch.randn(2, 6, device=w.device)
    weight = torch.randn_like(w)
    for steps in ([one[:1].expand(3), numbers[:3].flip(0)], [numbers[::2], one[1::2]]):
        exact = value_and_grads(
            truth.contract_broadcast, [x.double() for x in (w, reps, *steps)], weight.double()
        )
        for name, a, t in zip(
            ("output", *NAMES), value_and_grads(run, (w, reps, *steps), weight), exact, strict=True
        ):
            assert_close(a, t, 1e-5, name)


def test_detached_representatives_get_no_gradient():
    """The stop-gradient of eq. cross-attn: other gradients are as they were."""
    w, reps, *steps = (x.requires_grad_() for x in make_inputs(1, 2, 40, 16, 16))
    out = run(w, reps, *steps)
    full = torch.autograd.grad(out.square().sum(), (w, *steps))
    stopped = torch.autograd.grad(run(w, reps.detach(), *steps).square().sum(), (w, *steps))
    assert all(torch.equal(a, b) for a, b in zip(full, stopped, strict=True))


def test_an_empty_batch():
    inputs = make_inputs(0, 2, 10, 16, 16)
    out, *grads = value_and_grads(run, inputs, torch.empty_like(inputs[0]))
    assert out.shape == (0, 2, 10, 16)
    assert [g.shape for g in grads] == [x.shape for x in inputs]
    assert not any(g.any() for g in grads)


@pytest.mark.parametrize("masked", [False, True])
def test_the_operators_are_well_formed(masked):
    inputs = [x.requires_grad_() for x in make_inputs(1, 2, 20, 16, 16)]
    mask = torch.rand(1, 20, device=KERNEL_DEVICES[0]) < 0.7 if masked else None
    tests = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_static")
    for keep in (False, True):
        torch.library.opcheck(fused._forward, (*inputs, mask, 0.25, True, keep), test_utils=tests)


@pytest.mark.parametrize("contraction", ["softmax", "none"])
def test_flops_are_counted_like_the_references(contraction):
    inputs = make_inputs(2, 2, 20, 16, 8)
    counts = []
    for impl in ("triton", "reference"):
        with FlopCounterMode(display=False) as counter:
            call = partial(contract_broadcast, impl=impl, contraction=contraction)
            value_and_grads(call, inputs, inputs[0])
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_compiles_into_one_graph(device):
    inputs = make_inputs(1, 2, 40, 16, 16, device)
    weight = torch.randn_like(inputs[0])
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    for a, b in zip(
        value_and_grads(compiled, inputs, weight), value_and_grads(run, inputs, weight), strict=True
    ):
        assert_close(a, b, 1e-6)


@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_autocast(device):
    inputs = make_inputs(1, 2, 40, 16, 16, device)
    with torch.autocast(device, torch.float16):
        out, *grads = value_and_grads(run, inputs, torch.randn_like(inputs[0]))
    assert out.dtype == torch.float16
    assert all(g.dtype == torch.float32 for g in grads)
    assert_close(out, truth.contract_broadcast(*[x.double() for x in inputs]), 5e-3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"contraction": "exact"}, "impl='triton' has no contraction='exact'"),
        ({"dtype": torch.float64}, r"impl='triton' does not support torch\.float64"),
        ({"scale": -1.0}, r"needs a scale above 0, not -1\.0"),
        ({"d": 130}, "heads of up to 128 dimensions, not 130"),
    ],
)
def test_what_it_cannot_do_is_refused(changes, message):
    inputs = make_inputs(1, 1, 20, 16, changes.get("d", 16), dtype=changes.get("dtype", torch.float32))
    with pytest.raises(ValueError, match=message):
        run(*inputs, contraction=changes.get("contraction", "softmax"), scale=changes.get("scale"))


@pytest.mark.parametrize(
    ("kilobytes", "d", "dtype", "reps"),
    [
        (227, 64, torch.bfloat16, 64),
        (227, 128, torch.bfloat16, 64),
        (163, 128, torch.bfloat16, 64),  # A100
        (99, 64, torch.bfloat16, 64),  # L4, RTX 4090
        (99, 128, torch.bfloat16, 32),
        (227, 64, torch.float32, 64),
        (163, 64, torch.float32, 32),
        (227, 128, torch.float32, 32),
        (163, 128, torch.float32, None),
        (99, 128, torch.float32, None),
    ],
)
def test_blocks_fit_the_shared_memory_of_the_gpu(kilobytes, d, dtype, reps, monkeypatch):
    """Blocks of representatives, or None where there is no way (benchmarks/compile_kernels.py tells)."""
    chip = gpu.STAND_IN._replace(shared_memory=kilobytes << 10)
    monkeypatch.setattr(gpu, "find_gpu", lambda _: chip)
    monkeypatch.setattr(gpu, "INTERPRETED", True)
    w = torch.empty(1, 1, 5, d, dtype=dtype)
    assert launch.fits(w) is (reps is not None)
    if reps is None:
        assert "too little shared memory" in fused.why_not(w, 1.0, "softmax")
    else:
        assert fused.why_not(w, 1.0, "softmax") is None
        assert (
            launch.Problem(w, None, torch.empty(1, 1, 300, d, dtype=dtype), None, 1.0, True).rows["BM"]
            == reps
        )
        assert launch.in_blocks(w, reps + 1)
        assert not launch.in_blocks(w, reps)
