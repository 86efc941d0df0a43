"""The paper's claims about its operators, in float64 at random shapes.

Independent truths are in tests/truth.py (columns, explicit inverses) and autograd.
"""

import torch
from hypothesis import given
from hypothesis import strategies as st

from cbsa import objective, ops
from cbsa.layers import CBSA, MSSA, ChannelCBSA, LinearCBSA
from cbsa.ops.reference import contract, extraction_weights
from tests import truth
from tests.compare import assert_close

SIZES = st.integers(1, 10)
SEEDS = st.integers(0, 2**31)
EPS = st.floats(0.1, 2)
TOLERANCE = 1e-9


def orthonormal_bases(k, p):
    """U_[K] (K, d, p): incoherent orthonormal bases with K·p = d."""
    q, _ = torch.linalg.qr(torch.randn(k * p, k * p, dtype=torch.float64))
    return q.reshape(k * p, k, p).permute(1, 0, 2)


def exact_cbsa(z, bases, coefficients, eps, rotations=None):
    """Σ_k U_k B_kᵀ Contraction(B_k U_kᵀZ A_k) A_kᵀ of columns z (d×N): eq. CBSA-ori, eq. CBSA-ori-app."""
    total = torch.zeros_like(z)
    for k, (u, a) in enumerate(zip(bases, coefficients, strict=True)):
        b = torch.eye(u.shape[1], dtype=z.dtype) if rotations is None else rotations[k]
        total = total + u @ b.T @ truth.contraction_columns(b @ u.T @ z @ a, "exact", 1.0, eps) @ a.T
    return total


def layer_with_bases(layer, bases):
    """Load U_[K] into a tied layer whose steps are 1, so that it computes the bare equation."""
    layer = layer.double()
    with torch.no_grad():
        layer.proj.weight.copy_(bases.permute(0, 2, 1).flatten(0, 1))
        for name, parameter in layer.named_parameters():
            if name.startswith("step"):
                parameter.fill_(1)
    return layer


@given(n=SIZES, m=SIZES, k=st.integers(1, 3), p=st.integers(1, 4), eps=EPS, seed=SEEDS)
def test_cbsa_is_the_gradient_of_the_compression_of_representatives(n, m, k, p, eps, seed):
    """Eq. update-Z: ∇_Z R_c(Q | U_[K]) = p/(m ε²)·CBSA(Z), Q = Z A with A held fixed."""
    torch.manual_seed(seed)
    bases = orthonormal_bases(k, p)
    z = torch.randn(n, k * p, dtype=torch.float64, requires_grad=True)
    a = torch.randn(k, n, m, dtype=torch.float64).softmax(1)
    rate = sum(objective.coding_rate(ak.T @ z @ u, eps) for u, ak in zip(bases, a, strict=True))
    (gradient,) = torch.autograd.grad(rate, z)
    operator = exact_cbsa(z.detach().T, bases, a, eps).T
    assert_close(p / (m * eps**2) * operator, gradient, TOLERANCE)
    by_code = sum(
        ak @ contract(ak.T @ z.detach() @ u, "exact", 1.0, eps) @ u.T for u, ak in zip(bases, a, strict=True)
    )
    assert_close(by_code, operator, TOLERANCE)


@given(n=SIZES, m=SIZES, p=st.integers(1, 5), eps=EPS, eta=st.floats(0.1, 2), seed=SEEDS)
def test_the_operator_as_it_runs_is_that_gradient(n, m, p, eps, eta, seed):
    """With representatives R = sg(Q) + η·A w and A held fixed, η·c·contract_broadcast = ∇_w R(R)."""
    torch.manual_seed(seed)
    w = torch.randn(1, 1, n, p, dtype=torch.float64, requires_grad=True)
    q = torch.randn(1, 1, m, p, dtype=torch.float64)
    a = extraction_weights(w, q, p**-0.5).detach()
    (gradient,) = torch.autograd.grad(objective.coding_rate(q + eta * (a @ w), eps).sum(), w)
    one = torch.ones(1, dtype=torch.float64)
    for impl in ("reference", "sdpa"):
        out = ops.contract_broadcast(w, q, eta * one, one, contraction="exact", eps=eps, impl=impl)
        assert_close(eta * p / (m * eps**2) * out, gradient, TOLERANCE)


