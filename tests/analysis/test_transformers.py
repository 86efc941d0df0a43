"""Probes on vision models of transformers: against what these say of themselves, and layers run by hand."""

import pytest
import torch

import cbsa
from cbsa.analysis import (
    attention_maps,
    coding_rates,
    extraction_factors,
    perturb,
    reduced_coding_rates,
    representatives,
    token_states,
)
from tests.adapt import formulas
from tests.analysis.test_probing import traces
from tests.compare import assert_close

transformers = pytest.importorskip("transformers", reason="needs cbsa[transformers]")
from tests.adapt.test_huggingface import MODELS, SMALL, attentions, make, pixels  # noqa: E402

STYLES = ("cbsa", "agent", "linear")


@torch.no_grad()
def told(model, images):
    """Tokens before and after each layer (1 + L, B, N, dim), and maps (L, B, H, N, N), by transformers."""
    model.set_attn_implementation("eager")
    out = model(images, output_attentions=True, output_hidden_states=True)
    model.set_attn_implementation("sdpa")
    return torch.stack(out.hidden_states), torch.stack(out.attentions)


@torch.no_grad()
def streams(model, layer, x):
    """Query, key and value (B, H, N, d) of the tokens x that enter a layer."""
    attention = attentions(model)[layer]
    (block,) = (m for m in model.modules() if attention in m.children())
    norm = next(n for n in block.children() if isinstance(n, torch.nn.LayerNorm))  # the first of two
    projections = attention.q_proj, attention.k_proj, attention.v_proj
    return [p(norm(x)).unflatten(-1, (2, 16)).transpose(1, 2) for p in projections]


def rate(w, eps=0.1):
    """½ logdet of the N×N matrix, of tokens (…, N, p)."""
    n, p = w.shape[-2:]
    return 0.5 * torch.logdet(torch.eye(n, dtype=w.dtype) + p / (n * eps**2) * w @ w.mT)


@pytest.mark.parametrize("name", MODELS)
def test_maps_states_and_rates_of_softmax_attention(name):
    model, images, prefix = make(name), pixels(), MODELS[name][-1]
    states, maps = told(model, images)  # leaves hooks of transformers behind
    before = traces(model)
    for query in (0, prefix + 7):
        found = attention_maps(model, images, query=query, normalize=False)
        assert found.grid == (6, 6)
        assert_close(found.maps.flatten(-2), maps[:, :, :, query, prefix:], 1e-6)  # eager: softmax in float32
    assert_close(token_states(model, images), states, 1e-6)
    rates = coding_rates(model, images)
    for layer in range(2):
        values = streams(model, layer, states[layer])[2]
        assert_close(rates.input[layer], rate(values).mean(0), 1e-6)
        out = streams(model, layer, states[layer + 1])[2]
        assert_close(rates.feed_forward[layer], rate(out).mean(0), 1e-6)
        unit = out / out.norm(dim=-1, keepdim=True)
        assert_close(rates.normalized_feed_forward[layer], rate(unit).mean(0), 1e-6)
    assert rates.sparsity.isnan().all()
    after = traces(model)
    assert after[:2] == before[:2]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", ["vit", "registers", "siglip"])
def test_maps_of_adapted_models(name, style):
    """Also in another size than the config's."""
    model, prefix = cbsa.adapt(make(name), style, representatives=(2, 3)), MODELS[name][-1]
    images = pixels((48, 32))
    maps = attention_maps(model, images, query=1, normalize=False)
    assert maps.grid == (6, 4)
    x = token_states(model, images)
    if style != "linear":
        factors, reduced = extraction_factors(model, images), reduced_coding_rates(model, images)
        extracted = representatives(model, images).extracted
    for layer in range(2):
        q, k, v = streams(model, layer, x[layer])
        raster = q[:, :, prefix:].mT.unflatten(-1, (6, 4)).flatten(0, 1)
        pooled = torch.nn.functional.adaptive_avg_pool2d(raster, (2, 3)).flatten(2).mT.unflatten(0, (2, 2))
        a = (0.25 * pooled @ k.mT).softmax(-1)
        kernel = q.relu() @ k.relu().mT
        dense = {
            "cbsa": a.mT @ a,
            "agent": (0.25 * q @ pooled.mT).softmax(-1) @ a,
            "linear": kernel / kernel.sum(-1, keepdim=True).clamp(min=1e-300),
        }[style]
        assert_close(maps.maps[layer].flatten(-2), dense[:, :, 1, prefix:], 1e-10)
        if style == "linear":
            continue
        if style == "agent":
            assert_close(dense @ v, formulas.agent(q, k, v, pooled), 1e-10)
        assert_close(factors.factors[layer], a, 1e-10)
        assert_close(extracted[layer], a @ v + (pooled if style == "cbsa" else 0), 1e-10)
        assert_close(reduced.tokens_before[layer], rate(v), 1e-9)


def test_the_vision_tower_of_a_model_of_two():
    sizes = {name: value for name, value in SMALL.items() if name not in ("image_size", "patch_size")}
    config = transformers.SiglipConfig(
        text_config={**sizes, "vocab_size": 9, "projection_size": 32}, vision_config=SMALL
    )
    model = transformers.SiglipModel(config).eval()
    images = pixels().float()
    for looked in (model, cbsa.adapt(model, "cbsa", representatives=(2, 2))):
        both, alone = (attention_maps(m, images, query=3) for m in (looked, looked.vision_model))
        assert torch.equal(both.maps, alone.maps)


def test_what_is_refused_and_why():
    model = transformers.BeitModel(transformers.BeitConfig(**SMALL))
    with pytest.raises(TypeError, match="a BeitModel: of transformers, they know models of type vit, deit,"):
        coding_rates(model, pixels().float())


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("adapted", [False, True])
def test_noise_is_on_all_projections_of_attention_and_nothing_else(name, adapted):
    model = make(name)
    model = cbsa.adapt(model, "cbsa", representatives=(2, 3)) if adapted else model
    before = {key: value.clone() for key, value in model.state_dict().items()}
    images = pixels()
    clean = token_states(model, images)
    expected = {"bases": ("q_proj", "k_proj", "v_proj"), "output": ("o_proj", "out_proj")}
    for part, names in expected.items():
        with perturb(model, 0.1, parts=part) as perturbed:
            changed = {key for key, value in model.state_dict().items() if not value.equal(before[key])}
            noisy = token_states(model, images)
        layers = {key for key in before if not key.startswith("head.")}  # SigLIP pools by another attention
        assert set(perturbed) == changed == {key for key in layers if key.split(".")[-2] in names}
        assert len(changed) == 2 * 2 * (3 if part == "bases" else 1)  # layers, and weight and bias of each
        assert not torch.equal(noisy[1:], clean[1:])
    assert all(value.equal(before[key]) for key, value in model.state_dict().items())
    with (
        pytest.raises(ValueError, match=r"no parameters of parts=\['own'\]"),
        perturb(model, 0.1, parts="own"),
    ):
        pass
