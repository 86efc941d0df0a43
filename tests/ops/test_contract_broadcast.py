"""`contract_broadcast` against the paper's equation, autograd and plain PyTorch."""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from cbsa.ops import contract_broadcast
from tests import truth
from tests.compare import (
    DEVICES,
    HALF_DTYPES,
    assert_as_good_as,
    assert_close,
    relative_error,
    value_and_grads,
)

IMPLS = ["reference", "sdpa"]
CONTRACTIONS = ["softmax", "exact", "none"]
NAMES = ["dw", "dreps", "dstep_rep", "dstep_out"]


def make_inputs(batch, heads, n, m, d, dtype=torch.float64, device="cpu", magnitude=1.0):
    """Token-major w, as a projection produces it: strided, not contiguous."""
    w = magnitude * torch.randn(batch, n, heads, d, dtype=dtype, device=device).transpose(1, 2)
    reps = magnitude * torch.randn(batch, heads, m, d, dtype=dtype, device=device)
    return w, reps, *(torch.randn(2, heads, dtype=dtype, device=device).unbind())


def make_mask(batch, n, device="cpu"):
    """Random padding; element 0 is all padding, the last one none."""
    mask = torch.rand(batch, n, device=device) < 0.6
    if batch:
        mask[0], mask[-1] = False, True
    return mask


@st.composite
def geometries(draw):
    batch, heads = draw(st.integers(0, 3)), draw(st.integers(1, 3))
    n, m, d = draw(st.integers(1, 40)), draw(st.integers(1, 12)), draw(st.integers(1, 9))
    return (batch, heads, n, m, d), draw(st.booleans()), draw(st.integers(0, 2**31))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("contraction", CONTRACTIONS)
@given(geometry=geometries())
def test_value_and_every_gradient_are_the_papers(impl, contraction, device, geometry):
    shape, masked, seed = geometry
    torch.manual_seed(seed)
    inputs = make_inputs(*shape, device=device)
    options = {"mask": make_mask(shape[0], shape[2], device) if masked else None, "contraction": contraction}
    weight = torch.randn_like(inputs[0])
    expected = value_and_grads(partial(truth.contract_broadcast, **options), inputs, weight)
    actual = value_and_grads(partial(contract_broadcast, impl=impl, **options), inputs, weight)
    for name, a, t in zip(["output", *NAMES], actual, expected, strict=True):
        # Gradients through the exact contraction are tiny beside the intermediate values: 1e-10 of those.
        assert relative_error(a, t) < 1e-10 or (a - t).abs().max() < 1e-10, name


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("contraction", CONTRACTIONS)
@pytest.mark.parametrize("m", [3, 8])  # fewer and more representatives than channels
def test_gradcheck(impl, contraction, m):
    inputs = [x.requires_grad_() for x in make_inputs(2, 2, 6, m, 4)]
    mask = torch.tensor([[True] * 6, [True, True, False, True, False, False]])
    options = {"impl": impl, "contraction": contraction, "eps": 1.0, "mask": mask}
    assert torch.autograd.gradcheck(partial(contract_broadcast, **options), inputs)


@pytest.mark.parametrize("contraction", CONTRACTIONS)
def test_reference_is_twice_differentiable(contraction):
    inputs = [x.requires_grad_() for x in make_inputs(1, 2, 4, 3, 2)]
    function = partial(contract_broadcast, impl="reference", contraction=contraction, eps=1.0)
    assert torch.autograd.gradgradcheck(function, inputs)


def test_sdpa_refuses_a_second_derivative_clearly():
    inputs = [x.requires_grad_() for x in make_inputs(1, 2, 4, 3, 2)]
    out = contract_broadcast(*inputs, impl="sdpa")
    (grad,) = torch.autograd.grad(out.sum(), inputs[0], create_graph=True)
    with pytest.raises(NotImplementedError, match='no second derivative; use impl="reference"'):
        grad.sum().backward()


