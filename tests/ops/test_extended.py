"""Options of CBSA beyond the paper: the operator against the same written out for one head in float64."""

import itertools
from functools import partial

import pytest
import torch

from cbsa.ops import contract_broadcast
from cbsa.ops.extended import both_weights, extended_contract_broadcast
from tests import truth
from tests.compare import (
    DEVICES,
    HALF_DTYPES,
    KERNEL_DEVICES,
    KERNEL_DRAWS,
    assert_as_good_as,
    assert_close,
    relative_error,
    value_and_grads,
)
from tests.ops.test_contract_broadcast import IMPLS, NAMES, make_inputs, make_mask

OPTIONS = [
    {"iterations": 2, "rep_norm": "none", "broadcast": "transpose", "contraction": "softmax"},
    {"iterations": 1, "rep_norm": "rms", "broadcast": "transpose", "contraction": "none"},
    {"iterations": 1, "rep_norm": "layer", "broadcast": "transpose", "contraction": "softmax"},
    {"iterations": 1, "rep_norm": "none", "broadcast": "per_token", "contraction": "softmax"},
    {"iterations": 1, "rep_norm": "none", "broadcast": "softmax", "contraction": "exact"},
    {"iterations": 3, "rep_norm": "rms", "broadcast": "per_token", "contraction": "exact"},
]
# Each broadcast once, with a contraction that the kernels have
FEW = [
    {"iterations": 1, "rep_norm": "rms", "broadcast": "transpose", "contraction": "softmax"},
    {"iterations": 1, "rep_norm": "none", "broadcast": "per_token", "contraction": "softmax"},
    {"iterations": 2, "rep_norm": "none", "broadcast": "softmax", "contraction": "none"},
]
# (B, H, N, m, d), and whether there is padding
SHAPES = [
    ((0, 2, 5, 3, 4), False),  # nothing at all
    ((1, 2, 1, 7, 3), False),  # one token, more representatives
    ((2, 2, 13, 5, 8), False),
    ((3, 1, 17, 6, 9), True),
]


def name_of(options):
    return "-".join(map(str, options.values()))


def one_head(z, q, eta, kappa, *, iterations, rep_norm, broadcast, contraction):
    """Tokens are columns: z (p×N), q (p×m); returns (p×N)."""
    p = z.shape[0]
    for _ in range(iterations):
        before, a = q, truth.extraction_matrix(z, q, p**-0.5)  # N×m
        q = q + eta * z @ a
    if rep_norm == "layer":
        q = q - q.mean(0)
    if rep_norm != "none":
        q = q / (q.square().mean(0) + 1e-6).sqrt()
    if broadcast == "per_token":
        a = a / a.sum(1, keepdim=True)
    elif broadcast == "softmax":
        a = torch.softmax(p**-0.5 * z.T @ before, dim=1)
    return kappa * truth.contraction_columns(q, contraction, p**-0.5, 0.1) @ a.T


def expected(w, reps, eta, kappa, mask=None, **options):
    """All batch elements and heads one by one; padding is cut out, and its output is 0."""
    out = 0 * (w.nan_to_num() + sum(x.sum() for x in (reps, eta, kappa)))
    for b, h in itertools.product(range(w.shape[0]), range(w.shape[1])):
        real = torch.arange(w.shape[2]) if mask is None else mask[b].nonzero().squeeze(-1)
        if len(real):
            head = one_head(w[b, h, real].T, reps[b, h].T, eta[h], kappa[h], **options).T
            out = out.index_put((torch.tensor(b), torch.tensor(h), real), head, accumulate=True)
    return out


