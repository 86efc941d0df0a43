"""The Triton kernels with queries, keys and values: on a GPU, and everywhere else in Triton's interpreter."""

from functools import partial

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from cbsa.ops import agent_attention, contract_broadcast, contract_broadcast_kv
from tests.adapt import formulas
from tests.adapt.test_operators import (
    AGENT_NAMES,
    STAR_NAMES,
    agent_inputs,
    star_inputs,
)
from tests.compare import (
    KERNEL_DEVICES,
    KERNEL_DRAWS,
    assert_as_good_as,
    assert_close,
    assert_written_and_repeatable,
    value_and_grads,
)

pytest.importorskip("triton", reason="needs Triton, which comes with PyTorch on Linux")
from cbsa.ops import fused_agent, fused_kv
from cbsa.ops.kernels import gpu, launch
from tests.ops import test_fused

regime = test_fused.regime  # forces a way to launch the kernels of CBSA*
star = partial(contract_broadcast_kv, impl="triton")
agent = partial(agent_attention, impl="triton")
# Operator, formula, what plain PyTorch computes, how inputs are drawn, names of the gradients
STAR = (star, formulas.cbsa_star, formulas.plain_cbsa_star, star_inputs, STAR_NAMES)
AGENT = (agent, formulas.agent, formulas.plain_agent, agent_inputs, AGENT_NAMES)
OPERATORS = [pytest.param(*STAR, id="star"), pytest.param(*AGENT, id="agent")]
FIELDS = ("function", "truth", "plain", "draw", "names")
# (B, H, N, m, d)
FEW = [
    (2, 2, 33, 7, 10),  # odd everywhere
    (1, 1, 5, 16, 8),  # few tokens
    (1, 2, 130, 16, 16),  # more than one split, the last one short
    (1, 1, 65, 64, 100),  # a head of 100 dimensions
]
MANY = [
    (1, 1, 100, 100, 24),  # two blocks of representatives, the second one short
    (1, 1, 40, 256, 16),  # more representatives than tokens, four blocks
]
where = {"device": KERNEL_DEVICES[0], "dtype": torch.float32}


def draw_mask(batch, n, device):
    mask = torch.rand(batch, n, device=device) < 0.7
    mask[:, 0] = True
    return mask


def check_accuracy(fields, shape, masked, device, dtype, **options):
    function, truth, plain, draw, names = fields
    options["mask"] = draw_mask(shape[0], shape[2], device) if masked else None
    assert_as_good_as(
        partial(function, **options),
        partial(plain, **options),
        partial(truth, **options),
        partial(draw, *shape, device=device),
        dtype,
        names,
        floor_ulps=20 if dtype == torch.float32 else 0.5,  # steps are sums with cancellation; see test_fused
        draws=KERNEL_DRAWS,
    )


@pytest.mark.parametrize(
    ("regime", "shape", "contraction", "masked", "device", "dtype"),
    [
        pytest.param(
            regime, shape, contraction, masked, device, dtype,
            id=f"{regime}-{shape}-{contraction}-{padding}-{device}-{dtype}",
        )
        for regime in test_fused.REGIMES
        for shape in (FEW + MANY if regime == "split" else FEW[:3])
        for contraction, masked, padding in [("softmax", True, "padded"), ("none", False, "whole")]
        if regime in ("whole", "split") or masked
        for device, dtype in test_fused.kinds(shape)
    ],
    indirect=["regime"],
)  # fmt: skip
def test_cbsa_star_and_every_gradient_are_as_good_as_plain_pytorch(
    regime, shape, contraction, masked, device, dtype
):
    check_accuracy(STAR, shape, masked, device, dtype, contraction=contraction)


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize(
    ("shape", "device", "dtype"),
    [
        pytest.param(shape, device, dtype, id=f"{shape}-{device}-{dtype}")
        for shape in FEW + MANY
        for device, dtype in test_fused.kinds(shape)
    ],
)
def test_agent_attention_and_every_gradient_are_as_good_as_plain_pytorch(shape, masked, device, dtype):
    check_accuracy(AGENT, shape, masked, device, dtype)