@pytest.mark.parametrize("n", [20, 300_000])  # auto takes the reference for one, the fused form for the other
def test_forward_mode_is_right_or_refused(n):
    w, reps, *steps = make_inputs(1, 1, n, 3, 8)
    tangent = torch.randn_like(w)

    def function(x, impl):
        return contract_broadcast(x, reps, *steps, impl=impl)

    step = 1e-6
    expected = (function(w + step * tangent, "reference") - function(w - step * tangent, "reference")) / (
        2 * step
    )
    for impl in ("reference", "auto"):
        assert_close(torch.func.jvp(partial(function, impl=impl), (w,), (tangent,))[1], expected, 1e-6)
        with forward_ad.dual_level():
            dual = function(forward_ad.make_dual(w, tangent), impl)
            assert_close(forward_ad.unpack_dual(dual).tangent, expected, 1e-6)
    with pytest.raises(ValueError, match="impl='sdpa' supports neither forward-mode"):
        torch.func.jvp(partial(function, impl="sdpa"), (w,), (tangent,))
    with forward_ad.dual_level(), pytest.raises(ValueError, match="use impl='reference'"):
        function(forward_ad.make_dual(w, tangent), "sdpa")


@pytest.mark.parametrize("impl", ["reference", "auto"])
def test_torch_func_transforms(impl):
    inputs = make_inputs(3, 2, 7, 4, 5)
    function = partial(contract_broadcast, impl=impl)
    w, reps, *steps = inputs
    one_by_one = torch.cat([function(w[i : i + 1], reps[i : i + 1], *steps) for i in range(3)])
    batched = torch.func.vmap(lambda x, q: function(x[None], q[None], *steps)[0])(w, reps)
    assert_close(batched, one_by_one, 1e-12)

    def loss(w, q, a, b):
        return function(w, q, a, b).square().sum()

    grads = torch.func.grad(loss, argnums=(0, 1, 2, 3))(*inputs)
    leaves = [x.detach().requires_grad_() for x in inputs]
    for a, t in zip(grads, torch.autograd.grad(loss(*leaves), leaves), strict=True):
        assert_close(a, t, 1e-12)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("contraction", ["softmax", "none"])