def plain(w, reps, eta, kappa, *, mask=None, iterations, rep_norm, broadcast, contraction):
    """What plain PyTorch computes in a given dtype."""
    scale = w.shape[-1] ** -0.5
    eta, kappa = (step.to(w.dtype)[:, None, None] for step in (eta, kappa))
    for _ in range(iterations):
        scores = (reps @ w.mT) * scale
        real = scores if mask is None else scores.masked_fill(~mask[:, None, None, :], -torch.inf)
        a = real.softmax(-1)
        reps = reps + eta * (a @ w)
    if rep_norm == "rms":
        reps = reps / (reps.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    if contraction == "softmax":
        reps = ((reps @ reps.mT) * scale).softmax(-1) @ reps
    if broadcast == "per_token":
        a = a / a.sum(-2, keepdim=True).clamp(min=1e-6)  # padding has 0
    elif broadcast == "softmax":
        a = scores.softmax(-2)
    out = kappa * (a.mT @ reps)
    return out if mask is None else out.masked_fill(~mask[:, None, :, None], 0)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("options", OPTIONS, ids=name_of)
def test_values_and_every_gradient(options, impl):
    for shape, masked in SHAPES:
        inputs = make_inputs(*shape)
        given = options | {"mask": make_mask(shape[0], shape[2]) if masked else None}
        weight = torch.randn_like(inputs[0])
        exact = value_and_grads(partial(expected, **given), inputs, weight)
        actual = value_and_grads(partial(extended_contract_broadcast, impl=impl, **given), inputs, weight)
        for name, a, t in zip(["output", *NAMES], actual, exact, strict=True):
            # Gradients through the exact contraction are tiny beside the intermediate values.
            assert relative_error(a, t) < 1e-10 or (a - t).abs().max() < 1e-10, (name, shape)


@pytest.mark.parametrize("options", FEW[:2], ids=name_of)
def test_gradcheck(options):
    inputs = [x.requires_grad_() for x in make_inputs(1, 1, 4, 2, 2)]
    mask = torch.tensor([[True, True, False, True]])
    function = partial(extended_contract_broadcast, impl="sdpa", mask=mask, **options)
    assert torch.autograd.gradcheck(function, inputs)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("options", OPTIONS, ids=name_of)
def test_padding_is_as_if_it_were_not_there(options, impl):
    w, reps, eta, kappa = make_inputs(3, 3, 13, 5, 4)
    mask = torch.ones(3, 13, dtype=torch.bool)
    mask[1, 4:], mask[2] = False, False
    poisoned = w.masked_fill(~mask[:, None, :, None], torch.nan)
    function = partial(extended_contract_broadcast, impl=impl, **options)
    out, *grads = value_and_grads(
        partial(function, mask=mask), (poisoned, reps, eta, kappa), torch.randn_like(w)
    )
    assert_close(out[1:2, :, :4], function(w[1:2, :, :4], reps[1:2], eta, kappa), 1e-12)
    for result in (out, grads[0]):
        assert (result.masked_select(~mask[:, None, :, None]) == 0).all()
    assert all(grad.isfinite().all() for grad in grads)
    assert (grads[1][2] == 0).all(), "representatives of an element that is all padding influence nothing"


@pytest.mark.parametrize("impl", IMPLS)
def test_defaults_are_the_operator_of_the_paper(impl):
    inputs = make_inputs(2, 3, 13, 5, 4)
    assert_close(extended_contract_broadcast(*inputs, impl=impl), contract_broadcast(*inputs), 1e-12)


def far_away(dtype=torch.float32):
    """Tokens, the first of which is far from all representatives: its row of Aᵀ is 0 but in float64."""
    w, reps = torch.randn(1, 1, 6, 4), 5 + 5 * torch.rand(1, 1, 3, 4)
    w[0, 0, 0] = -30
    return w.to(dtype), reps.to(dtype)


def test_weights_per_token_sum_to_one_where_the_transposed_vanish():
    transposed, per_token, softmax = (
        both_weights(*far_away(), kind)[1] for kind in ("transpose", "per_token", "softmax")
    )
    assert transposed[0, 0, 0].sum() == 0
    assert_close(per_token.sum(-1), torch.ones(1, 1, 6), 1e-6)
    assert_close(softmax.sum(-1), torch.ones(1, 1, 6), 1e-6)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("dtype", [torch.float32, *HALF_DTYPES], ids=str)
def test_a_token_that_no_representative_attends_to_takes_up_as_much(dtype, impl):
    inputs, options = (*far_away(dtype), torch.ones(1), torch.ones(1)), FEW[1]
    exact = expected(*[x.double() for x in inputs], **options)[:, :, 0]
    actual = extended_contract_broadcast(*inputs, impl=impl, **options)[:, :, 0]
    assert exact.norm() > 1
    assert_close(actual, exact, max(1e-4, 4 * torch.finfo(dtype).eps))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("dtype", [torch.float32, *HALF_DTYPES], ids=str)
@pytest.mark.parametrize(("shape", "masked"), [((1, 2, 101, 24, 64), False), ((1, 2, 33, 7, 10), True)])
@pytest.mark.parametrize("options", FEW, ids=name_of)
def test_low_precision_is_as_good_as_plain_pytorch(options, shape, masked, dtype, impl, device):
    mask = torch.rand(shape[0], shape[2], device=device) < 0.7 if masked else None
    options = options | {"mask": mask}
    assert_as_good_as(
        partial(extended_contract_broadcast, impl=impl, **options),
        partial(plain, **options),
        partial(expected, **options),
        partial(make_inputs, *shape, device=device),
        dtype,
        NAMES,
        floor_ulps={"cpu": 20, "cuda": 40}[device] if (dtype, impl) == (torch.float32, "sdpa") else 0.5,
        draws=4,
    )


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("options", FEW, ids=name_of)
def test_any_strides(options, impl):
    w, reps, *steps = make_inputs(2, 3, 10, 4, 6)
    function = partial(extended_contract_broadcast, impl=impl, **options)
    exact = function(w.contiguous(), reps, *steps)
    for lay_out in (lambda x: x.mT.contiguous().mT, lambda x: torch.cat([x, x], -1)[..., :6]):
        assert_close(function(lay_out(w), lay_out(reps), *steps), exact, 1e-12)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("options", FEW, ids=name_of)
def test_autocast_computes_in_its_dtype_and_keeps_float32_gradients(options, impl):
    inputs = make_inputs(2, 3, 40, 8, 16, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        function = partial(extended_contract_broadcast, impl=impl, **options)
        out, *grads = value_and_grads(function, inputs, torch.randn_like(inputs[0]))
    assert out.dtype == torch.bfloat16
    assert_close(out, expected(*[x.double() for x in inputs], **options), 20 * torch.finfo(out.dtype).eps)
    assert all(g.dtype == torch.float32 and g.isfinite().all() for g in grads)


@pytest.mark.parametrize("options", FEW, ids=name_of)
def test_compiles_into_one_graph(options):
    function = partial(extended_contract_broadcast, impl="sdpa", **options)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=True)
    for n in (24, 31):
        inputs, mask = make_inputs(2, 2, n, 6, 8), make_mask(2, n)
        weight = torch.randn_like(inputs[0])
        exact = value_and_grads(partial(function, mask=mask), inputs, weight)
        actual = value_and_grads(partial(compiled, mask=mask), inputs, weight)
        for name, a, t in zip(["output", *NAMES], actual, exact, strict=True):
            assert_close(a, t, 1e-10, name)


@pytest.mark.parametrize("masked", [False, True])
def test_the_custom_ops_are_well_formed(masked):
    w, reps, *_ = (x.requires_grad_() for x in make_inputs(2, 3, 17, 5, 8, dtype=torch.float32))
    mask, lse = make_mask(2, 17) if masked else None, torch.randn(2, 3, 5)
    torch.library.opcheck(torch.ops.cbsa.extract_sdpa.default, (w, reps, mask, 0.3))
    c = torch.randn_like(reps, requires_grad=True)
    torch.library.opcheck(torch.ops.cbsa.broadcast_sdpa.default, (w, reps, c, lse, mask, 0.3))


def saved_sizes(function, inputs):
    """Number of elements of each tensor that is kept for the backward."""
    sizes = []
    leaves = [x.detach().requires_grad_() for x in inputs]
    with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):
        function(*leaves).sum().backward()
    return sizes


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("options", FEW, ids=name_of)
def test_nothing_n_by_m_is_saved_for_the_backward(options, masked):
    inputs = make_inputs(1, 2, 300, 64, 8, dtype=torch.float32)
    tokens, weights = 2 * 300 * 8, 2 * 300 * 64
    function = partial(extended_contract_broadcast, mask=make_mask(1, 300) if masked else None, **options)
    assert max(saved_sizes(partial(function, impl="sdpa"), inputs)) <= 2 * tokens < weights
    assert max(saved_sizes(partial(function, impl="reference"), inputs)) >= weights  # which is seen