@given(n=SIZES, k=st.integers(1, 3), p=st.integers(1, 4), eps=EPS, seed=SEEDS)
def test_tokens_as_their_own_representatives_give_exact_mssa(n, k, p, eps, seed):
    """Softmax attention variant, before its approximation: Q = Z and A = I in eq. CBSA-ori."""
    torch.manual_seed(seed)
    bases, z = orthonormal_bases(k, p), torch.randn(n, k * p, dtype=torch.float64)
    eye = torch.eye(n, dtype=torch.float64).expand(k, n, n)
    expected = exact_cbsa(z.T, bases, eye, eps).T
    mssa = layer_with_bases(MSSA(k * p, k, tied=True, contraction="exact", eps=eps), bases)
    assert_close(mssa(z[None])[0], expected, TOLERANCE)
    assert_close(
        p / (n * eps**2) * mssa(z[None])[0], objective.compression_gradient(z, bases, eps), TOLERANCE
    )


@given(n=SIZES, k=st.integers(1, 3), p=st.integers(1, 4), seed=SEEDS)
def test_tokens_as_their_own_representatives_give_mssa(n, k, p, seed):
    """Eq. MSSA is eq. CBSA with Q = Z and A = I: contraction by softmax, nothing to broadcast."""
    torch.manual_seed(seed)
    bases, z = orthonormal_bases(k, p), torch.randn(n, k * p, dtype=torch.float64)
    expected = sum(u @ truth.contraction_columns(u.T @ z.T, "softmax", p**-0.5, 1.0) for u in bases).T
    mssa = layer_with_bases(MSSA(k * p, k, tied=True), bases)
    assert_close(mssa(z[None])[0], expected, TOLERANCE)
    by_code = sum(contract(z @ u, "softmax", p**-0.5, 1.0) @ u.T for u in bases)
    assert_close(by_code, expected, TOLERANCE)


@given(extra=SIZES, k=st.integers(1, 3), p=st.integers(1, 4), eps=EPS, seed=SEEDS)
def test_principal_directions_as_representatives_give_linear_cbsa(extra, k, p, eps, seed):
    """Eq. variant-2: A_k = R_k of the SVD, so m = p."""
    torch.manual_seed(seed)
    bases, z = orthonormal_bases(k, p), torch.randn(p + extra, k * p, dtype=torch.float64)
    right = [torch.linalg.svd(u.T @ z.T, full_matrices=False).Vh.T for u in bases]
    expected = exact_cbsa(z.T, bases, right, eps).T
    layer = layer_with_bases(LinearCBSA(k * p, k, tied=True, eps=eps), bases)
    assert_close(layer(z[None])[0], expected, TOLERANCE)

    def spectral(covariance):
        values, vectors = torch.linalg.eigh(covariance)
        return vectors @ torch.diag(eps**2 / (eps**2 + values)) @ vectors.T

    by_spectrum = sum(u @ spectral(u.T @ z.T @ z @ u) @ u.T @ z.T for u in bases).T
    assert_close(layer(z[None])[0], by_spectrum, TOLERANCE)


@given(extra=SIZES, k=st.integers(1, 3), p=st.integers(1, 4), eps=EPS, seed=SEEDS)
def test_rotated_and_scaled_orthogonal_representatives(extra, k, p, eps, seed):
    """Appendix B: U_kᵀQ = P_k L_k Σ_k Λ_k gives Σ_k U_k L_k Λ_k (I + Λ_k²Σ_k²/ε²)⁻¹ Λ_k L_kᵀ U_kᵀZ."""
    torch.manual_seed(seed)
    bases, z = orthonormal_bases(k, p), torch.randn(k * p, p + extra, dtype=torch.float64)
    coefficients, rotations, closed_form = [], [], torch.zeros_like(z)
    for u in bases:
        left, sigma, right = torch.linalg.svd(u.T @ z, full_matrices=False)
        scales = torch.rand(p, dtype=torch.float64) + 0.2
        coefficients.append(right.T @ torch.diag(scales))
        rotations.append(torch.linalg.qr(torch.randn(p, p, dtype=torch.float64))[0])
        middle = torch.diag(scales**2 / (1 + scales**2 * sigma**2 / eps**2))
        closed_form += u @ left @ middle @ left.T @ u.T @ z
    assert_close(exact_cbsa(z, bases, coefficients, eps, rotations), closed_form, TOLERANCE)
    # In the code's words: contract the rotated representatives, rotate back, broadcast.
    by_code = torch.zeros_like(z)
    for u, a, b in zip(bases, coefficients, rotations, strict=True):
        by_code += u @ b.T @ (a @ contract((b @ u.T @ z @ a).T, "exact", 1.0, eps)).T
    assert_close(by_code, closed_form, TOLERANCE)
    # Without rotation and scaling it is the linear variant.
    unscaled = [torch.linalg.svd(u.T @ z, full_matrices=False).Vh.T for u in bases]
    layer = layer_with_bases(LinearCBSA(k * p, k, tied=True, eps=eps), bases)
    assert_close(layer(z.T[None])[0], exact_cbsa(z, bases, unscaled, eps, rotations).T, TOLERANCE)


