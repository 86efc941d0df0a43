"""Coding rates against their definition, closed forms, and autograd."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cbsa import objective
from tests import truth
from tests.compare import DEVICES, HALF_DTYPES, assert_close

SIZES = st.integers(1, 12)
SEEDS = st.integers(0, 2**31)


def random_bases(k, d, p):
    return torch.randn(k, d, p, dtype=torch.float64)


@given(n=SIZES, d=SIZES, eps=st.floats(0.05, 2), seed=SEEDS)
def test_coding_rate_is_its_definition(n, d, eps, seed):
    torch.manual_seed(seed)
    z = torch.randn(2, 3, n, d, dtype=torch.float64)
    expected = torch.stack([truth.coding_rate(t.T, eps) for t in z.flatten(0, 1)]).reshape(2, 3)
    assert_close(objective.coding_rate(z, eps), expected, 1e-9)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, *HALF_DTYPES], ids=str)
def test_low_precision_input_is_computed_in_high_precision(dtype, device):
    z = torch.randn(4, 197, 64, device=device).to(dtype)
    rate = objective.coding_rate(z)
    expected = torch.stack([truth.coding_rate(t.double().T, 0.1) for t in z])
    assert rate.dtype == torch.float32
    assert_close(rate, expected, 1e-6)
    with torch.autocast(device, dtype=torch.bfloat16):
        assert torch.equal(objective.coding_rate(z), rate)


def test_orthonormal_tokens_in_closed_form():
    """Σ log(1 + c) / 2 over the directions."""
    z, _ = torch.linalg.qr(torch.randn(20, 6, dtype=torch.float64))
    assert_close(objective.coding_rate(z), torch.tensor(3 * math.log1p(6 / (20 * 0.01))), 1e-6)


def test_one_repeated_token_in_closed_form():
    """Rank one: ½ log(1 + c·N·|z|²), with a spectrum as bad as can be."""
    token = 100 * torch.randn(768)
    z = token.expand(197, 768)
    expected = 0.5 * math.log1p(768 / (197 * 0.01) * 197 * token.double().square().sum().item())
    assert_close(objective.coding_rate(z), torch.tensor(expected), 2e-5)


def test_compression_projects_in_high_precision():
    z, bases = (5000 * torch.randn(30, 8)).half(), (10 * torch.randn(2, 8, 4)).half()
    expected = sum(truth.coding_rate((z.double() @ u.double()).T, 0.1) for u in bases)
    assert_close(objective.compression(z, bases), expected, 1e-6)
    z = torch.randn(30, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rate, gradient = objective.compression(z, bases), objective.compression_gradient(z, bases)
    assert torch.equal(rate, objective.compression(z, bases))
    assert torch.equal(gradient, objective.compression_gradient(z, bases))
    assert rate.dtype == gradient.dtype == torch.float32


def test_zero_tokens_cost_nothing():
    z = torch.zeros(5, 3, requires_grad=True)
    rate = objective.coding_rate(z)
    rate.backward()
    assert rate.item() == 0
    assert (z.grad == 0).all()


def test_rotations_change_nothing():
    z, rotation = torch.randn(9, 5, dtype=torch.float64), torch.linalg.qr(torch.randn(5, 5).double())[0]
    assert_close(objective.coding_rate(z @ rotation), objective.coding_rate(z), 1e-10)


def test_normalised_rate_depends_on_angles_alone():
    z = torch.randn(9, 5, dtype=torch.float64)
    scaled = z * torch.rand(9, 1, dtype=torch.float64).add(0.1)
    unit = z / z.norm(dim=-1, keepdim=True)
    for tokens in (z, scaled):
        assert_close(objective.coding_rate(tokens, normalize=True), truth.coding_rate(unit.T, 0.1), 1e-10)
    bases = random_bases(2, 5, 3)
    expected = sum(truth.coding_rate((z @ u / (z @ u).norm(dim=-1, keepdim=True)).T, 0.1) for u in bases)
    assert_close(objective.compression(z, bases, normalize=True), expected, 1e-10)


@given(n=SIZES, d=SIZES, p=SIZES, k=st.integers(1, 4), seed=SEEDS)
def test_compression_and_rate_reduction(n, d, p, k, seed):
    torch.manual_seed(seed)
    z, bases = torch.randn(2, n, d, dtype=torch.float64), random_bases(k, d, p)
    z[:, 0, 0] = 0
    rates = torch.stack([sum(truth.coding_rate(u.T @ t.T, 0.3) for u in bases) for t in z])
    assert_close(objective.compression(z, bases, eps=0.3), rates, 1e-9)
    expected = torch.stack([truth.coding_rate(t.T, 0.3) for t in z]) - rates - 0.2 * (n * d - 1)
    assert_close(objective.rate_reduction(z, bases, 0.2, 0.3), expected, 1e-9)


@given(n=SIZES, d=SIZES, p=SIZES, k=st.integers(1, 3), seed=SEEDS)
def test_closed_form_gradients_are_autograds(n, d, p, k, seed):
    torch.manual_seed(seed)
    z, bases = torch.randn(2, n, d, dtype=torch.float64, requires_grad=True), random_bases(k, d, p)

    def autograd(rate):
        return torch.autograd.grad(rate.sum(), z)[0]

    naive = sum(truth.coding_rate(t.T, 0.5) for t in z)
    assert_close(objective.coding_rate_gradient(z, 0.5), autograd(naive), 1e-9)
    assert_close(objective.coding_rate_gradient(z, 0.5), autograd(objective.coding_rate(z, 0.5)), 1e-9)
    naive = sum(truth.coding_rate(u.T @ t.T, 0.5) for t in z for u in bases)
    assert_close(objective.compression_gradient(z, bases, 0.5), autograd(naive), 1e-9)
    reduction = autograd(objective.rate_reduction(z, bases, 0.1, 0.5))
    assert_close(objective.rate_reduction_gradient(z, bases, 0.5), reduction, 1e-8)


def test_gradcheck_on_both_sides():
    for shape in [(3, 5), (6, 2)]:
        z = torch.randn(2, *shape, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda t: objective.coding_rate(t, 0.5), [z])
        assert torch.autograd.gradgradcheck(lambda t: objective.coding_rate(t, 0.5), [z])


def test_a_descent_step_compresses():
    """The point of it all: following −∇R_c lowers R_c."""
    z, bases = torch.randn(40, 12, dtype=torch.float64), torch.linalg.qr(torch.randn(12, 12).double())[0]
    bases = bases.reshape(12, 3, 4).permute(1, 0, 2)
    rates = []
    for _ in range(20):
        rates.append(objective.compression(z, bases).item())
        z = z - 0.1 * objective.compression_gradient(z, bases)
    assert all(after < before for before, after in itertools.pairwise(rates))


def test_empty_batch_and_compile():
    assert objective.coding_rate(torch.zeros(0, 5, 3)).shape == (0,)
    z = torch.randn(2, 9, 5)
    compiled = torch.compile(objective.coding_rate, fullgraph=True, backend="aot_eager")
    assert_close(compiled(z), objective.coding_rate(z), 1e-6)


def test_nan_is_reported_as_nan():
    z = torch.randn(4, 3)
    z[0, 0] = torch.nan
    assert objective.coding_rate(z).isnan()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: objective.coding_rate(torch.randn(3)), ValueError, r"\(\.\.\., N, d\).*got \(3,\)"),
        (lambda: objective.coding_rate(torch.randn(0, 3)), ValueError, r"N, d >= 1, got \(0, 3\)"),
        (
            lambda: objective.coding_rate(torch.ones(3, 3).int()),
            TypeError,
            "floating-point dtype, got torch.int32",
        ),
        (
            lambda: objective.coding_rate(torch.randn(3, 3), eps=-1),
            ValueError,
            "eps must be above 0, got -1",
        ),
        (
            lambda: objective.compression(torch.randn(3, 4), torch.randn(2, 5, 2)),
            ValueError,
            r"bases must have shape \(K, d, p\) with d = 4, got \(2, 5, 2\)",
        ),
        (
            lambda: objective.rate_reduction(torch.randn(3, 4), torch.randn(2, 4, 2), lam=math.nan),
            ValueError,
            "lam must be finite, got nan",
        ),
    ],
)
def test_bad_input_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()
