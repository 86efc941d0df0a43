"""What every attention layer promises, checked over the registry."""

import copy

import numpy as np
import pytest
import torch

from cbsa.layers import ATTENTIONS, CBSA, Attention, build_attention
from tests.compare import DEVICES, HALF_DTYPES, assert_close

DIM, HEADS = 24, 3
POOLING = {"cbsa", "agent"}
# (grid, layout of the representatives): image, rectangle, wide strip, sequence, volume, a single patch
LAYOUTS = [
    ((6, 6), (2, 2)),
    ((5, 9), (3, 2)),
    ((1, 17), (2, 4)),
    ((23,), (4,)),
    ((2, 4, 5), (1, 2, 2)),
    ((1, 1), (2, 3)),
]
VARIANTS = {
    **{name: {} for name in ATTENTIONS},
    "cbsa-exact": {"contraction": "exact"},
    "cbsa-tied": {"tied": True},
    "cbsa-learned": {"init": "learned"},
    "cbsa-stop_gradient": {"stop_gradient": True},
    "cbsa-legacy_pool": {"legacy_pool": True},
    "cbsa-sdpa": {"impl": "sdpa"},
    "cbsa-head_dim": {"head_dim": 10},
    "cbsa-extended": {"iterations": 2, "rep_norm": "rms", "broadcast": "per_token", "dwconv": 3},
    "mssa-exact": {"contraction": "exact"},
    "mssa-tied": {"tied": True},
    "linear-relu": {"kernel": "relu"},
    "linear_cbsa-tied": {"tied": True},
    "mhsa-no_bias": {"qkv_bias": False},
}
# Variants whose ways with a grid differ; the others differ within a head alone.
OF_GRIDS = [*ATTENTIONS, "cbsa-learned", "cbsa-legacy_pool", "cbsa-extended"]


def build(variant, representatives=(2, 2), prefix=1, **kwargs):
    name = variant.split("-")[0]
    if name in POOLING:
        kwargs["representatives"] = representatives
    return build_attention(name, DIM, HEADS, **VARIANTS[variant], num_prefix_tokens=prefix, **kwargs)


def tokens(grid, prefix=1, batch=2, dtype=torch.float32, device="cpu"):
    n = prefix + torch.Size(grid).numel()
    return torch.randn(batch, n, DIM, dtype=dtype, device=device)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("grid", "representatives"), LAYOUTS, ids=str)
@pytest.mark.parametrize("prefix", [0, 1, 5])
def test_any_layout_of_tokens(variant, grid, representatives, prefix):
    layer, x = build(variant, representatives, prefix), tokens(grid, prefix)
    out = layer(x, grid)
    assert out.shape == x.shape
    assert out.isfinite().all()
    assert_close(layer.double()(x.double(), grid), out, 1e-4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_parameter_has_a_gradient(variant):
    layer, x = build(variant), tokens((4, 5)).requires_grad_()
    layer(x, (4, 5)).square().sum().backward()
    for name, parameter in [*layer.named_parameters(), ("x", x)]:
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("variant", VARIANTS)
def test_square_is_the_default_layout(variant):
    layer, x = build(variant), tokens((4, 4))
    assert torch.equal(layer(x), layer(x, (4, 4)))


@pytest.mark.parametrize("variant", [v for v in VARIANTS if v != "cbsa-legacy_pool"])
def test_padding_an_image_changes_nothing(variant):
    """An image in the corner of a larger one gives the same outputs, whatever the padding holds."""
    layer, grid, real, prefix = build(variant).double(), (6, 7), (4, 5), 1
    image = torch.randn(2, *real, DIM, dtype=torch.float64)
    cls = torch.randn(2, prefix, DIM, dtype=torch.float64)
    padded = torch.full((2, *grid, DIM), torch.nan, dtype=torch.float64)
    mask = torch.zeros(2, *grid, dtype=torch.bool)
    padded[:, : real[0], : real[1]], mask[:, : real[0], : real[1]] = image, True
    mask = torch.cat([torch.ones(2, prefix, dtype=torch.bool), mask.flatten(1)], 1)
    x = torch.cat([cls, padded.flatten(1, 2)], 1).requires_grad_()

    small = torch.cat([cls, image.flatten(1, 2)], 1).requires_grad_()
    expected = layer(small, real)
    actual = layer(x, grid, mask)
    assert_close(actual[mask].reshape(expected.shape), expected, 1e-9)
    assert (actual[~mask] == 0).all()

    weight = torch.randn_like(expected)
    parameters = list(layer.parameters())
    truth = torch.autograd.grad(expected, [small, *parameters], weight)
    grads = torch.autograd.grad(actual[mask].reshape(expected.shape), [x, *parameters], weight)
    assert_close(grads[0][mask].reshape(small.shape), truth[0], 1e-9)
    assert (grads[0][~mask] == 0).all()
    for a, t in zip(grads[1:], truth[1:], strict=True):
        assert_close(a, t, 1e-9)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [torch.float32, *HALF_DTYPES], ids=str)
