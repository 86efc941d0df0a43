"""The accuracy gate lets through what is right and refuses what is wrong, naming it."""

import pytest
import torch

from cbsa.bench import problems
from cbsa.bench.candidates import CANDIDATES, default_candidates
from cbsa.bench.gate import Check, Gate, refusal
from cbsa.bench.geometry import Geometry
from cbsa.bench.listing import listing, pooled_listing
from cbsa.bench.model_forms import check_gradients, check_logits
from tests import truth
from tests.compare import DEVICES, assert_close, value_and_grads

SMALL = Geometry(tokens=26, batch=5, heads=2, head_dim=8, representatives=4)


def gate_of(problem, geometry=SMALL, dtype=torch.float32, device="cpu"):
    device = torch.device(device)
    generator = torch.Generator(device).manual_seed(3)
    return Gate(problem, geometry, [problem.draw(geometry, dtype, device, generator) for _ in range(2)])


@pytest.mark.parametrize("contraction", ["softmax", "none"])
def test_our_copy_of_the_listing_is_the_listing(contraction):
    inputs = [torch.randn(2, 3, 20, 8), torch.randn(2, 3, 5, 8), torch.randn(3), torch.randn(3)]
    inputs = [x.double() for x in inputs]
    weight = torch.randn(2, 3, 20, 8, dtype=torch.float64)
    ours = value_and_grads(lambda *x: listing(*x, contraction=contraction), inputs, weight)
    theirs = value_and_grads(lambda *x: truth.listing(*x, contraction=contraction), inputs, weight)
    for a, b in zip(ours, theirs, strict=True):
        assert_close(a, b, 1e-12)


def test_the_pooled_listing_pools_all_but_cls():
    w, steps = torch.randn(2, 3, 26, 8).double(), torch.randn(2, 3).double().unbind()
    maps = w[:, :, 1:].transpose(-1, -2).reshape(2, 24, 5, 5)
    reps = torch.nn.functional.adaptive_avg_pool2d(maps, (2, 3)).reshape(2, 3, 8, 6).transpose(-1, -2)
    expected = truth.contract_broadcast(w, reps, *steps)
    assert_close(pooled_listing(w, *steps, grid=(5, 5), windows=(2, 3)), expected, 1e-12)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", default_candidates("cpu"))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_candidates_pass(name, dtype, device):
    candidate = CANDIDATES[name]
    checks = gate_of(candidate.problem, dtype=dtype, device=device).check(candidate.build(SMALL))
    assert [c.what for c in checks] == ["output", *(f"d{x}" for x in candidate.problem.inputs)]
    assert refusal(checks) is None


class Spoiled(torch.autograd.Function):
    """The right operator with one of its results changed by 25 %."""

    @staticmethod
    def forward(ctx, spoil, *inputs):
        ctx.spoil = spoil
        ctx.save_for_backward(*inputs)
        out = listing(*inputs)
        return out * 1.25 if spoil == "output" else out

    @staticmethod
    def backward(ctx, grad):
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_() for x in ctx.saved_tensors]
            grads = torch.autograd.grad(listing(*leaves), leaves, grad)
        names = [f"d{x}" for x in problems.CBSA.inputs]
        return None, *(g * 1.25 if n == ctx.spoil else g for n, g in zip(names, grads, strict=True))


@pytest.mark.parametrize("spoil", ["output", "dw", "dreps", "dstep_rep", "dstep_out"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_wrong_operator_is_refused_by_what_is_wrong(spoil, dtype):
    checks = gate_of(problems.CBSA, dtype=dtype).check(lambda *x: Spoiled.apply(spoil, *x))
    assert [c.what for c in checks if not c.passed] == [spoil]
    assert refusal(checks).startswith(f"{spoil} errs by 0.2")
    assert all(c.passed for c in gate_of(problems.CBSA, dtype=dtype).check(lambda *x: Spoiled.apply("", *x)))


def test_wrong_batch_elements_tokens_and_shapes_are_refused():
    def last_is_wrong(*x):
        out = listing(*x)
        return torch.cat([out[:-1], 2 * out[-1:]])

    def not_a_number(*x):
        return listing(*x) * torch.nan

    gate = gate_of(problems.CBSA)
    assert "output" in refusal(gate.check(last_is_wrong))
    assert "output errs by inf" in refusal(gate.check(not_a_number))
    assert gate.check(not_a_number)[0].as_dict()["error"] == "not finite"
    assert refusal(gate.check(lambda *x: listing(*x)[:, :, :-1], gradients=False)) is not None


def test_softmax_attention_is_held_to_its_first_and_last_query():
    gate = gate_of(problems.SOFTMAX, Geometry(tokens=200, batch=2, heads=2, head_dim=8))
    assert (gate.rows[0], gate.rows[-1], len(gate.rows)) == (0, 199, 64)
    attend = torch.nn.functional.scaled_dot_product_attention
    assert refusal(gate.check(attend)) is None
    scaled = refusal(gate.check(lambda q, k, v: attend(q, k, v, scale=0.3)))
    assert all(name in scaled for name in ("output", "dq", "dk", "dv"))
    window = torch.ones(200, 200, dtype=torch.bool)
    window[-1, 0] = False  # one query does not see one key
    assert "output" in refusal(gate.check(lambda q, k, v: attend(q, k, v, attn_mask=window)))


def test_models_are_held_to_float32_logits_and_gradients():
    truth = torch.randn(4, 10)
    near, far = truth * 1.01, truth * 1.5
    assert check_logits(near, truth, near, torch.bfloat16).passed
    assert not check_logits(far, truth, near, torch.bfloat16).passed
    assert not check_logits(far * torch.nan, truth, near, torch.bfloat16).passed
    assert not check_logits(near, truth, near * torch.nan, torch.bfloat16).passed
    names = ("stem.weight", "blocks.0.attn.step", "blocks.1.attn.step", "head.bias")
    truths, plain = (dict.fromkeys(names, (1 + off) * truth) for off in (0, 0.05))
    assert check_gradients(plain, truths, plain, torch.bfloat16).passed
    for name, told in zip(names, ("stem.weight", *["blocks.*.attn.step"] * 2, "head.bias"), strict=True):
        for wrong in (far, near * torch.inf):
            check = check_gradients({**plain, name: wrong}, truths, plain, torch.bfloat16)
            assert (check.what, check.passed) == (f"gradient of {told}", False)
        assert not check_gradients({**plain, name: None}, truths, plain, torch.bfloat16).passed
    assert str(Check("output", 0.5, 0.25)) == "output errs by 0.5, allowed 0.25"


def test_a_kind_that_happens_to_err_little_is_not_held_to_that():
    """Four kinds whose plain gradients err by a tenth, one by nothing: that one may err as they do."""
    truths = {f"blocks.0.{name}": torch.ones(50) for name in "abcde"}
    plain = {name: 1.1 * truth for name, truth in truths.items()}
    plain["blocks.0.e"] = torch.ones(50)
    mine = {**plain, "blocks.0.e": 1.1 * torch.ones(50)}
    check = check_gradients(mine, truths, plain, torch.bfloat16)
    assert check.passed
    assert check.allowed == pytest.approx(0.3)
    mine["blocks.0.e"] = 1.5 * torch.ones(50)
    check = check_gradients(mine, truths, plain, torch.bfloat16)
    assert (check.what, check.passed) == ("gradient of blocks.*.e", False)
