"""The transformer class: sizes, initialisation, options."""

import pytest
import torch
from torch.nn import functional as F

from cbsa import layers
from cbsa.models import Transformer
from cbsa.ops import resample_tokens
from tests.compare import assert_close

LITTLE = {"embed_dim": 24, "depth": 2, "num_heads": 3, "img_size": 32, "patch_size": 8, "num_classes": 5}


def test_block_is_the_papers():
    """x + attn(LN x), then ISTA(LN ·) without a residual."""
    model, x = Transformer(**LITTLE), torch.randn(2, 17, 24)
    block = model.blocks[0]
    middle = x + block.attn(F.layer_norm(x, (24,)), (4, 4))
    assert_close(block(x, (4, 4)), block.ff(F.layer_norm(middle, (24,))), 1e-6)
    vit = Transformer(**LITTLE, attention="mhsa", feed_forward="mlp").blocks[0]
    middle = x + vit.attn(F.layer_norm(x, (24,)), (4, 4))
    assert_close(vit(x, (4, 4)), middle + vit.ff(F.layer_norm(middle, (24,))), 1e-6)


@pytest.mark.parametrize("stem", ["conv", "linear"])
@pytest.mark.parametrize(("size", "grid"), [((32, 32), (4, 4)), ((33, 70), (5, 9)), ((8, 8), (1, 1))])
def test_any_size_gives_patches_rounded_up(stem, size, grid):
    model = Transformer(**LITTLE, stem=stem)
    assert model(torch.randn(2, 3, *size)).shape == (2, 5)
    assert model.forward_intermediates(torch.randn(2, 3, *size))[1][0].shape == (2, 24, *grid)


def test_linear_stem_pads_on_the_right_and_at_the_bottom():
    model, x = Transformer(**LITTLE, stem="linear"), torch.randn(2, 3, 27, 30)
    assert_close(model(x), model(F.pad(x, (0, 2, 0, 5))), 1e-6)


def test_positions_are_resampled_bicubically():
    model, x = Transformer(**LITTLE).eval(), torch.randn(1, 3, 40, 64)
    maps = model.pos_embed[:, 1:].reshape(1, 4, 4, 24).permute(0, 3, 1, 2)
    resized = F.interpolate(maps, (5, 8), mode="bicubic", antialias=True).flatten(2).transpose(1, 2)
    positions = torch.cat([model.pos_embed[:, :1], resized], 1)
    assert_close(model._positions((5, 8)), positions, 1e-6)
    with torch.no_grad():
        expected = model(x)
        model.set_input_size((40, 64))
        assert model.pos_embed.shape == (1, 41, 24)
        assert model.img_size == (40, 64)
        assert_close(model(x), expected, 1e-5)


def test_a_size_of_the_same_grid_keeps_the_positions_and_any_size_keeps_them_frozen():
    model = Transformer(**LITTLE).requires_grad_(False)
    positions = model.pos_embed
    model.set_input_size((31, 30))  # rounded up to the same patches
    assert model.pos_embed is positions
    assert model.img_size == (31, 30)
    model.set_input_size(40)
    assert model.pos_embed.shape == (1, 26, 24)
    assert not model.pos_embed.requires_grad


def test_intermediates_by_timms_names():
    model, x = Transformer(**LITTLE).eval(), torch.randn(2, 3, 24, 40)
    with torch.no_grad():
        final, maps = model.forward_intermediates(x)
        named = model.forward_intermediates(x, indices=[1], return_prefix_tokens=True, output_dict=True)
        fewer = model.forward_intermediates(x, intermediates_only=True, output_dict=True)
        tokens = model._tokens(x)  # after the last block
    assert torch.equal(named["image_features"], final)
    assert torch.equal(named["image_intermediates"][0], maps[1])
    assert torch.equal(named["image_intermediates_prefix"][0], tokens[:, :1])
    assert fewer.keys() == {"image_intermediates"}


def test_a_pooling_that_does_not_exist_leaves_the_classifier_as_it_is():
    model = Transformer(**LITTLE)
    with pytest.raises(ValueError, match="global_pool='max': expected one of"):
        model.reset_classifier(9, "max")
    assert model.num_classes == model.head.out_features == 5


@pytest.mark.parametrize("stem", ["conv", "linear"])
def test_inference_form_follows_weights_that_are_loaded(stem):
    fused, other = (Transformer(**LITTLE, stem=stem) for _ in range(2))
    x = torch.randn(4, 3, 32, 32)
    other(x * 2 + 1)  # BatchNorm has statistics
    fused.fuse().load_state_dict(other.state_dict())
    with torch.no_grad():
        assert fused.fused
        assert_close(fused(x), other.eval()(x), 1e-4)
        assert torch.equal(fused.unfuse()(x), other(x))