def test_auto_chooses_by_size():
    small, large = make_inputs(1, 2, 300, 64, 8, dtype=torch.float32), make_inputs(1, 8, 20_000, 64, 1)
    function = partial(extended_contract_broadcast, **FEW[1])
    assert max(saved_sizes(function, small)) >= 2 * 300 * 64
    assert max(saved_sizes(function, large)) <= 8 * 20_000 * 8


def test_transforms_are_right_or_refused():
    w, reps, *steps = make_inputs(1, 2, 12, 3, 4)
    tangent, step = torch.randn_like(w), 1e-6

    def function(x, impl):
        return extended_contract_broadcast(x, reps, *steps, impl=impl, **FEW[1])

    ahead, back = (function(w + sign * step * tangent, "reference") for sign in (1, -1))
    derivative = torch.func.jvp(partial(function, impl="auto"), (w,), (tangent,))[1]
    assert_close(derivative, (ahead - back) / (2 * step), 1e-6)
    with pytest.raises(ValueError, match="impl='sdpa' supports neither forward-mode"):
        torch.func.jvp(partial(function, impl="sdpa"), (w,), (tangent,))
    leaf = w.requires_grad_()
    (grad,) = torch.autograd.grad(function(leaf, "sdpa").sum(), leaf, create_graph=True)
    with pytest.raises((NotImplementedError, RuntimeError), match=r"second derivative|not implemented"):
        grad.sum().backward()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"broadcast": "tokens"}, ValueError, "broadcast='tokens': expected one of 'transpose'"),
        ({"iterations": 0}, ValueError, "iterations must be at least 1, got 0"),
        ({"impl": "cuda"}, ValueError, "impl='cuda': expected one of 'auto'"),
        ({"reps": torch.randn(2, 3, 4, 5).double()}, ValueError, r"\(2, 3, m, 6\), got \(2, 3, 4, 5\)"),
        ({"mask": torch.ones(2, 9, dtype=torch.bool)}, ValueError, r"\(2, 10\), got \(2, 9\)"),
    ],
)
def test_bad_input_is_named(changes, error, message):
    inputs = dict(zip(("w", "reps", "step_rep", "step_out"), make_inputs(2, 3, 10, 4, 6), strict=True))
    with pytest.raises(error, match=message):
        extended_contract_broadcast(**inputs | changes)