@pytest.mark.parametrize("regime", test_fused.REGIMES, indirect=True)
@pytest.mark.parametrize("device", KERNEL_DEVICES)
@pytest.mark.parametrize("m", [16, 70])
@pytest.mark.parametrize(FIELDS, OPERATORS)
def test_one_token(function, truth, plain, draw, names, m, regime, device):
    """The softmax over it has no choice: the gradient of its key is 0, and the error absolute there."""
    inputs = draw(2, 2, 1, m, 8, **where)
    weight = torch.randn_like(inputs[0])
    exact = value_and_grads(truth, [x.double() for x in inputs], weight.double())
    for name, a, t in zip(["output", *names], value_and_grads(function, inputs, weight), exact, strict=True):
        assert_close(a, t, 1e-4, name)


@pytest.mark.parametrize("device", KERNEL_DEVICES)
@pytest.mark.parametrize("m", [9, 70])
def test_a_broadcast_as_sharp_as_one_likes(m, device):
    """Scores of hundreds, above and below 0: nothing overflows, also not for rows beyond the last."""
    inputs = [4 * x for x in agent_inputs(1, 2, 21, m, 8, **where)]
    inputs[3] = inputs[3] - 8 * inputs[0].mean(2, keepdim=True)
    options, weight = {"broadcast_scale": 9.0, "scale": 0.02}, torch.randn_like(inputs[0])
    exact = value_and_grads(partial(formulas.agent, **options), [x.double() for x in inputs], weight.double())
    actual = value_and_grads(partial(agent, **options), inputs, weight)
    for name, a, t in zip(["output", *AGENT_NAMES], actual, exact, strict=True):
        assert_close(a, t, 1e-2, name)


@pytest.mark.parametrize("regime", ["whole", "split"], indirect=True)
@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_one_stream_is_contract_broadcast(regime, device):
    k, _, *rest = star_inputs(2, 2, 40, 16, 16, **where)
    weight = torch.randn_like(k)
    expected = value_and_grads(partial(contract_broadcast, impl="triton"), (k, *rest), weight)
    actual = value_and_grads(lambda w, *x: star(w, w, *x), (k, *rest), weight)
    for a, t in zip(actual, expected, strict=True):
        assert_close(a, t, 1e-5)


@pytest.mark.parametrize("regime", ["passes", "split"], indirect=True)
@pytest.mark.parametrize("device", KERNEL_DEVICES)
@pytest.mark.parametrize(FIELDS, OPERATORS)
def test_programs_that_begin_in_one_head_and_end_in_another(
    function, truth, plain, draw, names, regime, device, monkeypatch
):
    """Three blocks of tokens in each of three heads, dealt out over four programs."""
    launches = (launch.TUNED["spread"][0]._replace(block=64, programs=1),)
    monkeypatch.setitem(launch.TUNED, "spread", launches)
    monkeypatch.setattr(gpu, "find_gpu", lambda _: gpu.STAND_IN._replace(processors=4))
    inputs = draw(1, 3, 150, 8, 8, **where)
    weight = torch.randn_like(inputs[0])
    exact = value_and_grads(truth, [x.double() for x in inputs], weight.double())
    for a, t in zip(value_and_grads(function, inputs, weight), exact, strict=True):
        assert_close(a, t, 1e-5)


@pytest.mark.parametrize("regime", test_fused.REGIMES, indirect=True)
@pytest.mark.parametrize("device", KERNEL_DEVICES)
@pytest.mark.parametrize("m", [20, 70])
def test_every_element_is_written_and_the_same_every_time(m, regime, device):
    """Sizes fill no block."""
    for function, draw in ((star, star_inputs), (agent, agent_inputs)):
        inputs = draw(2, 2, 67, m, 20, **where)
        assert_written_and_repeatable(function, inputs, torch.randn_like(inputs[0]))