@pytest.mark.parametrize("shape", [(2, 3, 197, 64, 64), (1, 2, 33, 7, 10), (2, 1, 5, 16, 100)])
@pytest.mark.parametrize("dtype", [torch.float32, *HALF_DTYPES], ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_low_precision_is_as_good_as_plain_pytorch(masked, dtype, shape, contraction, impl, device):
    options = {"contraction": contraction, "mask": None}
    if masked:
        options["mask"] = torch.rand(shape[0], shape[2], device=device) < 0.7
        options["mask"][:, 0] = True
    assert_as_good_as(
        partial(contract_broadcast, impl=impl, **options),
        partial(truth.listing, **options),
        partial(truth.contract_broadcast, **options),
        partial(make_inputs, *shape, device=device),
        dtype,
        NAMES,
        # PyTorch's fused kernels approximate the exponential in float32, on the CPU to within 20 ulp; on an
        # H200 a step's gradient, one number summed with cancellation, was off by up to 55.
        floor_ulps={"cpu": 20, "cuda": 40}[device] if (dtype, impl) == (torch.float32, "sdpa") else 0.5,
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("dtype", [torch.float32, *HALF_DTYPES], ids=str)
def test_low_precision_exact_contraction(dtype, impl, device):
    """It is solved in float64: only the rounding of its operands is left."""
    inputs = [x.to(dtype) for x in make_inputs(2, 3, 50, 12, 8, device=device)]
    options, weight = {"contraction": "exact", "eps": 1.0}, torch.randn_like(inputs[0])
    wide = [x.double() for x in inputs]
    expected = value_and_grads(partial(truth.contract_broadcast, **options), wide, weight.double())
    actual = value_and_grads(partial(contract_broadcast, impl=impl, **options), inputs, weight)
    for name, a, t in zip(["output", *NAMES], actual, expected, strict=True):
        assert_close(a, t, 16 * torch.finfo(dtype).eps, name)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("dtype", [torch.float32, *HALF_DTYPES], ids=str)
def test_representatives_of_very_different_norms_do_not_overflow(dtype, impl, device):
    """Log-sum-exps then spread over far more than float16 can exponentiate."""
    w, reps, step_rep, step_out = make_inputs(1, 2, 64, 8, 16, device=device)
    reps = reps * torch.logspace(-2, 1.5, 8, device=device, dtype=reps.dtype)[:, None]
    inputs = [x.to(dtype) for x in (w, reps, step_rep, step_out)]
    expected = truth.contract_broadcast(*[x.double() for x in inputs])
    plain = relative_error(truth.listing(*inputs), expected)
    # The fused form keeps the log-sum-exps in float32: their rounding is relative to the largest score.
    rounding = torch.finfo(torch.float32).eps * (reps @ w.mT).abs().max().item() / 4
    assert_close(contract_broadcast(*inputs, impl=impl), expected, 2 * plain + rounding)


@pytest.mark.parametrize("contraction", ["softmax", "none"])
@pytest.mark.parametrize("dtype", HALF_DTYPES, ids=str)
@pytest.mark.parametrize("size", [40, 80, 300])
def test_scores_too_large_for_a_half_on_the_cpu(size, dtype, contraction):
    """Scores up to 4e5, whose log-sum-exps a half would round by hundreds or could not hold."""
    w, reps, *steps = make_inputs(1, 2, 133, 16, 64)
    inputs = [x.to(dtype) for x in (size * w, size * reps, *steps)]
    expected = truth.contract_broadcast(*[x.double() for x in inputs], contraction=contraction)
    function = partial(contract_broadcast, contraction=contraction, impl="sdpa")
    out, *grads = value_and_grads(function, inputs, torch.randn_like(inputs[0]))
    assert_close(out, expected, 4 * torch.finfo(dtype).eps)
    assert all(g.isfinite().all() for g in grads)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALF_DTYPES], ids=str)
def test_padding_never_matters(dtype, impl, device):
    batch, n = 3, 37
    inputs = [x.to(dtype) for x in make_inputs(batch, 2, n, 9, 8, device=device)]
    mask = make_mask(batch, n, device)
    poisoned = inputs[0].masked_fill(~mask[:, None, :, None], torch.nan)
    function = partial(contract_broadcast, mask=mask, impl=impl)
    weight = torch.randn_like(inputs[0])
    clean = value_and_grads(function, inputs, weight)
    spoilt = value_and_grads(function, [poisoned, *inputs[1:]], weight)
    for name, a, b in zip(["output", *NAMES], clean, spoilt, strict=True):
        assert a.isfinite().all(), name
        assert torch.equal(a, b), name
    for tensor in clean[:2]:  # output and gradient of w
        assert (tensor.masked_select(~mask[:, None, :, None]) == 0).all()
    assert (clean[2][0] == 0).all(), "representatives of an element that is all padding influence nothing"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("contraction", ["softmax", "none"])
def test_padding_beside_extreme_scores_in_float16(impl, contraction, device):
    w = (torch.randn(2, 1, 4096, 8, device=device)).half()
    reps, steps = (60 * torch.randn(2, 1, 4, 8, device=device)).half(), torch.ones(2, 1, device=device)
    mask = torch.zeros(2, 4096, dtype=torch.bool, device=device)
    mask[1, ::3] = True
    options = {"mask": mask, "contraction": contraction}
    out, *grads = value_and_grads(
        partial(contract_broadcast, impl=impl, **options), (w, reps, *steps), torch.randn_like(w)
    )
    assert (out[0] == 0).all()
    assert all(g.isfinite().all() for g in grads)
    # Real scores far below zero still win over padding.
    low = torch.full((1, 1, 3, 64), 70.0, device=device).half()
    expected = truth.contract_broadcast(*[x.double() for x in (low, -low, *steps)], mask=mask[1:, :3])
    actual = contract_broadcast(low, -low, *steps, mask=mask[1:, :3], impl=impl)
    assert_close(actual, expected, 1e-2)