@pytest.mark.parametrize(
    ("old", "new"), [((14, 14), (7, 9)), ((4, 4), (20, 3)), ((5, 6), (5, 6)), ((3, 3), (1, 1))]
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_resampling_is_torchs(old, new, dtype):
    x = torch.randn(2, old[0] * old[1], 3).to(dtype)
    maps = x.float().reshape(2, *old, 3).permute(0, 3, 1, 2)
    expected = F.interpolate(maps, new, mode="bicubic", antialias=True).flatten(2).transpose(1, 2)
    tolerance = 1e-2 if dtype == torch.bfloat16 else 1e-5
    actual = resample_tokens(x, old, new)
    assert actual.dtype == dtype
    assert_close(actual, expected, tolerance)


def test_reference_initialisation():
    model = Transformer(embed_dim=192, depth=8, num_heads=3)
    assert abs(model.pos_embed.std().item() - 1) < 0.02
    assert abs(model.cls_token.std().item() - 1) < 0.2
    steps = torch.cat([b.attn.step_rep.detach() for b in model.blocks])
    assert steps.std() > 0.5
    bound = (6 / 192) ** 0.5
    assert 0.95 * bound < model.blocks[0].ff.weight.abs().max() <= bound
    assert model.blocks[0].attn.proj.weight.abs().max() <= 192**-0.5


def test_unit_steps_initialisation():
    model = Transformer(**LITTLE, weight_init="unit_steps")
    assert all((b.attn.step_rep == 1).all() and (b.attn.step_out == 1).all() for b in model.blocks)
    assert 0.01 < model.pos_embed.std() < 0.03


@pytest.mark.parametrize("weight_init", ["reference", "unit_steps"])
@pytest.mark.parametrize("attention", ["cbsa", "tssa", "mssa", "linear_cbsa"])
@pytest.mark.parametrize("stem", ["conv", "linear"])
def test_meta_device(attention, weight_init, stem):
    """A model made on the meta device and then drawn is distributed as one made directly."""
    options = {**LITTLE, "attention": attention, "weight_init": weight_init, "stem": stem}
    direct, model = Transformer(**options), Transformer(**options, device="meta").to_empty(device="cpu")
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            tensor.fill_(torch.nan if tensor.is_floating_point() else 7)
    model.init_weights()
    for (name, a), b in zip(model.state_dict().items(), direct.state_dict().values(), strict=True):
        if a.numel() > 100 and b.float().std() > 0:
            assert abs(a.float().std() / b.float().std() - 1) < 0.3, name
        assert a.isfinite().all(), name
    assert model(torch.randn(2, 3, 32, 32)).isfinite().all()


def test_device_and_dtype():
    model = Transformer(**LITTLE, dtype=torch.float64)
    assert model(torch.randn(1, 3, 32, 32, dtype=torch.float64)).dtype == torch.float64


def test_hybrids_and_classes():
    model = Transformer(**LITTLE, attention=["mssa", layers.CBSA], representatives=(2, 2))
    assert [type(b.attn) for b in model.blocks] == [layers.MSSA, layers.CBSA]
    assert model.blocks[1].attn.representatives == (2, 2)
    exact = Transformer(**LITTLE, attention_kwargs={"contraction": "exact"})
    assert all(b.attn.contraction == "exact" for b in exact.blocks)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"num_classes": -1}, ValueError, "num_classes must be at least 0, got -1"),
        ({"img_size": 0}, ValueError, r"img_size\[0\] must be at least 1, got 0"),
        ({"img_size": (32, 7)}, ValueError, r"img_size=\(32, 7\) is smaller than a patch of 8 px"),
        ({"img_size": (1, 2, 3)}, ValueError, "img_size must be one or two numbers"),
        ({"patch_size": 12}, ValueError, "patch_size must be a power of two of at least 2, got 12"),
        ({"attention": "cbsaa"}, ValueError, "attention='cbsaa': expected one of"),
        ({"attention": ["cbsa"]}, ValueError, "attention names 1 layers, but depth=2"),
        ({"stem": "patch"}, ValueError, "stem='patch': expected one of 'conv', 'linear'"),
        ({"feed_forward": "glu"}, ValueError, "feed_forward='glu': expected one of 'ista', 'mlp'"),
        ({"global_pool": "max"}, ValueError, "global_pool='max': expected one of"),
        ({"weight_init": "zeros"}, ValueError, "weight_init='zeros': expected one of 'reference'"),
        ({"embed_dim": 25}, ValueError, "dim=25"),
    ],
)
def test_bad_options_are_named(options, error, message):
    with pytest.raises(error, match=message):
        Transformer(**(LITTLE | options))


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.randn(2, 1, 32, 32), r"\(B, 3, height, width\), got \(2, 1, 32, 32\)"),
        (torch.randn(3, 32, 32), r"\(B, 3, height, width\), got \(3, 32, 32\)"),
        (torch.randn(1, 3, 7, 32), "images of 7×32 px are smaller than a patch of 8 px"),
    ],
)
def test_bad_images_are_named(images, message):
    with pytest.raises(ValueError, match=message):
        Transformer(**LITTLE)(images)