@pytest.mark.parametrize("regime", test_fused.REGIMES, indirect=True)
@pytest.mark.parametrize("device", KERNEL_DEVICES)
@pytest.mark.parametrize("m", [16, 70])
def test_padding_never_matters(m, regime, device):
    """NaN in it does not spread, its output and gradient are 0; also where there is nothing but padding."""
    mask = torch.arange(50, device=device) < torch.tensor([[30], [0]], device=device)
    for function, truth, _, draw, _ in (STAR, AGENT):
        inputs = list(draw(2, 2, 50, m, 16, **where))
        streams = [i for i, x in enumerate(inputs) if x.shape[2:3] == (50,)]
        for i in streams:
            inputs[i] = inputs[i].masked_fill(~mask[:, None, :, None], float("nan"))
        weight = torch.randn(2, 2, 50, 16, device=device)
        out, *grads = value_and_grads(partial(function, mask=mask), inputs, weight)
        for result in (out, *(grads[i] for i in streams)):
            assert (result.transpose(1, 2)[~mask] == 0).all()
        assert all(grad.isfinite().all() for grad in grads)
        alone = [
            x[:1, :, :30] if i in streams else x[:1] if x.dim() == 4 else x for i, x in enumerate(inputs)
        ]
        assert_close(out[:1, :, :30], truth(*[x.double() for x in alone]), 1e-5)


@pytest.mark.parametrize(FIELDS, OPERATORS)
def test_any_strides(function, truth, plain, draw, names):
    inputs = draw(2, 3, 50, 16, 12, **where)
    expected = function(*inputs)
    layouts = [
        torch.Tensor.contiguous,
        lambda x: x.mT.contiguous().mT,
        lambda x: torch.cat([x, x], -1)[..., :12],
    ]
    for i, x in enumerate(inputs):
        for lay_out in layouts if x.dim() == 4 else ():
            assert torch.equal(function(*inputs[:i], lay_out(x), *inputs[i + 1 :]), expected)
    assert expected.transpose(1, 2).is_contiguous()  # heads of a token are adjacent: merging them is free


@pytest.mark.parametrize(FIELDS, OPERATORS)
def test_each_gradient_alone_is_what_it_is_among_all(function, truth, plain, draw, names):
    inputs = draw(1, 2, 40, 16, 16, **where)
    weight = torch.randn_like(inputs[0])
    _, *together = value_and_grads(function, inputs, weight)
    for i, expected in enumerate(together):
        leaves = [x.detach().requires_grad_(i == j) for j, x in enumerate(inputs)]
        (alone,) = torch.autograd.grad(function(*leaves), leaves[i], weight)
        assert torch.equal(alone, expected), names[i]


@pytest.mark.parametrize(FIELDS, OPERATORS)
def test_an_empty_batch(function, truth, plain, draw, names):
    inputs = draw(0, 2, 10, 16, 16, **where)
    out, *grads = value_and_grads(function, inputs, torch.empty_like(inputs[0]))
    assert out.shape == (0, 2, 10, 16)
    assert [g.shape for g in grads] == [x.shape for x in inputs]
    assert not any(g.any() for g in grads)


@pytest.mark.parametrize("masked", [False, True])
def test_the_operators_are_well_formed(masked):
    mask = torch.rand(1, 20, device=KERNEL_DEVICES[0]) < 0.7 if masked else None
    tests = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_static")
    inputs = [x.requires_grad_() for x in star_inputs(1, 2, 20, 16, 16, **where)]
    for keep in (False, True):
        torch.library.opcheck(fused_kv._forward, (*inputs, mask, 0.25, True, keep), test_utils=tests)
    inputs = [x.requires_grad_() for x in agent_inputs(1, 2, 20, 16, 16, **where)]
    torch.library.opcheck(fused_agent._forward, (*inputs, mask, 0.25, 0.5), test_utils=tests)


