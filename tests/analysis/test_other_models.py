"""Probes on adapted ViTs, segmenters and the original ToST: against layers run by hand, in float64."""

import pytest
import torch
from timm.models.vision_transformer import ParallelScalingBlock, VisionTransformer
from torch import nn
from torch.nn import functional as F

import cbsa
from cbsa.analysis import (
    attention_factors,
    attention_maps,
    coding_rates,
    extraction_factors,
    extraction_rank,
    perturb,
    reduced_coding_rates,
    representatives,
    token_states,
    zero_shot_segmentation,
)
from cbsa.segmentation import create_segmenter
from tests.adapt.vits import images, make
from tests.analysis.test_probing import traces
from tests.compare import assert_close

KINDS = ["vit", "dinov2 registers", "qk norm, gap", "rectangle"]  # 1, 5, 0 and 1 prefix tokens
SHARPNESS = 0.7


def adapted(kind="vit", styles=("cbsa", "agent", "linear")):
    """A ViT whose layers differ in style."""
    model = make(kind)
    for layer, style in enumerate(styles):
        scale = SHARPNESS if style == "agent" else None
        name, _, broadcast = style.partition(" by ")
        options = {"broadcast_scale": scale, "broadcast": broadcast or "transpose"}
        cbsa.adapt(model, name, layers=[layer], representatives=(2, 2), **options)
    return model


BY_SOFTMAX = "cbsa by softmax"


@torch.no_grad()
def vit_states(model, pixels):
    """For each block: what enters it, what its attention leaves, what it returns, all (B, N, dim)."""
    x = model.norm_pre(model._pos_embed(model.patch_embed(pixels)))
    result = []
    for block in model.blocks:
        attended = x + block.ls1(block.attn(block.norm1(x)))
        out = attended + block.ls2(block.mlp(block.norm2(attended)))
        result.append((x, attended, out))
        x = out
    return result


