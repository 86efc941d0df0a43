"""Optimisers: which parameters decay, how fast each depth learns, and the update itself."""

import pytest
import timm
import torch
from torch import nn

from cbsa.models import create_model
from cbsa.train import OptimizerConfig
from cbsa.train.optimizer import build_optimizer, set_learning_rate

LR, DECAY, DEPTH = 0.01, 0.3, 3
MODELS = {
    "cbt": "cbt_tiny_patch4_32",
    "crate": "crate_tiny_patch4_32",
    "tost": "tost_tiny_patch4_32",
    "agent": "agent_tiny_patch4_32",
    "vit_conv": "vit_conv_tiny_patch4_32",
}


def make(name="cbt", dtype=torch.float64):
    """A small model without zeros or ones among its parameters, so that a change of any can be seen."""
    model = create_model(MODELS[name], embed_dim=12, depth=DEPTH, num_heads=2, num_classes=3).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.rand_like(parameter) + 0.5)
    return model


def config(name="adamw", **options):
    return OptimizerConfig(
        **({"name": name, "lr": LR, "weight_decay": DECAY, "betas": (0.9, 0.99)} | options)
    )


def factors(model, settings):
    """What one step with gradients of zero multiplies each parameter by; one number each."""
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = build_optimizer(model, settings)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    found = {}
    for name, parameter in model.named_parameters():
        ratios = parameter.detach() / before[name]
        assert (ratios - ratios.mean()).abs().max() < 1e-14, name
        found[name] = ratios.mean().item()
    return found


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", ["lion", "adamw"])
@pytest.mark.parametrize("layer_decay", [1.0, 0.5])
def test_with_decay_all_every_parameter_decays(model, name, layer_decay):
    model = make(model)
    found = factors(model, config(name, layer_decay=1.0))
    assert found.keys() == dict(model.named_parameters()).keys()
    assert all(value == pytest.approx(1 - LR * DECAY, abs=1e-15) for value in found.values())
    # The decay does not depend on the layer, but the learning rate it is multiplied by does.
    settings = config(name, layer_decay=layer_decay)
    groups = build_optimizer(model, settings).param_groups
    assert {group["weight_decay"] for group in groups} == {DECAY}
    assert sum(len(group["params"]) for group in groups) == len(found)


def spared(name):
    """Biases, norms (LayerNorm, BatchNorm), positions, CLS, step sizes and temperatures; named by hand."""
    last = name.rpartition(".")[2]
    if last in ("bias", "pos_embed", "cls_token", "step_rep", "step_out", "temp"):
        return True
    # In the stem, convolutions (proj.i.0) alternate with BatchNorm (proj.i.1).
    return "norm" in name or (name.startswith("patch_embed.proj.") and name.endswith(".1.weight"))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", ["lion", "adamw"])
def test_otherwise_vectors_and_what_the_model_names_are_left_alone(model, name):
    model = make(model)
    found = factors(model, config(name, decay_all=False))
    alone = {n for n, value in found.items() if value == 1}
    decayed = {n for n, value in found.items() if value == pytest.approx(1 - LR * DECAY, abs=1e-15)}
    assert alone | decayed == found.keys()
    assert alone == {n for n in found if spared(n)}
    assert {"pos_embed", "cls_token", "head.bias", "norm.weight"} <= alone
    assert "head.weight" in decayed


def test_step_sizes_are_named_by_the_model_and_not_found_by_their_shape():
    """Were they matrices, they would still be spared."""
    model = make("cbt")
    block = model.blocks[0].attn
    block.step_rep = nn.Parameter(block.step_rep.detach()[:, None])
    found = factors(model, config(decay_all=False))
    assert found["blocks.0.attn.step_rep"] == 1


def test_layer_decay_spares_the_same_parameters():
    model = make("cbt")
    groups = build_optimizer(model, config(decay_all=False, layer_decay=0.5)).param_groups
    names = {p: n for n, p in model.named_parameters()}
    alone = {names[p] for group in groups if group["weight_decay"] == 0 for p in group["params"]}
    assert alone == {n for n in names.values() if spared(n)}


def scales(model, settings):
    """Learning rate of each parameter, of a rate of 1."""
    optimizer = build_optimizer(model, settings)
    set_learning_rate(optimizer, 1.0)
    rates = {p: group["lr"] for group in optimizer.param_groups for p in group["params"]}
    return {name: rates[p] for name, p in model.named_parameters()}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("decay_all", [True, False])
def test_layer_decay_in_closed_form(model, decay_all):
    """timm counts from the top: classifier d⁰, block i d^(depth − i), norm as the last of them, stem last."""
    found = scales(make(model), config(layer_decay=0.7, decay_all=decay_all))
    for name, scale in found.items():
        if name.startswith("blocks."):
            power = DEPTH - int(name.split(".")[1])
        elif name.startswith(("norm.", "head.")):
            power = int(name.startswith("norm."))
        else:
            assert name.startswith(("patch_embed.", "pos_embed", "cls_token"))
            power = DEPTH + 1
        assert scale == pytest.approx(0.7**power, rel=1e-12), name