@given(extra=SIZES, k=st.integers(1, 3), p=st.integers(1, 4), eps=EPS, seed=SEEDS)
def test_fixed_axes_as_representatives_give_channel_cbsa(extra, k, p, eps, seed):
    """Eq. variant-3 is eq. variant-2 with L_k = I: the basis vectors are the principal directions."""
    torch.manual_seed(seed)
    bases, n = orthonormal_bases(k, p), p + extra
    z = torch.zeros(n, k * p, dtype=torch.float64)
    for u in bases:
        right, _ = torch.linalg.qr(torch.randn(n, p, dtype=torch.float64))
        z += right @ torch.diag(torch.rand(p, dtype=torch.float64) * 3) @ u.T
    linear = layer_with_bases(LinearCBSA(k * p, k, tied=True, eps=eps), bases)
    channel = layer_with_bases(ChannelCBSA(k * p, k, tied=True, eps=eps), bases)
    assert_close(channel(z[None]), linear(z[None]), TOLERANCE)
    # On any tokens it is the equation itself, one basis vector at a time.
    z = torch.randn(n, k * p, dtype=torch.float64)
    expected = torch.zeros_like(z)
    for axis in bases.permute(0, 2, 1).flatten(0, 1):
        projection = z @ axis
        expected += torch.outer(eps**2 / (eps**2 + projection @ projection) * projection, axis)
    assert_close(channel(z[None])[0], expected, TOLERANCE)


@given(side=st.integers(1, 5), k=st.integers(1, 3), p=st.integers(1, 4), seed=SEEDS)
def test_agent_attention_is_cbsa_without_contraction(side, k, p, seed):
    """Pool, gather, broadcast: Aᵀ(Q + η·A w) per head, and nothing else."""
    torch.manual_seed(seed)
    bases, z = orthonormal_bases(k, p), torch.randn(side * side, k * p, dtype=torch.float64)
    agent = layer_with_bases(
        CBSA(k * p, k, tied=True, contraction="none", representatives=(2, 2), num_prefix_tokens=0), bases
    )
    maps = z.T.reshape(1, k * p, side, side)
    pooled = torch.nn.functional.adaptive_avg_pool2d(maps, (2, 2)).flatten(2)[0]  # (d, 4)
    expected = torch.zeros_like(z)
    for u in bases:
        w, q = z @ u, pooled.T @ u
        a = torch.softmax(p**-0.5 * q @ w.T, dim=-1)
        expected += a.T @ (q + a @ w) @ u.T
    assert_close(agent(z[None])[0], expected, TOLERANCE)


@given(side=st.integers(2, 4), m=st.integers(2, 4), k=st.integers(1, 2), p=st.integers(1, 3), seed=SEEDS)
def test_tied_exact_cbsa_with_stop_gradient_descends_the_objective(side, m, k, p, seed):
    """The layer as a user builds it is the gradient step: CBSA(Z) ∝ ∇_Z R_c(Q | U_[K]), A and Q_ini fixed."""
    torch.manual_seed(seed)
    bases, eps = orthonormal_bases(k, p), 0.5
    layer = layer_with_bases(
        CBSA(
            k * p,
            k,
            tied=True,
            contraction="exact",
            representatives=(m, m),
            num_prefix_tokens=0,
            stop_gradient=True,
            eps=eps,
        ),
        bases,
    )
    z = torch.randn(side * side, k * p, dtype=torch.float64, requires_grad=True)
    rate = torch.zeros((), dtype=torch.float64)
    for u in bases:
        w = z @ u
        q = ops.pool_tokens(w.detach()[None], (side, side), (m, m))[0]
        a = torch.softmax(p**-0.5 * q @ w.T, dim=-1).detach()
        rate = rate + objective.coding_rate(q + a @ w, eps)
    (gradient,) = torch.autograd.grad(rate, z)
    assert_close(p / (m * m * eps**2) * layer(z.detach()[None])[0], gradient, TOLERANCE)
