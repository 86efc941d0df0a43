"""Coding rates against the definition, one image, layer and head at a time."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from cbsa.analysis import coding_rates, rate_points
from tests import truth
from tests.analysis.models import pixels, small_model, states
from tests.compare import DEVICES, KERNEL_DEVICES, assert_close

FIELDS = ("input", "attention", "feed_forward")
LEARNED = {"attention_kwargs": {"init": "learned"}}


def head(linear, x, h, p):
    """Tokens x (N, dim) in head h of the last projection (values, where there are query, key, value)."""
    own = slice(len(linear.weight) - 3 * p + h * p, len(linear.weight) - 3 * p + (h + 1) * p)
    w = x @ linear.weight[own].T
    return w if linear.bias is None else w + linear.bias[own]


def rates_by_definition(model, images, eps):
    """(layers, 3 points, heads) for tokens as they are, and for tokens of unit length."""
    plain, unit = [], []
    for block, points in zip(model.blocks, states(model, images)[0], strict=True):
        p = block.attn.head_dim
        for z in points:
            for h in range(block.attn.num_heads):
                ws = [head(block.attn.proj, block.norm1(x), h, p).T for x in z]  # p×N for each image
                plain.append(sum(truth.coding_rate(w, eps) for w in ws) / len(ws))
                unit.append(sum(truth.coding_rate(w / w.norm(dim=0), eps) for w in ws) / len(ws))
    shape = (len(model.blocks), 3, model.blocks[0].attn.num_heads)
    return torch.stack(plain).view(shape), torch.stack(unit).view(shape)


@pytest.mark.parametrize("attention", ["cbsa", "mssa", "tssa", "channel_cbsa", "mhsa", ["linear", "agent"]])
@pytest.mark.parametrize(("size", "eps"), [((20, 12), 0.1), ((9, 29), 0.5), ((4, 4), 0.1)])
@torch.no_grad()
def test_rates_are_the_definition(attention, size, eps):
    model, images = small_model(attention, depth=2), pixels(*size)
    rates = coding_rates(model, images, eps)
    plain, unit = rates_by_definition(model, images, eps)
    for i, field in enumerate(FIELDS):
        assert_close(getattr(rates, field), plain[:, i], 1e-10, field)
        assert_close(getattr(rates, f"normalized_{field}"), unit[:, i], 1e-10, field)
    assert rates.eps == eps


@torch.no_grad()
def test_learned_representatives_are_no_tokens():
    """The layer projects them too, after its tokens."""
    model, images = small_model(depth=2, **LEARNED), pixels(20, 12)
    plain, _ = rates_by_definition(model, images, 0.1)
    assert_close(coding_rates(model, images).input, plain[:, 0], 1e-10)


def test_default_precision_is_the_papers():
    model, images = small_model(), pixels(20, 12)
    assert_close(coding_rates(model, images).input, coding_rates(model, images, 0.1).input, 0)


def test_sparsity_counts_exact_zeros():
    model, images = small_model(), pixels(20, 12)
    expected = [(out == 0).double().mean().item() for _, _, out in states(model, images)[0]]
    assert coding_rates(model, images).sparsity.tolist() == pytest.approx(expected)
    assert min(expected) > 0.05


def test_mlp_has_no_sparsity():
    assert coding_rates(small_model("mhsa", feed_forward="mlp"), pixels(8, 8)).sparsity.isnan().all()


def test_table_has_a_row_per_layer_and_head():
    rates = coding_rates(small_model(), pixels(20, 12))
    rows = rates.table()
    assert [(r["layer"], r["head"]) for r in rows] == [(i, h) for i in range(3) for h in range(3)]
    row = rows[5]
    assert row["attention"] == rates.attention[1, 2].item()
    assert row["normalized_feed_forward"] == rates.normalized_feed_forward[1, 2].item()
    assert row["sparsity"] == rates.sparsity[1].item()
    assert all(math.isfinite(value) for r in rows for value in r.values())


@pytest.mark.parametrize("device", DEVICES)
def test_single_precision_is_close(device):
    model, images = small_model(), pixels(20, 12)
    expected = coding_rates(model, images)
    rates = coding_rates(model.float().to(device), images.float())
    for field in FIELDS:
        assert getattr(rates, field).dtype == torch.float32
        assert getattr(rates, field).device.type == device
        tolerance = 1e-4 if device == "cpu" else 1e-3  # kernels take TF32 products
        assert_close(getattr(rates, field).cpu(), getattr(expected, field), tolerance)


@pytest.mark.parametrize(
    "options",
    [{}, {"attention": "mssa"}, {"attention": "mhsa"}, {"feed_forward": "mlp"}, LEARNED],
    ids=str,
)
def test_kernels_measure_the_same(options, monkeypatch):
    """In Triton's interpreter what a GPU would run: norms, Gram matrices, determinants and counts."""
    pytest.importorskip("triton", reason="needs Triton, which comes with PyTorch on Linux")
    device = KERNEL_DEVICES[0]
    model, images = small_model(**options).float().to(device), pixels(20, 12).float().to(device)
    batches = [images, images[:1]]
    monkeypatch.setattr(rate_points, "kernels_run_on", lambda device: False)
    expected = coding_rates(model, batches)
    monkeypatch.setattr(rate_points, "kernels_run_on", lambda device: True)
    made = []
    monkeypatch.setattr(rate_points.KernelPoints, "after", counted(rate_points.KernelPoints.after, made))
    rates = coding_rates(model, batches)
    assert len(made) == 2 * len(rates.sparsity)
    for field in FIELDS:
        assert_close(getattr(rates, field), getattr(expected, field), 1e-3)
    torch.testing.assert_close(rates.sparsity, expected.sparsity, rtol=0, atol=0, equal_nan=True)