# --- kernels ---------------------------------------------------------------------------------------------

kernels = partial(extended_contract_broadcast, impl="triton")
where = {"device": KERNEL_DEVICES[0], "dtype": torch.float32}


@pytest.mark.parametrize("device", KERNEL_DEVICES)
@pytest.mark.parametrize(
    ("shape", "masked", "dtype"),
    [
        ((2, 2, 33, 7, 10), True, torch.float32),
        ((2, 2, 33, 7, 10), True, torch.float16),
        ((1, 1, 130, 70, 16), False, torch.float32),  # several splits, two blocks of representatives
    ],
    ids=str,
)
@pytest.mark.parametrize("options", FEW, ids=name_of)
def test_kernels_are_as_good_as_plain_pytorch(options, shape, masked, dtype, device):
    pytest.importorskip("triton", reason="needs Triton, which comes with PyTorch on Linux")
    mask = torch.rand(shape[0], shape[2], device=device) < 0.7 if masked else None
    options = options | {"mask": mask}
    assert_as_good_as(
        partial(kernels, **options),
        partial(plain, **options),
        partial(expected, **options),
        partial(make_inputs, *shape, device=device),
        dtype,
        NAMES,
        floor_ulps=20 if dtype == torch.float32 else 0.5,
        # Of a step's gradient there are two numbers in a draw, which may be close to 0.
        draws=KERNEL_DRAWS if dtype == torch.float32 else 2 * KERNEL_DRAWS,
    )


@pytest.mark.parametrize("options", FEW, ids=name_of)
def test_kernels_take_an_empty_batch_and_one_token(options):
    pytest.importorskip("triton", reason="needs Triton, which comes with PyTorch on Linux")
    inputs = make_inputs(0, 2, 10, 5, 8, **where)
    results = value_and_grads(partial(kernels, **options), inputs, torch.empty_like(inputs[0]))
    assert [x.shape for x in results[1:]] == [x.shape for x in inputs]
    inputs = make_inputs(1, 1, 1, 5, 8, **where)
    weight = torch.randn_like(inputs[0])
    exact = value_and_grads(partial(expected, **options), [x.double() for x in inputs], weight.double())
    for a, t in zip(value_and_grads(partial(kernels, **options), inputs, weight), exact, strict=True):
        assert_close(a, t, 1e-4)


def test_kernels_are_well_formed():
    pytest.importorskip("triton", reason="needs Triton, which comes with PyTorch on Linux")
    from cbsa.ops import fused_extended

    w, reps, *_ = (x.requires_grad_() for x in make_inputs(1, 2, 20, 16, 16, **where))
    values, lse = torch.randn_like(reps, requires_grad=True), torch.randn(1, 2, 16, device=where["device"])
    tests = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_static")
    for operator, arguments in (
        (fused_extended._extract, (w, reps)),
        (fused_extended._broadcast, (w, reps, values, lse)),
        (fused_extended._read, (w, reps, values)),
    ):
        torch.library.opcheck(operator, (*arguments, None, 0.25), test_utils=tests)


@pytest.mark.parametrize(
    ("d", "options", "message"),
    [
        (8, {"contraction": "exact"}, "impl='triton' has no contraction='exact'; use impl='auto'"),
        (128, {}, "impl='triton' with broadcast='per_token' supports heads of up to 128 .* not 128"),
    ],
)
def test_what_the_kernels_cannot_do_is_refused(d, options, message):
    pytest.importorskip("triton", reason="needs Triton, which comes with PyTorch on Linux")
    with pytest.raises(ValueError, match=message):
        kernels(*make_inputs(1, 1, 5, 2, d, **where), broadcast="per_token", **options)