@torch.no_grad()
def mixed(model, layer, x):
    """Query, key and value (B, H, N, d), and the pooled queries (B, H, m, d), of tokens x before the norm."""
    attention, (height, width) = model.blocks[layer].attn, model.patch_embed.grid_size
    q, k, v = attention.qkv(model.blocks[layer].norm1(x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
    q, k = attention.q_norm(q), attention.k_norm(k)
    patches = q[:, :, model.num_prefix_tokens :].mT.unflatten(-1, (height, width)).flatten(0, 1)
    reps = F.adaptive_avg_pool2d(patches, (2, 2)).flatten(2).mT.unflatten(0, q.shape[:2])
    return q, k, v, reps


def dense(style, q, k, reps):
    """The whole map (B, H, N, N)."""
    scale = q.shape[-1] ** -0.5
    if style == "softmax":
        return (scale * q @ k.mT).softmax(-1)
    if style == "linear":
        products = q.relu() @ k.relu().mT
        total = products.sum(-1, keepdim=True)
        return products / torch.where(total > 0, total, 1)
    a = (scale * reps @ k.mT).softmax(-1)  # (B, H, m, N)
    return taken_up(style, q, k, reps, a) @ a


def taken_up(style, q, k, reps, a):
    """Weights of the broadcast, (B, H, N, m)."""
    scale = q.shape[-1] ** -0.5
    by = {"cbsa": a.mT, BY_SOFTMAX: (scale * k @ reps.mT).softmax(-1)}
    return by.get(style, (SHARPNESS * q @ reps.mT).softmax(-1))


def rate(w, eps=0.1):
    """½ logdet of the N×N matrix, of tokens (…, N, p)."""
    n, p = w.shape[-2:]
    return 0.5 * torch.logdet(torch.eye(n, dtype=w.dtype) + p / (n * eps**2) * w @ w.mT)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("styles", [("cbsa", "agent", "linear"), ("softmax", "agent", BY_SOFTMAX)], ids=str)
def test_maps_of_adapted_vits_are_rows_of_the_dense_ones(kind, styles):
    model = adapted(kind, styles)
    pixels, prefix = images(model), model.num_prefix_tokens
    factors = attention_factors(model, pixels)
    last = 3 + prefix
    found = {q: attention_maps(model, pixels, query=q, normalize=False) for q in (0, last)}
    assert found[0].grid == factors.grid == model.patch_embed.grid_size
    for layer, (style, (x, _, _)) in enumerate(zip(styles, vit_states(model, pixels), strict=True)):
        q, k, v, reps = mixed(model, layer, x)
        truth = dense(style, q, k, reps)
        for query, maps in found.items():
            assert_close(maps.maps[layer].flatten(-2), truth[:, :, query, prefix:], 1e-11)
            assert_close(factors.factors[layer].row(query), truth[:, :, query], 1e-11)
        if not style.startswith("cbsa"):  # there the map is an estimate; else values really mix by it
            out = model.blocks[layer].attn.style.attend if style != "softmax" else None
            by_layer = (
                F.scaled_dot_product_attention(q, k, v)
                if out is None
                else out(q, k, v, q.shape[-1] ** -0.5, model.patch_embed.grid_size, prefix)
            )
            assert_close(truth @ v, by_layer, 1e-11)


@pytest.mark.parametrize("kind", ["vit", "qk norm, gap"])
@pytest.mark.parametrize("star", ["cbsa", BY_SOFTMAX])
def test_rates_ranks_and_states_of_adapted_vits(star, kind):
    model = adapted(kind, (star, "agent", "softmax"))
    pixels = images(model)
    truth = vit_states(model, pixels)
    rates = coding_rates(model, pixels)
    for layer, states in enumerate(truth):
        for name, x in zip(("input", "attention", "feed_forward"), states, strict=True):
            values = mixed(model, layer, x)[2]
            assert_close(getattr(rates, name)[layer], rate(values).mean(0), 1e-9)
            unit = values / values.norm(dim=-1, keepdim=True)
            assert_close(getattr(rates, f"normalized_{name}")[layer], rate(unit).mean(0), 1e-9)
    assert rates.sparsity.isnan().all()
    assert_close(token_states(model, pixels), torch.stack([truth[0][0], *(s[2] for s in truth)]), 1e-12)

    reduced, ranks = reduced_coding_rates(model, pixels), extraction_rank(model, pixels)
    found, factors = representatives(model, pixels), extraction_factors(model, pixels)
    assert reduced.layers == ranks.layers == found.layers == factors.layers == (0, 1)
    assert ranks.init == ("pool", "pool")
    for layer, style in enumerate((star, "agent")):
        q, k, v, reps = mixed(model, layer, truth[layer][0])
        scale = q.shape[-1] ** -0.5
        a = (scale * reps @ k.mT).softmax(-1)
        r = reps + a @ v if style == star else a @ v
        c = (scale * r @ r.mT).softmax(-1) @ r if style == star else r
        taken = taken_up(style, q, k, reps, a)
        assert_close(found.extracted[layer], r, 1e-11)
        assert_close(found.contracted[layer], c, 1e-11)
        assert_close(factors.factors[layer], a, 1e-11)
        assert_close(factors.row(1)[layer], (taken @ a)[:, :, 1], 1e-11)
        assert_close(reduced.tokens[layer], (rate(v) - rate(taken @ c)).mean(0), 1e-9)
        assert_close(reduced.representatives[layer], (rate(r) - rate(c)).mean(0), 1e-9)
        assert torch.equal(ranks.rank[layer], torch.linalg.matrix_rank(a))


def test_a_vit_without_representatives_and_one_whose_queries_are_all_of_them():
    model = make()
    with pytest.raises(TypeError, match=r"no CBSA or Agent layer \(its attention is timm's Attention\)"):
        extraction_rank(model, images(model))
    cbsa.adapt(model, representatives=None)
    ranks = extraction_rank(model, images(model))
    assert ranks.init == ("queries",) * 3
    assert ranks.maximum == 17
    cbsa.adapt(model, "linear", layers=[1])
    with pytest.raises(TypeError, match="layer 1 is attention adapted with style='linear', which has no rep"):
        extraction_rank(model, images(model), layers=[1])


# --- segmenters -------------------------------------------------------------------------------------------

CLASSES = 3


def segmenter(decoder="cbt", **options):
    """On an adapted ViT, with large random weights."""
    vit = VisionTransformer(img_size=16, patch_size=4, embed_dim=24, depth=2, num_heads=2, num_classes=0)
    small = {"depth": 2, "num_heads": 2, "head_dim": 6} | options
    small |= {"representatives": (2, 2)} if decoder == "cbt" else {}
    model = create_segmenter(cbsa.adapt(vit, representatives=(2, 2)), decoder, CLASSES, decoder_kwargs=small)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(float("norm" in name and name.endswith("weight")), std=0.3)
    return model.double().eval()


@torch.no_grad()
def decoder_states(model, pixels, classes=True):
    """For each layer of the decoder: its norm, what enters it and what its attention leaves."""
    tokens = model.encoder.forward_features(pixels)[:, 1:]
    tokens = model.decoder.proj_in(tokens) if hasattr(model.decoder, "proj_in") else tokens
    queries = model.decoder.class_tokens.expand(len(pixels), -1, -1)
    x = torch.cat([queries, tokens], dim=1) if classes else tokens
    result = []
    for block in model.decoder.blocks:
        norm = block.norm1 if hasattr(block, "norm1") else block.norm
        result.append((norm, x, x + block.attn(norm(x), (3, 5))))
        x = block(x, (3, 5))
    return result, x


@pytest.mark.parametrize(
    ("decoder", "options"),
    [("cbt", {}), ("depict", {}), ("depict", {"mode": "cross"}), ("mask_transformer", {})],
)
def test_a_segmenter_stands_for_its_decoder(decoder, options):
    model = segmenter(decoder, **options)
    pixels = torch.randn(2, 3, 12, 20, dtype=torch.float64)
    layers, last = decoder_states(model, pixels, classes=options.get("mode") != "cross")
    states = token_states(model, pixels)
    assert_close(states, torch.stack([*(x for _, x, _ in layers), last]), 1e-11)
    rates, factors = coding_rates(model, pixels), attention_factors(model, pixels)
    maps = attention_maps(model, pixels, query=1, normalize=False)  # of the second class
    assert maps.maps.shape == (2, 2, 2, 3, 5)
    for index, (norm, x, attended) in enumerate(layers):
        attention = model.decoder.blocks[index].attn
        heads = [attention.proj(norm(t)).unflatten(-1, (attention.streams, 2, -1)) for t in (x, attended)]
        streams, after = (h.permute(2, 0, 3, 1, 4) for h in heads)  # (S, B, H, N, p)
        assert_close(rates.input[index], rate(streams[-1]).mean(0), 1e-9)
        assert_close(rates.attention[index], rate(after[-1]).mean(0), 1e-9)
        if decoder == "cbt":
            patches = streams[0][:, :, CLASSES:].mT.unflatten(-1, (3, 5)).flatten(0, 1)
            reps = F.adaptive_avg_pool2d(patches, (2, 2)).flatten(2).mT.unflatten(0, (2, 2))
            a = (streams.shape[-1] ** -0.5 * reps @ streams[0].mT).softmax(-1)
            truth = a.mT @ a
        else:
            keys = streams[min(1, len(streams) - 1)]
            truth = (streams.shape[-1] ** -0.5 * streams[0] @ keys.mT).softmax(-1)
        assert_close(maps.maps[index].flatten(-2), truth[:, :, 1, -15:], 1e-11)
        assert_close(factors.factors[index].row(4), truth[:, :, 4], 1e-11)
    if decoder != "mask_transformer":  # no feed-forward
        assert torch.equal(rates.attention, rates.feed_forward)


def test_the_encoder_of_a_segmenter_is_probed_by_itself():
    model, pixels = segmenter(), torch.randn(1, 3, 12, 20, dtype=torch.float64)
    maps = attention_maps(model.encoder, pixels)
    assert maps.grid == (3, 5)
    assert maps.layers == (0, 1)
    masks = torch.ones(1, 12, 20, dtype=torch.long)
    for part in (model, model.encoder):
        assert zero_shot_segmentation(part, pixels, masks).jaccard.shape == (2, 1, 2, 3)


@pytest.mark.parametrize("make_model", [adapted, segmenter])
def test_no_trace_is_left(make_model):
    model = make_model().train()
    hooks, modes, before = traces(model)
    pixels = torch.randn(1, 3, 64, 64, dtype=torch.float64)
    for probe in (coding_rates, attention_maps, token_states):
        probe(model, pixels)
        with pytest.raises(ValueError, match="images must have shape"):
            probe(model, pixels[0])
    hooks_after, modes_after, after = traces(model)
    assert (hooks_after, modes_after) == (hooks, modes)
    assert all(torch.equal(before[name], after[name]) for name in before)


# --- noise ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ("bases", {"qkv.weight"}),
        ("output", {"proj.weight", "proj.bias"}),
        ("own", {"q_norm.weight", "q_norm.bias", "k_norm.weight", "k_norm.bias", "norm.weight", "norm.bias"}),
    ],
)
def test_noise_on_adapted_layers_and_on_timms_own(parts, expected):
    model = adapted("qk norm, gap", ("cbsa", "softmax", "linear"))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with perturb(model, 0.1, parts=parts) as names:
        changed = {n for n, value in model.state_dict().items() if not torch.equal(value, before[n])}
    assert changed == set(names) == {f"blocks.{i}.attn.{name}" for i in range(3) for name in expected}
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_noise_on_a_segmenter_is_that_on_both_of_its_parts():
    model = segmenter()
    with perturb(model, 0.1) as names:
        assert {name.split(".attn.")[0] for name in names} == {
            f"{part}.blocks.{i}" for part in ("encoder", "decoder") for i in range(2)
        }
    with perturb(model.decoder, 0.1) as names:
        assert {name.split(".attn.")[0] for name in names} == {"blocks.0", "blocks.1"}