def test_ragged_batch_with_one_row_of_nothing_but_padding(variant, dtype):
    layer, x = build(variant), tokens((5, 5), batch=3).requires_grad_()
    mask = torch.rand(3, 26) < 0.5
    mask[0], mask[1] = False, True
    with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
        out = layer(x, (5, 5), mask)
        alone = layer(x[1:2], (5, 5))[0]
    assert out.isfinite().all()
    assert (out[~mask] == 0).all()
    assert_close(out[1], alone, 32 * torch.finfo(dtype).eps)
    out.float().square().sum().backward()
    assert x.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize("variant", VARIANTS)
def test_all_zero_tokens_in_float16(variant):
    layer, x = build(variant).half(), torch.zeros(2, 26, DIM, dtype=torch.float16, requires_grad=True)
    out = layer(x, (5, 5))
    out.sum().backward()
    assert out.isfinite().all()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("variant", VARIANTS)
def test_float64_under_autocast(variant):
    layer, x = build(variant).double(), tokens((5, 5), dtype=torch.float64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under_autocast = layer(x, (5, 5))
    assert under_autocast.dtype == torch.float64
    assert_close(under_autocast, layer(x, (5, 5)), 1e-12)


@pytest.mark.parametrize("variant", OF_GRIDS)
def test_compiles_with_symbolic_sizes(variant):
    layer, x = build(variant), tokens((4, 5))
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    assert_close(compiled(x, (4, 5)), layer(x, (4, 5)), 1e-5)


def test_sizes_may_be_numpys_integers():
    layer = build_attention(
        "cbsa", np.int64(24), np.int32(3), representatives=(np.int64(2), 2), eps=np.float32(0.1)
    )
    assert layer(tokens((4, 5)), (np.int64(4), np.int64(5))).shape == (2, 21, 24)


@pytest.mark.parametrize("variant", VARIANTS)
def test_empty_batch(variant):
    layer, x = build(variant), tokens((4, 4), batch=0).requires_grad_()
    out = layer(x)
    out.sum().backward()
    assert out.shape == (0, 17, DIM)
    assert all(p.grad is not None and (p.grad == 0).all() for p in layer.parameters())


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_single_token(variant):
    layer = build(variant, prefix=0)
    x = tokens((1, 1), prefix=0).requires_grad_()
    out = layer(x)
    out.sum().backward()
    assert out.isfinite().all()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", HALF_DTYPES, ids=str)
def test_low_precision_and_autocast(variant, dtype, device):
    layer, x = build(variant).to(device), tokens((4, 5), device=device)
    expected = copy.deepcopy(layer).double()(x.double(), (4, 5))
    low = copy.deepcopy(layer).to(dtype)(x.to(dtype), (4, 5))
    with torch.autocast(device, dtype=dtype):
        mixed = layer(x, (4, 5))
    mixed.square().sum().backward()
    assert low.dtype == mixed.dtype == dtype
    for actual in (low, mixed):
        assert_close(actual, expected, 32 * torch.finfo(dtype).eps)
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize("variant", VARIANTS)
def test_compiles_into_one_graph(variant):
    layer = build(variant)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for grid in [(4, 5), (6, 3), (7, 7)]:
        x = tokens(grid).requires_grad_()
        expected, actual = layer(x, grid), compiled(x, grid)
        assert_close(actual, expected, 1e-5)
        weight = torch.randn_like(expected)
        for a, t in zip(
            torch.autograd.grad(actual, [x, *layer.parameters()], weight),
            torch.autograd.grad(expected, [x, *layer.parameters()], weight),
            strict=True,
        ):
            assert_close(a, t, 1e-4)


@pytest.mark.parametrize("variant", OF_GRIDS)
def test_compiles_with_a_square_of_changing_size(variant):
    layer = build(variant)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for side in (4, 5, 6):
        x = tokens((side, side))
        assert_close(compiled(x), layer(x), 1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_any_strides(variant):
    layer, x = build(variant), tokens((4, 5))
    strided = x.transpose(0, 2).contiguous().transpose(0, 2)
    assert_close(layer(strided, (4, 5)), layer(x, (4, 5)), 1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_meta_device_and_state_dict(variant):
    layer = build(variant)
    with torch.device("meta"):
        skeleton = build(variant)
    assert skeleton(tokens((4, 4), device="meta")).shape == (2, 17, DIM)
    skeleton.load_state_dict(layer.state_dict(), assign=True)
    x = tokens((4, 4))
    assert torch.equal(skeleton(x), layer(x))


@pytest.mark.parametrize("variant", VARIANTS)
def test_describes_itself(variant):
    text = repr(build(variant))
    assert f"dim={DIM}, num_heads={HEADS}" in text
    assert isinstance(build(variant), Attention)


@pytest.mark.parametrize("name", ATTENTIONS)
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda f: f(10, 3), ValueError, "dim=10 is not divisible by num_heads=3"),
        (lambda f: f(0, 3), ValueError, "dim must be at least 1, got 0"),
        (lambda f: f(12, 0), ValueError, "num_heads must be at least 1, got 0"),
        (lambda f: f(12, 2.0), TypeError, "num_heads must be an integer, got 2.0"),
        (lambda f: f(12, 3, head_dim=0), ValueError, "head_dim must be at least 1, got 0"),
        (lambda f: f(12, 3)(torch.randn(17, 12)), ValueError, r"\(B, N, 12\).*got \(17, 12\)"),
        (lambda f: f(12, 3)(torch.randn(2, 17, 8)), ValueError, r"\(B, N, 12\).*got \(2, 17, 8\)"),
        (lambda f: f(12, 3)(torch.randn(2, 0, 12)), ValueError, r"N >= 1, got \(2, 0, 12\)"),
        (lambda f: f(12, 3)(torch.ones(2, 17, 12).long()), TypeError, "x must be of a real floating-point"),
        (lambda f: f(12, 3)(torch.randn(2, 17, 12), (5, 5)), ValueError, r"grid=\(5, 5\) holds 25 tokens"),
        (lambda f: f(12, 3)(torch.randn(2, 17, 12), (2, 2)), ValueError, r"grid=\(2, 2\) holds 4.*are 16"),
        (lambda f: f(12, 3)(torch.randn(2, 17, 12), (4, -4)), ValueError, r"grid\[1\] must be at least 1"),
        (
            lambda f: f(12, 3)(torch.randn(2, 17, 12), None, torch.ones(2, 16, dtype=torch.bool)),
            ValueError,
            r"mask must have shape \(B, N\) = \(2, 17\), got \(2, 16\)",
        ),
        (
            lambda f: f(12, 3)(torch.randn(2, 17, 12), None, torch.ones(2, 17)),
            TypeError,
            "mask must be a boolean tensor",
        ),
    ],
)
def test_bad_input_is_named(name, call, error, message):
    with pytest.raises(error, match=message):
        call(ATTENTIONS[name])


def test_unknown_name_gets_the_nearest():
    with pytest.raises(ValueError, match=r"name='cbs'.*did you mean 'cbsa'"):
        build_attention("cbs", 12, 3)
    with pytest.raises(TypeError, match="name must be a string"):
        build_attention(CBSA, 12, 3)