def test_layer_decay_is_that_of_a_vit_of_timm():
    theirs = timm.create_model(
        "vit_tiny_patch16_224",
        img_size=32,
        patch_size=4,
        embed_dim=12,
        depth=DEPTH,
        num_heads=2,
        num_classes=3,
    )
    expected = scales(theirs, config(layer_decay=0.6))
    found = scales(make("vit_conv"), config(layer_decay=0.6))
    common = [name for name in found if name in expected]
    assert {"pos_embed", "cls_token", "norm.weight", "head.weight", "blocks.1.norm1.weight"} <= set(common)
    for name in common:
        assert found[name] == pytest.approx(expected[name], rel=1e-12), name


def test_without_layer_decay_all_learn_alike():
    assert set(scales(make("cbt"), config()).values()) == {1.0}


def test_the_learning_rate_is_set_for_the_next_step():
    model = make("cbt")
    optimizer = build_optimizer(model, config(layer_decay=0.5))
    for lr in (0.1, 0.02):
        set_learning_rate(optimizer, lr)
        by_parameter = {p: group["lr"] for group in optimizer.param_groups for p in group["params"]}
        assert by_parameter[model.head.weight] == lr
        assert by_parameter[model.blocks[0].norm1.weight] == pytest.approx(lr * 0.5**DEPTH)


def lion(parameters, gradients, lr, decay, betas):
    """Algorithm 2 of the paper on Lion (Chen et al. 2023), step by step."""
    moments = [torch.zeros_like(p) for p in parameters]
    parameters = [p.clone() for p in parameters]
    for step, grads in enumerate(gradients):
        for i, g in enumerate(grads):
            update = torch.sign(betas[0] * moments[i] + (1 - betas[0]) * g)
            parameters[i] = parameters[i] - lr[step] * (update + decay * parameters[i])
            moments[i] = betas[1] * moments[i] + (1 - betas[1]) * g
    return parameters


def walk(model, settings, gradients, rates):
    optimizer = build_optimizer(model, settings)
    for grads, lr in zip(gradients, rates, strict=True):
        set_learning_rate(optimizer, lr)
        for parameter, gradient in zip(model.parameters(), grads, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


@pytest.fixture
def journey():
    """A model, gradients for twelve steps and their learning rates."""
    model = make("cbt")
    gradients = [[torch.randn_like(p) for p in model.parameters()] for _ in range(12)]
    return model, gradients, [0.01 * (1 + t) / 12 for t in range(12)]


@pytest.mark.parametrize("betas", [(0.9, 0.99), (0.95, 0.98), (0.0, 0.0)])
def test_lion_is_the_papers(journey, betas):
    model, gradients, rates = journey
    start = [p.detach().clone() for p in model.parameters()]
    found = walk(model, config("lion", betas=betas), gradients, rates)
    expected = lion(start, gradients, rates, DECAY, betas)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)


def test_adamw_is_pytorchs(journey):
    model, gradients, rates = journey
    twin = [nn.Parameter(p.detach().clone()) for p in model.parameters()]
    found = walk(model, config("adamw", betas=(0.9, 0.95)), gradients, rates)
    reference = torch.optim.AdamW(twin, lr=LR, betas=(0.9, 0.95), eps=1e-8, weight_decay=DECAY)
    for grads, lr in zip(gradients, rates, strict=True):
        reference.param_groups[0]["lr"] = lr
        for parameter, gradient in zip(twin, grads, strict=True):
            parameter.grad = gradient.clone()
        reference.step()
    for a, b in zip(found, twin, strict=True):
        torch.testing.assert_close(a, b.detach(), rtol=1e-12, atol=1e-13)


def test_frozen_parameters_are_left_out():
    model = make("cbt")
    model.patch_embed.requires_grad_(False)
    optimizer = build_optimizer(model, config())
    inside = {p for group in optimizer.param_groups for p in group["params"]}
    assert inside == {p for n, p in model.named_parameters() if not n.startswith("patch_embed.")}


def test_no_decay_at_all():
    assert set(factors(make("cbt"), config(weight_decay=0.0)).values()) == {1.0}


@pytest.mark.parametrize("name", ["lion", "adamw"])
def test_a_model_that_is_no_transformer(name):
    """Of timm, or anybody's: nothing is asked of it but its parameters."""
    model = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(2.0)
    found = factors(model, config(name, decay_all=False))
    assert found == {"0.weight": pytest.approx(1 - LR * DECAY), "0.bias": 1, "1.weight": 1, "1.bias": 1}