@pytest.mark.parametrize(FIELDS, OPERATORS)
def test_flops_are_counted_like_the_references(function, truth, plain, draw, names):
    inputs = draw(2, 2, 20, 16, 8, **where)
    counts = []
    for impl in ("triton", "reference"):
        with FlopCounterMode(display=False) as counter:
            value_and_grads(partial(function, impl=impl), inputs, inputs[0])
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize("device", KERNEL_DEVICES)
@pytest.mark.parametrize(FIELDS, OPERATORS)
def test_compiles_into_one_graph(function, truth, plain, draw, names, device):
    inputs = draw(1, 2, 40, 16, 16, **where)
    weight = torch.randn_like(inputs[0])
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for a, b in zip(
        value_and_grads(compiled, inputs, weight), value_and_grads(function, inputs, weight), strict=True
    ):
        assert_close(a, b, 1e-6)


@pytest.mark.parametrize("device", KERNEL_DEVICES)
@pytest.mark.parametrize(FIELDS, OPERATORS)
def test_autocast(function, truth, plain, draw, names, device):
    inputs = draw(1, 2, 40, 16, 16, **where)
    with torch.autocast(device, torch.float16):
        out, *grads = value_and_grads(function, inputs, torch.randn_like(inputs[0]))
    assert out.dtype == torch.float16
    assert all(g.dtype == torch.float32 for g in grads)
    assert_close(out, truth(*[x.double() for x in inputs]), 5e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(4, 6, 197, 64, 64), (2, 6, 1025, 64, 64), (1, 2, 700, 150, 64)], ids=str)
@pytest.mark.parametrize(FIELDS, OPERATORS)
def test_compiled_with_cuda_graphs(function, truth, plain, draw, names, shape):
    compiled = torch.compile(function, fullgraph=True, mode="reduce-overhead")
    for _ in range(4):  # warms up, records, replays
        inputs = draw(*shape, device="cuda", dtype=torch.bfloat16)
        weight = torch.randn_like(inputs[0])
        torch.compiler.cudagraph_mark_step_begin()
        actual = [x.clone() for x in value_and_grads(compiled, inputs, weight)]
        for name, a, b in zip(
            ["output", *names], actual, value_and_grads(function, inputs, weight), strict=True
        ):
            assert torch.equal(a, b), name


@pytest.mark.parametrize(FIELDS, OPERATORS)
def test_a_second_derivative_and_transforms_are_refused_by_name(function, truth, plain, draw, names):
    first, *rest = (x.requires_grad_() for x in draw(1, 2, 20, 16, 16, **where))
    (grad,) = torch.autograd.grad(function(first, *rest).sum(), first, create_graph=True)
    with pytest.raises(NotImplementedError, match='no second derivative; use impl="reference"'):
        grad.sum().backward()
    with pytest.raises(ValueError, match=r"impl='triton' supports neither .*; use impl='reference'"):
        torch.func.jvp(lambda x: function(x, *rest), (first,), (first,))


@pytest.mark.parametrize(
    ("fields", "options", "dtype", "message"),
    [
        (STAR, {"contraction": "exact"}, torch.float32, "impl='triton' has no contraction='exact'"),
        (STAR, {}, torch.float64, r"impl='triton' does not support torch\.float64"),
        (AGENT, {}, torch.float64, r"impl='triton' does not support torch\.float64"),
        (AGENT, {"broadcast_scale": -1.0}, torch.float32, r"needs a scale above 0, not -1\.0"),
    ],
    ids=["contraction", "star-dtype", "agent-dtype", "scale"],
)
def test_what_it_cannot_do_is_refused(fields, options, dtype, message):
    function, *_, draw, _ = fields
    with pytest.raises(ValueError, match=message):
        function(*draw(1, 1, 20, 16, 16, dtype=dtype), **options)
