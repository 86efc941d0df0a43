"""The matrix function behind all exact operators, against its definition."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cbsa.ops.resolvent import resolvent, resolvent_backward
from tests.compare import assert_close

SIZES = st.integers(1, 12)


def by_inverse(x, c):
    eye = torch.eye(x.shape[-2], dtype=x.dtype)
    return torch.linalg.inv(eye + c * x @ x.mT) @ x


@given(n=SIZES, d=SIZES, c=st.floats(1e-3, 1e3), seed=st.integers(0, 2**31))
def test_value_and_gradient(n, d, c, seed):
    torch.manual_seed(seed)
    x = torch.randn(2, 3, n, d, dtype=torch.float64, requires_grad=True)
    grad = torch.randn_like(x)
    expected = by_inverse(x, c)
    assert_close(resolvent(x, c), expected, 1e-9)
    (expected_grad,) = torch.autograd.grad(expected, x, grad)
    (autograd,) = torch.autograd.grad(resolvent(x, c), x, grad)
    by_hand = resolvent_backward(grad, x.detach(), c)
    for actual in (autograd, by_hand):
        assert (actual - expected_grad).abs().max() < 1e-9 * grad.abs().max()


def test_float32_input_far_beyond_its_precision():
    """c·λ reaches 1e9: a float32 factorisation has nothing positive definite left."""
    x = (1e3 * torch.randn(50, 1) @ torch.randn(1, 8) + torch.randn(50, 8)).requires_grad_()
    out = resolvent(x, 10.0)
    out.sum().backward()
    left, s, right = torch.linalg.svd(x.detach().double(), full_matrices=False)
    assert_close(out, left @ torch.diag(s / (1 + 10 * s**2)) @ right, 1e-6)
    assert x.grad.isfinite().all()


def test_gradients_where_eigenvalues_coincide():
    """An eigendecomposition would divide by zero here."""
    x = torch.eye(6, dtype=torch.float64).repeat(2, 1).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: resolvent(t, 2.0), [x])


def test_no_n_by_n_matrix_when_tokens_outnumber_channels():
    x = torch.randn(200_000, 3, requires_grad=True)
    resolvent(x, 100.0).sum().backward()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_non_finite_input_gives_nan_not_a_number_that_looks_right(bad):
    x = torch.randn(4, 3)
    x[1, 1] = bad
    assert resolvent(x, 1.0).isnan().any()
