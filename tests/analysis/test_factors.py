"""Factors of attention, representatives and token states, against maps and outputs had in another way."""

import pytest
import torch
from torch.nn import functional as F

from cbsa.analysis import attention_factors, attention_maps, extraction_factors, representatives, token_states
from tests.analysis.models import pixels, small_model, states

KINDS = {
    "cbsa": "extraction",
    "agent": "extraction",
    "mssa": "softmax",
    "mhsa": "softmax",
    "linear": "kernel",
}


@pytest.mark.parametrize("attention", KINDS)
@pytest.mark.parametrize("query", [0, 7, 15])
def test_rows_are_those_of_the_maps(attention, query):
    model, images = small_model(attention), pixels(20, 12)
    found = attention_factors(model, images)
    maps = attention_maps(model, images, query=query, normalize=False)
    assert found.grid == (5, 3)
    assert [layer.kind for layer in found.factors] == [KINDS[attention]] * 3
    for layer, truth in zip(found.factors, maps.maps, strict=True):
        torch.testing.assert_close(layer.row(query)[..., 1:], truth.flatten(-2))


def test_shares_of_tssa_are_no_map():
    model, images = small_model("tssa"), pixels(20, 12)
    layer = attention_factors(model, images, layers=[-1]).factors[0]
    last, _ = states(model, images)
    block = model.blocks[-1]
    w = block.attn.proj(block.norm1(last[-1][0])).unflatten(-1, (3, 8)).transpose(1, 2)  # (B, H, N, p)
    truth = ((w / w.norm(dim=2, keepdim=True)).square().sum(-1) * block.attn.temp).softmax(1)
    torch.testing.assert_close(layer.factors[0], truth)
    assert layer.kind == "membership"
    with pytest.raises(TypeError, match="no map over tokens"):
        layer.row(0)


def test_layers_without_any_map():
    for model in (small_model("linear_cbsa"), small_model("mssa", attention_kwargs={"contraction": "exact"})):
        (layer,) = attention_factors(model, pixels(20, 12), layers=[0]).factors
        assert (layer.kind, layer.factors) == ("none", ())


def test_hybrids_and_batches():
    model, images = small_model(["mssa", "cbsa", "cbsa"]), pixels(20, 12, batch=3)
    whole = attention_factors(model, images)
    parts = attention_factors(model, iter([images[:2], images[2:]]))
    assert [layer.kind for layer in whole.factors] == ["softmax", "extraction", "extraction"]
    for one, other in zip(whole.factors, parts.factors, strict=True):
        torch.testing.assert_close(one.factors, other.factors)
    torch.testing.assert_close(whole.factors[1].factors[0], extraction_factors(model, images).factors[0])


def test_a_query_beyond_the_tokens():
    (layer,) = attention_factors(small_model(depth=1), pixels(20, 12)).factors
    with pytest.raises(ValueError, match="below the number of tokens, 16, got 16"):
        layer.row(16)


@pytest.mark.parametrize("contraction", ["softmax", "exact", "none"])
def test_broadcasting_the_contracted_representatives_gives_the_layers_output(contraction):
    model, images = small_model(attention_kwargs={"contraction": contraction}), pixels(20, 12)
    found, factors = representatives(model, images), extraction_factors(model, images)
    entering, grid = states(model, images)
    for index, block in enumerate(model.blocks):
        out = factors.factors[index].mT @ found.contracted[index]  # (B, H, N, p)
        out = block.attn.step_out.view(-1, 1, 1) * out
        truth = block.attn(block.norm1(entering[index][0]), grid)
        torch.testing.assert_close(block.attn.to_out(out.transpose(1, 2).flatten(2)), truth)
    same = all(torch.equal(*pair) for pair in zip(found.extracted, found.contracted, strict=True))
    assert same == (contraction == "none")


def test_representatives_need_a_layer_that_has_some():
    assert representatives(small_model(["mssa", "cbsa", "mssa"]), pixels(20, 12)).layers == (1,)
    with pytest.raises(TypeError, match="no CBSA or Agent layer"):
        representatives(small_model("mssa"), pixels(20, 12))


def test_states_are_what_enters_and_leaves_the_blocks():
    model, images = small_model(), pixels(20, 12, batch=3)
    found = token_states(model, iter([images[:1], images[1:]]))
    truth, _ = states(model, images)
    torch.testing.assert_close(found[0], truth[0][0])
    torch.testing.assert_close(found[1:], torch.stack([out for _, _, out in truth]))
    torch.testing.assert_close(
        model.forward_head(
            F.layer_norm(found[-1], (24,), model.norm.weight, model.norm.bias, model.norm.eps)
        ),
        model(images),
    )