def counted(function, calls):
    """The function, and an entry in ``calls`` for each call."""

    def wrapped(*args, **kwargs):
        calls.append(args)
        return function(*args, **kwargs)

    return wrapped


def test_precision_must_be_positive():
    with pytest.raises(ValueError, match="eps must be above 0"):
        coding_rates(small_model(), pixels(8, 8), eps=0.0)


class Calls(TorchDispatchMode):
    """Counts calls of PyTorch's operators by name."""

    def __init__(self):
        super().__init__()
        self.counts = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        self.counts[name] = self.counts.get(name, 0) + 1
        return function(*args, **(kwargs or {}))


def test_one_factorisation_a_layer():
    """Of all three points and heads, plain and normalised, however many batches there are."""
    model, images = small_model(depth=2), pixels(20, 12)
    with Calls() as calls:
        coding_rates(model, [images, images])
    assert calls.counts["linalg_cholesky_ex"] == 2 * 2


def test_zeros_are_counted_where_ista_makes_them_alone():
    for feed_forward, expected in (("ista", 3), ("mlp", 0)):
        with Calls() as calls:
            coding_rates(small_model("mssa", feed_forward=feed_forward), pixels(8, 8))
        assert calls.counts.get("count_nonzero", 0) == expected


@pytest.mark.parametrize("attention", ["mssa", "mhsa"])
def test_of_query_key_and_value_the_value_alone_is_projected_again(attention):
    """Products beyond those of the model: two projections, and six Gram matrices a layer."""
    model, images = small_model(attention, depth=2), pixels(20, 12)
    with FlopCounterMode(display=False) as plain, torch.no_grad():
        model.forward_features(images)
    with FlopCounterMode(display=False) as probed:
        coding_rates(model, images)
    batch, n, dim, heads, p = 2, 16, 24, 3, 8
    extra = 2 * batch * n * (2 * dim * heads * p + 6 * heads * p * p)
    assert probed.get_total_flops() - plain.get_total_flops() == 2 * extra
