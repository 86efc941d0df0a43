"""Reduced coding rates against the paper's equations in columns, one image, layer and head at a time."""

import math

import numpy as np
import pytest
import torch

from cbsa.analysis import reduced_coding_rates
from cbsa.analysis.reduction import pearson
from tests import truth
from tests.analysis.models import pixels, small_model, states
from tests.analysis.test_maps import heads_of, pooled
from tests.compare import DEVICES, assert_close

NAMES = ("tokens_before", "tokens_after", "representatives_before", "representatives_after")


def rates_by_definition(model, images, layers, *, eps=0.1, kappa=1.0, step=False):
    """(4, layers, images, heads) from the definition, kappa None for the learned one."""
    inputs, grid = states(model, images)
    result = []
    for layer in layers:
        block, attn = model.blocks[layer], model.blocks[layer].attn
        for x in block.norm1(inputs[layer][0]):
            for h, w in enumerate(heads_of(attn.proj, x, 3)):
                if attn.initial_reps is None:
                    q = pooled(w, grid, attn.legacy_pool).T
                else:
                    q = heads_of(attn.proj, attn.initial_reps, 3)[h].T
                z, scale = w.T, 8**-0.5
                a = truth.extraction_matrix(z, q, scale)
                r = q + attn.step_rep[h] * z @ a
                c = truth.contraction_columns(r, attn.contraction, scale, attn.eps)
                kappa_h = attn.step_out[h] if kappa is None else kappa
                out = kappa_h * c @ a.T
                after, contracted = (z + out, r + kappa_h * c) if step else (out, c)
                result += [truth.coding_rate(y, eps) for y in (z, after, r, contracted)]
    return torch.stack(result).view(len(layers), len(images), 3, 4).permute(3, 0, 1, 2)