@pytest.mark.parametrize("impl", IMPLS)
def test_long_runs_of_padding(impl):
    """Whole blocks of a fused kernel see nothing but padding."""
    inputs = make_inputs(1, 2, 1500, 5, 8)
    mask = torch.zeros(1, 1500, dtype=torch.bool)
    mask[:, 1100:1200] = True
    expected = truth.contract_broadcast(*inputs, mask=mask)
    assert_close(contract_broadcast(*inputs, mask=mask, impl=impl), expected, 1e-12)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("zero", ["step_rep", "step_out"])
def test_steps_of_zero(impl, zero):
    w, reps, step_rep, step_out = make_inputs(2, 3, 20, 5, 6)
    steps = {"step_rep": step_rep, "step_out": step_out, zero: torch.zeros(3, dtype=torch.float64)}
    inputs, weight = (w, reps, steps["step_rep"], steps["step_out"]), torch.randn_like(w)
    expected = value_and_grads(truth.contract_broadcast, inputs, weight)
    actual = value_and_grads(partial(contract_broadcast, impl=impl), inputs, weight)
    for name, a, t in zip(["output", *NAMES], actual, expected, strict=True):
        assert_close(a, t, 1e-10, name)


@pytest.mark.parametrize("impl", IMPLS)
def test_any_strides(impl):
    w, reps, *steps = make_inputs(2, 3, 10, 4, 6)
    expected = contract_broadcast(w.contiguous(), reps, *steps, impl=impl)
    channel_first = w.mT.contiguous().mT
    wide = torch.randn(2, 3, 10, 12, dtype=w.dtype)
    wide[..., ::2] = w
    expanded = reps[:1].expand(2, -1, -1, -1)
    for variant in (channel_first, wide[..., ::2]):
        assert_close(contract_broadcast(variant, reps, *steps, impl=impl), expected, 1e-12)
    assert_close(
        contract_broadcast(w, expanded, *steps, impl=impl),
        contract_broadcast(w, expanded.contiguous(), *steps, impl=impl),
        1e-12,
    )


@pytest.mark.parametrize("impl", IMPLS)
def test_scale_is_used_in_both_softmaxes(impl):
    inputs = make_inputs(2, 3, 10, 4, 6)
    actual = contract_broadcast(*inputs, scale=0.9, impl=impl)
    assert_close(actual, truth.contract_broadcast(*inputs, scale=0.9), 1e-12)