# --- the original ToST, and what is refused ---------------------------------------------------------------


@torch.no_grad()
def test_the_original_tost():
    model = cbsa.create_model("tost_cab_tiny_12_patch16_224", depth=2).double().eval()
    pixels = torch.randn(1, 3, 32, 48, dtype=torch.float64)
    rates, states = coding_rates(model, pixels), token_states(model, pixels)
    assert states.shape == (3, 1, 6, 192)
    for index, block in enumerate(model.blocks):
        x = states[index]
        attended = x + block.gamma1 * block.attn(block.norm1(x), (2, 3))
        for name, tokens in (("input", x), ("attention", attended), ("feed_forward", states[index + 1])):
            w = block.attn.proj(block.norm1(tokens)).unflatten(-1, (block.attn.num_heads, -1)).transpose(1, 2)
            assert_close(getattr(rates, name)[index], rate(w).mean(0), 1e-9)
    with pytest.raises(TypeError, match="layer 0 is TSSA: its softmax is over heads"):
        attention_maps(model, pixels)


def odd_vit(**options):
    return VisionTransformer(16, 4, embed_dim=24, depth=1, num_heads=2, **options)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: nn.Linear(2, 2), r"a Linear: give a model of cbsa .*, a Segmenter, a VisionTransformer of"),
        (lambda: nn.DataParallel(odd_vit()), r"a DataParallel, a wrapper: .* that it holds as \.module"),
        (lambda: torch.compile(odd_vit()), r"a wrapper: give the model that it holds as \._orig_mod"),
        (lambda: segmenter().decoder, "a CBTDecoder alone, which sees no images: give its Segmenter"),
        (lambda: odd_vit(block_fn=ParallelScalingBlock), "layer 0 is a ParallelScalingBlock with NoneType"),
    ],
)
@pytest.mark.parametrize("probe", [coding_rates, attention_maps])
def test_what_is_refused_and_why(probe, model, message):
    with pytest.raises(TypeError, match=message):
        probe(model(), torch.randn(1, 3, 16, 16))