@pytest.mark.parametrize(
    ("attention", "kwargs"),
    [
        ("cbsa", {}),
        ("cbsa", {"legacy_pool": True}),
        ("cbsa", {"attention_kwargs": {"init": "learned"}}),
        ("cbsa", {"attention_kwargs": {"contraction": "exact"}}),
        ("agent", {}),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "options",
    [{}, {"kappa": None}, {"eps": 0.5, "kappa": -1.0, "step": True}],
    ids=str,
)
@torch.no_grad()
def test_rates_are_the_definition(attention, kwargs, options):
    model, images = small_model(attention, **kwargs), pixels(9, 29)
    expected = rates_by_definition(model, images, (0, 1, 2), **options)
    options = dict(options)
    counterpart = "step" if options.pop("step", False) else "operator"
    rates = reduced_coding_rates(model, images, counterpart=counterpart, **options)
    for name, value in zip(NAMES, expected, strict=True):
        assert_close(getattr(rates, name), value, 1e-9, name)
    assert_close(rates.tokens, (expected[0] - expected[1]).mean(1), 1e-9)
    assert (rates.representatives - (expected[2] - expected[3]).mean(1)).abs().max() < 1e-9
    assert rates.layers == (0, 1, 2)
    assert (rates.eps, rates.kappa, rates.counterpart) == (
        options.get("eps", 0.1),
        options.get("kappa", 1.0),
        counterpart,
    )


@torch.no_grad()
def test_the_output_at_the_learned_step_is_what_the_layer_computes():
    """The rates are of what the model really does: its own operator, hooked."""
    model, images = small_model(depth=1), pixels(20, 12)
    seen, attn = [], model.blocks[0].attn
    attend = attn.attend
    attn.attend = lambda *args: seen.append(attend(*args)) or seen[-1]  # (B, H, N, p)
    rates = reduced_coding_rates(model, images, kappa=None)
    expected = torch.stack([torch.stack([truth.coding_rate(o.T, 0.1) for o in image]) for image in seen[0]])
    assert_close(rates.tokens_after[0], expected, 1e-9)


def test_agents_do_not_contract():
    rates = reduced_coding_rates(small_model("agent"), pixels(20, 12))
    assert rates.representatives.eq(0).all()
    assert math.isnan(rates.correlation)


def test_softmax_contraction_lowers_the_rate_of_representatives():
    rates = reduced_coding_rates(small_model(), pixels(20, 12))
    assert (rates.representatives > 0).all()


def test_correlations_are_numpys():
    rates = reduced_coding_rates(small_model(), pixels(20, 12, batch=4))
    tokens = (rates.tokens_before - rates.tokens_after).numpy()
    reps = (rates.representatives_before - rates.representatives_after).numpy()
    mean, mean_reps = tokens.mean(1), reps.mean(1)
    assert rates.correlation == pytest.approx(np.corrcoef(mean.ravel(), mean_reps.ravel())[0, 1])
    for i in range(3):
        assert rates.correlation_over_heads[i].item() == pytest.approx(
            np.corrcoef(mean[i], mean_reps[i])[0, 1]
        )
        assert rates.correlation_over_layers[i].item() == pytest.approx(
            np.corrcoef(mean[:, i], mean_reps[:, i])[0, 1]
        )
        for h in range(3):
            expected = np.corrcoef(tokens[i, :, h], reps[i, :, h])[0, 1]
            assert rates.correlation_over_images[i, h].item() == pytest.approx(expected)


def test_correlation_in_closed_form():
    x = torch.arange(5.0)
    assert pearson(x, 3 * x - 2).item() == pytest.approx(1)
    assert pearson(x, -x).item() == pytest.approx(-1)
    assert pearson(torch.tensor([1.0, 0, -1, 0]), torch.tensor([0.0, 1, 0, -1])).item() == pytest.approx(0)
    assert pearson(x, torch.full((5,), 0.1)).isnan()
    assert pearson(x[:1], x[:1]).isnan()


def test_hybrids_are_served_where_there_is_cbsa():
    model, images = small_model(["mssa", "cbsa", "agent"]), pixels(8, 8)
    rates = reduced_coding_rates(model, images)
    assert rates.layers == (1, 2)
    assert_close(rates.tokens, reduced_coding_rates(model, images, layers=[1, 2]).tokens, 0)
    with pytest.raises(TypeError, match=r"layer 0 is MSSA, which has no representatives: ask for CBSA"):
        reduced_coding_rates(model, images, layers=[0])


@pytest.mark.parametrize(("attention", "kind"), [("mssa", "MSSA"), ("tssa", "TSSA"), ("mhsa", "MHSA")])
def test_models_without_representatives_are_refused(attention, kind):
    with pytest.raises(TypeError, match=f"no CBSA or Agent layer .its attention is {kind}.*another model"):
        reduced_coding_rates(small_model(attention), pixels(8, 8))


def test_table_has_a_row_per_layer_and_head():
    rates = reduced_coding_rates(small_model(["mssa", "cbsa", "cbsa"]), pixels(20, 12, batch=3))
    rows = rates.table()
    assert [(r["layer"], r["head"]) for r in rows] == [(i, h) for i in (1, 2) for h in range(3)]
    row = rows[4]
    assert row["tokens_before"] == rates.tokens_before[1, :, 1].mean().item()
    assert row["tokens_reduction"] == rates.tokens[1, 1].item()
    assert row["representatives_reduction"] == pytest.approx(
        row["representatives_before"] - row["representatives_after"]
    )
    assert row["correlation_over_images"] == rates.correlation_over_images[1, 1].item()


@pytest.mark.parametrize("device", DEVICES)
def test_single_precision_and_autocast(device):
    model, images = small_model(), pixels(20, 12)
    expected = reduced_coding_rates(model, images)
    model = model.float().to(device)
    rates = reduced_coding_rates(model, images.float())
    assert rates.tokens.dtype == torch.float32
    assert rates.tokens.device.type == device
    for name in NAMES:
        assert_close(getattr(rates, name).cpu(), getattr(expected, name), 1e-4)
    with torch.autocast(device, torch.bfloat16):
        low = reduced_coding_rates(model, images.float())
    assert_close(low.tokens_before.cpu(), expected.tokens_before, 0.05)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"eps": 0.0}, "eps must be above 0"),
        ({"kappa": math.inf}, "kappa must be finite, got inf"),
        ({"counterpart": "steps"}, "counterpart='steps': expected one of 'operator', 'step'"),
        ({"layers": [7]}, "layers must be some of the 3 blocks"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        reduced_coding_rates(small_model(), pixels(8, 8), **arguments)
