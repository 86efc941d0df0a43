"""The operators with queries, keys and values of their own against formulas, autograd and plain PyTorch."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from cbsa.ops import agent_attention, contract_broadcast, contract_broadcast_kv, linear_attention
from tests.adapt import formulas
from tests.compare import (
    DEVICES,
    HALF_DTYPES,
    assert_as_good_as,
    assert_close,
    relative_error,
    value_and_grads,
)

IMPLS = ["reference", "sdpa"]
STAR_NAMES = ["dk", "dv", "dreps", "dstep_rep", "dstep_out"]
STAR = (contract_broadcast_kv, formulas.plain_cbsa_star, formulas.cbsa_star)
AGENT_NAMES = ["dq", "dk", "dv", "dreps"]


def tokens(batch, heads, n, d, count, dtype=torch.float64, device="cpu"):
    """q, k, v as a joint projection produces them: views of one tensor, token by token."""
    joint = torch.randn(batch, n, count, heads, d, dtype=dtype, device=device)
    return joint.permute(2, 0, 3, 1, 4).unbind(0)


def star_inputs(batch, heads, n, m, d, **where):
    k, v = tokens(batch, heads, n, d, 2, **where)
    (reps,) = tokens(batch, heads, m, d, 1, **where)
    return k, v, reps, *(1 + torch.randn(2, heads, dtype=k.dtype, device=k.device)).unbind()


def agent_inputs(batch, heads, n, m, d, **where):
    return *tokens(batch, heads, n, d, 3, **where), *tokens(batch, heads, m, d, 1, **where)


def padding(batch, n, device="cpu"):
    """Random padding; element 0 is all padding, the last one none."""
    mask = torch.rand(batch, n, device=device) < 0.6
    mask[0], mask[-1] = False, True
    return mask


@st.composite
def geometries(draw):
    batch, heads = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    n, m, d = draw(st.integers(1, 20)), draw(st.integers(1, 24)), draw(st.integers(1, 9))  # N = 1, m > N
    return (batch, heads, n, m, d), draw(st.booleans()), draw(st.integers(0, 2**31))


def compare(function, formula, inputs, names):
    weight = torch.randn_like(inputs[0])
    expected, actual = (value_and_grads(f, inputs, weight) for f in (formula, function))
    for name, a, t in zip(["output", *names], actual, expected, strict=True):
        assert relative_error(a, t) < 1e-10 or (a - t).abs().max() < 1e-10, name


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("contraction", ["softmax", "exact", "none"])
@pytest.mark.parametrize("broadcast", ["transpose", "softmax"])
@settings(max_examples=15)
@given(geometry=geometries())
def test_cbsa_star_and_every_gradient(impl, broadcast, contraction, geometry):
    shape, masked, seed = geometry
    torch.manual_seed(seed)
    mask = padding(shape[0], shape[2]) if masked else None
    options = {"mask": mask, "contraction": contraction, "broadcast": broadcast}
    function = partial(contract_broadcast_kv, impl=impl, **options)
    compare(function, partial(formulas.cbsa_star, **options), star_inputs(*shape), STAR_NAMES)


@pytest.mark.parametrize("impl", IMPLS)
@settings(max_examples=20)
@given(geometry=geometries(), sharpness=st.sampled_from([None, 3.0]))
def test_agent_attention_and_every_gradient(impl, geometry, sharpness):
    shape, masked, seed = geometry
    torch.manual_seed(seed)
    options = {"mask": padding(shape[0], shape[2]) if masked else None, "broadcast_scale": sharpness}
    function = partial(agent_attention, impl=impl, **options)
    compare(function, partial(formulas.agent, **options), agent_inputs(*shape), AGENT_NAMES)


@pytest.mark.parametrize("kernel", ["relu", "elu"])
@settings(max_examples=20)
@given(geometry=geometries())
def test_linear_attention_and_every_gradient(kernel, geometry):
    (batch, heads, n, _, d), masked, seed = geometry
    torch.manual_seed(seed)
    mask = padding(batch, n) if masked else None

    def function(q, k, v):
        out = linear_attention(q, k, v, mask=mask, kernel=kernel)
        return out if mask is None else out * mask[:, None, :, None]

    inputs = tokens(batch, heads, n, d, 3)
    compare(function, partial(formulas.linear, mask=mask, kernel=kernel), inputs, AGENT_NAMES[:3])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("shape", [(1, 8, 50, 16, 16), (2, 8, 33, 7, 10), (2, 8, 5, 16, 36)])
@pytest.mark.parametrize("dtype", HALF_DTYPES, ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_low_precision_is_as_good_as_plain_pytorch(masked, dtype, shape, impl, device):
    """Eight heads: a step has one gradient a head, and the ratio of two errors over a few numbers is luck."""
    mask = None
    if masked:
        mask = torch.rand(shape[0], shape[2], device=device) < 0.7
        mask[:, 0] = True
    for function, plain, truth, draw, names in [
        (*STAR, star_inputs, STAR_NAMES),
        (*(partial(f, broadcast="softmax") for f in STAR), star_inputs, STAR_NAMES),
        (agent_attention, formulas.plain_agent, formulas.agent, agent_inputs, AGENT_NAMES),
    ]:
        assert_as_good_as(
            partial(function, impl=impl, mask=mask),
            partial(plain, mask=mask),
            partial(truth, mask=mask),
            partial(draw, *shape, device=device),
            dtype,
            names,
        )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kernel", ["relu", "elu"])
@pytest.mark.parametrize("dtype", HALF_DTYPES, ids=str)
def test_linear_attention_in_low_precision(dtype, kernel, device):
    assert_as_good_as(
        partial(linear_attention, kernel=kernel),
        partial(formulas.plain_linear, kernel=kernel),
        partial(formulas.linear, kernel=kernel),
        partial(tokens, 2, 2, 65, 16, 3, device=device),
        dtype,
        AGENT_NAMES[:3],
    )


class Products(TorchDispatchMode):
    """Columns of every product of matrices."""

    def __init__(self):
        super().__init__()
        self.columns = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.bmm.default:
            self.columns.append(args[1].shape[-1])
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("kernel", ["relu", "elu"])
def test_linear_attention_has_no_product_with_a_single_column(kernel):
    """torch.compile makes a sum of it whose code for CPUs (torch 2.15) stores a whole vector after the last
    tokens: in bfloat16, with 65 tokens, it overwrote other images' denominators, and memory that was not its
    own."""
    with Products() as seen:
        linear_attention(*tokens(2, 2, 65, 16, 3), kernel=kernel)
    assert seen.columns == [16, 17]


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("contraction", ["softmax", "exact", "none"])
def test_one_stream_is_contract_broadcast(impl, contraction):
    k, _, *rest = star_inputs(2, 3, 21, 5, 6)
    options, weight = {"contraction": contraction, "eps": 1.0, "impl": impl}, torch.randn_like(k)
    expected = value_and_grads(partial(contract_broadcast, **options), (k, *rest), weight)
    actual = value_and_grads(lambda w, *x: contract_broadcast_kv(w, w, *x, **options), (k, *rest), weight)
    for a, t in zip(actual, expected, strict=True):
        assert_close(a, t, 1e-12)


def test_steps_are_1_by_default():
    k, v, reps, *_ = star_inputs(2, 3, 21, 5, 6)
    ones = torch.ones(3, dtype=torch.float64)
    assert torch.equal(contract_broadcast_kv(k, v, reps), contract_broadcast_kv(k, v, reps, ones, ones))


@pytest.mark.parametrize("impl", IMPLS)
def test_agent_attention_over_all_queries_is_softmax_attention(impl):
    """When every query is a representative and finds itself, what it gathered is what it reads."""
    q, k, v = tokens(2, 3, 21, 16, 3)
    q = F.normalize(q, dim=-1) * 4  # of one norm, each query is nearest to itself
    actual = agent_attention(q, k, v, q, broadcast_scale=50.0, impl=impl)
    assert_close(actual, F.scaled_dot_product_attention(q, k, v), 1e-12)
    assert relative_error(agent_attention(q, k, v, q, impl=impl), actual) > 0.1  # not by softmax_r(s·X_q Qᵀ)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("dtype", [torch.float32, *HALF_DTYPES], ids=str)
def test_padding_never_matters(impl, dtype):
    mask = padding(3, 37)
    for function, draw in ((contract_broadcast_kv, star_inputs), (agent_attention, agent_inputs)):
        inputs = [x.to(dtype) for x in draw(3, 2, 37, 9, 8)]
        spoilt = [
            x.masked_fill(~mask[:, None, :, None], torch.nan) if x.shape[2:3] == (37,) else x for x in inputs
        ]
        run, weight = partial(function, mask=mask, impl=impl), torch.randn_like(inputs[0])
        for a, b in zip(
            value_and_grads(run, inputs, weight), value_and_grads(run, spoilt, weight), strict=True
        ):
            assert a.isfinite().all()
            assert torch.equal(a, b)


@pytest.mark.parametrize("impl", IMPLS)
def test_compile_into_one_graph(impl):
    for function, draw in ((contract_broadcast_kv, star_inputs), (agent_attention, agent_inputs)):
        run = partial(function, impl=impl)
        compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
        for n in (24, 31):
            inputs = draw(2, 2, n, 6, 8)
            weight = torch.randn_like(inputs[0])
            expected, actual = (value_and_grads(f, inputs, weight) for f in (run, compiled))
            for a, t in zip(actual, expected, strict=True):
                assert_close(a, t, 1e-10)


@pytest.mark.parametrize("masked", [False, True])
def test_the_custom_op_is_well_formed(masked):
    inputs = [x.requires_grad_() for x in star_inputs(2, 3, 17, 5, 8, dtype=torch.float32)]
    mask = padding(2, 17) if masked else None
    torch.library.opcheck(
        torch.ops.cbsa.contract_broadcast_kv_sdpa.default, (*inputs, mask, 0.3, "softmax", 1.0)
    )


def test_operations_are_counted_as_for_one_stream():
    k, v, *rest = [x.requires_grad_() for x in star_inputs(2, 3, 21, 5, 6)]

    def count(function, *inputs):
        with FlopCounterMode(display=False) as counter:
            function(*inputs, impl="sdpa").sum().backward()
        return counter.get_total_flops()

    assert count(contract_broadcast_kv, k, v, *rest) == count(contract_broadcast, k, *rest) > 0


@pytest.mark.parametrize("impl", IMPLS)
def test_autocast(impl):
    for function, draw in ((contract_broadcast_kv, star_inputs), (agent_attention, agent_inputs)):
        leaves = [x.requires_grad_() for x in draw(2, 3, 40, 8, 16, dtype=torch.float32)]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = function(*leaves, impl=impl)
        assert out.dtype == torch.bfloat16
        assert_close(out, function(*leaves, impl=impl), 0.05)
        assert all(g.dtype == torch.float32 for g in torch.autograd.grad(out.float().sum(), leaves))


@pytest.mark.parametrize("impl", ["reference", "sdpa"])
def test_autocast_leaves_float64_alone(impl):
    for function, draw in ((contract_broadcast_kv, star_inputs), (agent_attention, agent_inputs)):
        inputs = draw(2, 3, 40, 8, 16)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = function(*inputs, impl=impl)
        assert_close(out, function(*inputs, impl="reference"), 1e-10)


def test_transforms_take_the_reference():
    q, k, v, reps = agent_inputs(2, 1, 5, 3, 4)
    batched = torch.func.vmap(lambda *x: agent_attention(*(t[None] for t in x))[0])(q, k, v, reps)
    assert_close(batched, agent_attention(q, k, v, reps), 1e-12)
    with pytest.raises(ValueError, match="impl='sdpa' supports neither"):
        torch.func.jvp(lambda x: agent_attention(x, k, v, reps, impl="sdpa"), (q,), (q,))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"k": torch.randn(2, 5, 6)}, ValueError, r"k must have shape \(B, H, N, d\).*\(2, 5, 6\)"),
        ({"v": torch.randn(2, 3, 4, 6)}, ValueError, r"v has \(2, 3, 4, 6\) on cpu, expected \(2, 3, 5, 6\)"),
        ({"v": torch.randn(2, 3, 5, 6).double()}, TypeError, "one dtype, got .*v of torch.float64"),
        ({"reps": torch.randn(2, 3, 4, 7)}, ValueError, r"\(2, 3, m, 6\), got \(2, 3, 4, 7\)"),
        ({"step_rep": torch.ones(2)}, ValueError, r"step_rep must have shape \(H,\) = \(3,\)"),
        ({"mask": torch.ones(2, 5)}, TypeError, "mask must be a boolean tensor"),
        ({"impl": "flash"}, ValueError, "impl='flash': expected one of .*'sdpa', 'triton'"),
        ({"contraction": "softmx"}, ValueError, "did you mean 'softmax'"),
        ({"scale": "big"}, TypeError, "scale must be a number"),
    ],
)
def test_bad_input_is_named(changes, error, message):
    arguments = {"k": torch.randn(2, 3, 5, 6), "v": torch.randn(2, 3, 5, 6), "reps": torch.randn(2, 3, 4, 6)}
    with pytest.raises(error, match=message):
        contract_broadcast_kv(**(arguments | changes))


def test_bad_input_of_the_others_is_named():
    q = torch.randn(2, 3, 5, 6)
    with pytest.raises(ValueError, match=r"k has \(2, 3, 4, 6\)"):
        agent_attention(q, q[:, :, :4], q, q)
    with pytest.raises(TypeError, match="broadcast_scale must be a number, got 'hot'"):
        agent_attention(q, q, q, q, broadcast_scale="hot")
    with pytest.raises(ValueError, match=r"kernel='rely'.*did you mean 'relu'"):
        linear_attention(q, q, q, kernel="rely")
    with pytest.raises(ValueError, match=r"q has \(2, 3, 4, 6\), v has \(2, 3, 5, 6\)"):
        linear_attention(q[:, :, :4], q, q)