def test_auto_is_the_same_function():
    for shape in [(1, 2, 20, 4, 8), (2, 4, 40_000, 64, 8)]:  # small and large: both sides of the choice
        inputs = make_inputs(*shape, dtype=torch.float32)
        actual, expected = contract_broadcast(*inputs), contract_broadcast(*inputs, impl="reference")
        assert_close(actual, expected, 1e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("dtype", HALF_DTYPES, ids=str)
def test_autocast_computes_in_its_dtype_and_keeps_float32_gradients(impl, dtype, device):
    inputs = make_inputs(2, 3, 40, 8, 16, dtype=torch.float32, device=device)
    leaves = [x.requires_grad_() for x in inputs]
    with torch.autocast(device, dtype=dtype):
        out = contract_broadcast(*leaves, impl=impl)
    assert out.dtype == dtype
    grads = torch.autograd.grad(out.float().square().sum(), leaves)
    expected = truth.contract_broadcast(*[x.double() for x in inputs])
    assert_close(out, expected, 20 * torch.finfo(dtype).eps)
    assert all(g.dtype == torch.float32 for g in grads)
    assert all(g.isfinite().all() for g in grads)


def test_autocast_leaves_float64_alone():
    inputs = make_inputs(2, 3, 40, 8, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = contract_broadcast(*inputs, impl="sdpa")
    assert_close(out, truth.contract_broadcast(*inputs), 1e-10)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("impl", IMPLS)
def test_half_activations_with_float32_steps(impl, device):
    w, reps, *steps = make_inputs(2, 3, 40, 8, 16, dtype=torch.float32, device=device)
    inputs = [w.bfloat16(), reps.bfloat16(), *steps]
    out, *grads = value_and_grads(partial(contract_broadcast, impl=impl), inputs, torch.randn_like(w))
    assert out.dtype == torch.bfloat16
    assert [g.dtype for g in grads] == [x.dtype for x in inputs]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("contraction", CONTRACTIONS)
def test_compiles_into_one_graph(impl, contraction, device):
    function = partial(contract_broadcast, impl=impl, contraction=contraction, eps=1.0)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for shape in [(2, 2, 24, 6, 8), (3, 2, 31, 6, 8)]:  # the second one with dynamic sizes
        inputs = make_inputs(*shape, device=device)
        mask, weight = make_mask(shape[0], shape[2], device), torch.randn_like(inputs[0])
        expected = value_and_grads(partial(function, mask=mask), inputs, weight)
        actual = value_and_grads(partial(compiled, mask=mask), inputs, weight)
        for name, a, t in zip(["output", *NAMES], actual, expected, strict=True):
            assert_close(a, t, 1e-10, name)


@pytest.mark.parametrize("impl", IMPLS)
def test_compiles_with_symbolic_sizes_and_numbers(impl):
    compiled = torch.compile(contract_broadcast, fullgraph=True, dynamic=True, backend="aot_eager")
    for n, scale, eps in [(24, 0.3, 0.1), (31, 0.4, 0.2), (17, 0.5, 0.3)]:
        inputs = make_inputs(2, 2, n, 6, 8)
        options = {"scale": scale, "eps": eps, "contraction": "exact", "impl": impl}
        assert_close(compiled(*inputs, **options), contract_broadcast(*inputs, **options), 1e-10)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("impl", IMPLS)
def test_compiles_with_inductor(impl, device):
    inputs = make_inputs(2, 2, 24, 6, 8, dtype=torch.float32, device=device)
    function = partial(contract_broadcast, impl=impl)
    weight = torch.randn_like(inputs[0])
    expected = value_and_grads(function, inputs, weight)
    actual = value_and_grads(torch.compile(function, fullgraph=True), inputs, weight)
    for name, a, t in zip(["output", *NAMES], actual, expected, strict=True):
        assert_close(a, t, 1e-5, name)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("contraction", CONTRACTIONS)
@pytest.mark.parametrize("masked", [False, True])
def test_the_custom_op_is_well_formed(contraction, masked, device):
    inputs = [x.requires_grad_() for x in make_inputs(2, 3, 17, 5, 8, dtype=torch.float32, device=device)]
    mask = make_mask(2, 17, device) if masked else None
    torch.library.opcheck(
        torch.ops.cbsa.contract_broadcast_sdpa.default, (*inputs, mask, 0.3, contraction, 1.0)
    )


def test_exports_with_dynamic_sizes():
    class Operator(torch.nn.Module):
        def forward(self, w, reps, step_rep, step_out):
            return contract_broadcast(w, reps, step_rep, step_out)

    n = torch.export.Dim("n", min=2, max=4096)
    program = torch.export.export(
        Operator(), make_inputs(2, 3, 24, 6, 8), dynamic_shapes=({2: n}, None, None, None)
    )
    other = make_inputs(2, 3, 57, 6, 8)
    assert_close(program.module()(*other), contract_broadcast(*other), 1e-12)


@pytest.mark.parametrize("impl", IMPLS)
def test_activation_checkpointing(impl):
    inputs, function = make_inputs(2, 3, 20, 5, 6), partial(contract_broadcast, impl=impl)
    weight = torch.randn_like(inputs[0])
    stored = value_and_grads(function, inputs, weight)
    recomputed = value_and_grads(lambda *x: checkpoint(function, *x, use_reentrant=False), inputs, weight)
    assert all(torch.equal(a, b) for a, b in zip(stored, recomputed, strict=True))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("impl", IMPLS)
def test_the_same_bits_every_time(impl, device, monkeypatch):
    if (impl, device) == ("sdpa", "cuda"):  # PyTorch's kernel is deterministic on request only
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    inputs = make_inputs(2, 3, 700, 16, 16, dtype=torch.float32, device=device)
    weight = torch.randn_like(inputs[0])
    first, second = (
        value_and_grads(partial(contract_broadcast, impl=impl), inputs, weight) for _ in range(2)
    )
    torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def _bad(**changes):
    w, reps, step_rep, step_out = make_inputs(2, 3, 10, 4, 6)
    arguments = {"w": w, "reps": reps, "step_rep": step_rep, "step_out": step_out}
    return arguments | changes


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"w": torch.randn(3, 10, 6)}, ValueError, r"w must have shape \(B, H, N, d\).*\(3, 10, 6\)"),
        ({"w": torch.randn(2, 3, 0, 6).double()}, ValueError, r"N, d >= 1.*\(2, 3, 0, 6\)"),
        ({"w": [[1.0]]}, TypeError, "w must be a tensor, got list"),
        (
            {"w": torch.ones(2, 3, 10, 6, dtype=torch.int64)},
            TypeError,
            "floating-point dtype, got torch.int64",
        ),
        ({"reps": torch.randn(2, 3, 0, 6).double()}, ValueError, r"at least one representative \(m >= 1\)"),
        ({"reps": torch.randn(2, 3, 4, 5).double()}, ValueError, r"\(2, 3, m, 6\), got \(2, 3, 4, 5\)"),
        ({"reps": torch.randn(2, 3, 4, 6)}, TypeError, "one dtype, got torch.float64 and torch.float32"),
        ({"step_rep": torch.ones(2)}, ValueError, r"step_rep must have shape \(H,\) = \(3,\).*\(2,\)"),
        ({"step_out": torch.ones(3, 1, 1)}, ValueError, r"step_out must have shape.*\(3, 1, 1\)"),
        ({"step_out": torch.tensor([1, float("nan"), 1])}, ValueError, r"step_out must be finite.*nan"),
        ({"step_rep": torch.tensor([1, float("inf"), 1])}, ValueError, r"step_rep must be finite.*inf"),
        ({"mask": torch.ones(2, 9, dtype=torch.bool)}, ValueError, r"\(2, 10\), got \(2, 9\)"),
        ({"mask": torch.ones(2, 10)}, TypeError, "mask must be a boolean tensor.*torch.float32"),
        ({"contraction": "softmx"}, ValueError, "contraction='softmx'.*did you mean 'softmax'"),
        ({"contraction": None}, TypeError, "contraction must be a string, got None"),
        ({"impl": "cuda"}, ValueError, "impl='cuda': expected one of 'auto', 'reference', 'sdpa'"),
        ({"impl": "triton"}, ValueError, "impl='triton' does not support torch.float64"),
        ({"eps": 0.0}, ValueError, "eps must be above 0, got 0"),
        ({"eps": "0.1"}, TypeError, "eps must be a number, got '0.1'"),
        ({"scale": "big"}, TypeError, "scale must be a number, got 'big'"),
        ({"eps": 1e-170}, ValueError, "eps must have a square .*1e-170"),
        ({"eps": 1e170}, ValueError, r"eps must have a square .*1e\+170"),
        ({"scale": float("nan")}, ValueError, "scale must be finite, got nan"),
    ],
)
def test_bad_input_is_named(changes, error, message):
    with pytest.raises(error, match=message):
        contract_broadcast(**_bad(**changes))
