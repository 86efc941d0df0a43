"""What every registered model promises."""

import copy

import pytest
import timm
import torch

import cbsa
from cbsa.models import MODELS, create_model
from cbsa.models.costs import closed_form_macs, counted_macs, pairwise_similarities
from tests.compare import assert_close

# Each family once at its smallest, and the large ones that share its code only where that is cheap.
SMALL = [n for n in MODELS if "_tiny_" in n and not n.endswith("_32") and not n.startswith("tost_cab")]
HYBRID = "crate_cbt_tiny_patch4_32"
PARAMETERS = {
    "cbt_tiny_patch16_224": 1_789_192,
    "cbt_small_patch16_224": 6_667_048,
    "cbt_base_patch16_224": 25_691_752,
    "cbt_large_patch16_224": 83_051_368,
    "crate_tiny_patch16_224": 1_789_120,
    "crate_small_patch16_224": 6_666_904,
    "tost_tiny_patch16_224": 1_789_156,
    "tost_small_patch16_224": 6_666_976,
}
GFLOPS = {
    "cbt_tiny_patch16_224": 1.117,
    "cbt_small_patch16_224": 4.010,
    "cbt_base_patch16_224": 15.131,
    "cbt_large_patch16_224": 47.350,
}
SIMILARITIES = {  # the paper's table, by its formulas
    "cbt_tiny_patch16_224": 12 * 3 * (64 * 197 + 64 * 65 // 2),
    "crate_small_patch16_224": 12 * 6 * 197**2,
    "tost_tiny_patch16_224": 12 * 3 * 197 * 64,
}


def on_meta(name):
    with torch.device("meta"):
        return create_model(name)


@pytest.mark.parametrize(("name", "count"), PARAMETERS.items())
def test_number_of_parameters(name, count):
    assert sum(p.numel() for p in on_meta(name).parameters()) == count


@pytest.mark.parametrize(("name", "gflops"), GFLOPS.items())
def test_flops_by_the_papers_rule(name, gflops):
    assert 2e-9 * closed_form_macs(on_meta(name), 224) == pytest.approx(gflops, abs=5e-4)


@pytest.mark.parametrize("name", MODELS)
def test_closed_form_is_what_pytorch_counts(name):
    model, size = on_meta(name), MODELS[name][0]["img_size"]
    assert closed_form_macs(model, size, paper_rule=False) == counted_macs(model, size)


@pytest.mark.parametrize(("name", "count"), SIMILARITIES.items())
def test_pairwise_similarities(name, count):
    assert pairwise_similarities(on_meta(name), 224) == count


@pytest.mark.parametrize("name", MODELS)
def test_timm_knows_it(name):
    assert timm.is_model(name)
    model = timm.create_model(name, device="meta")
    size = MODELS[name][0]["img_size"]
    config = timm.data.resolve_model_data_config(model)
    assert config["input_size"] == (3, size, size)
    assert model.pretrained_cfg["classifier"] == "head"
    assert model.get_submodule(model.pretrained_cfg["first_conv"]) is not None
    assert model.default_cfg["num_classes"] == 1000


@pytest.mark.parametrize("name", [n for n in MODELS if "large" not in n])
def test_rectangle_forward_and_a_gradient_on_every_parameter(name):
    patch = MODELS[name][0]["patch_size"]
    model = create_model(name)
    logits = model(torch.randn(2, 3, 3 * patch, 5 * patch))
    assert logits.shape == (2, 1000)
    logits.square().sum().backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name
        assert parameter.grad.abs().sum() > 0, parameter_name


@pytest.mark.parametrize(
    "name", ["cbt_tiny_patch16_224", "vit_conv_tiny_patch4_32", "tost_cab_tiny_12_patch16_224"]
)
def test_gradients_of_one_image(name):
    """Two equal images have twice the gradient; on a CPU, one image alone is laid out in another way."""
    model = create_model(name, depth=2, num_classes=5).double().eval()
    image = torch.randn(1, 3, 48, 32, dtype=torch.float64)

    def gradients(images):
        return torch.autograd.grad(model(images).square().sum(), list(model.parameters()))

    for one, two in zip(gradients(image), gradients(image.repeat(2, 1, 1, 1)), strict=True):
        assert_close(2 * one, two, 1e-6 if name.startswith("tost_cab") else 1e-9)  # its positions are float32


@pytest.mark.parametrize("name", SMALL)
def test_intermediates(name):
    model, patch = create_model(name).eval(), MODELS[name][0]["patch_size"]
    x, grid = torch.randn(2, 3, 5 * patch, 9 * patch), (5, 9)
    with torch.no_grad():
        final, features = model.forward_intermediates(x)
        assert_close(final, model.forward_features(x), 1e-6)
        assert len(features) == 12
        assert all(f.shape == (2, 192, *grid) for f in features)
        pairs = model.forward_intermediates(
            x,
            indices=[2, 11],
            return_prefix_tokens=True,
            norm=True,
            output_fmt="NLC",
            intermediates_only=True,
        )
        patches, prefix = pairs[-1]
        assert_close(torch.cat([prefix, patches], 1), final, 1e-6)
        (early,) = model.forward_intermediates(x, indices=[2], stop_early=True, intermediates_only=True)
        assert_close(early, features[2], 1e-6)
        backbone = timm.create_model(name, features_only=True, out_indices=(1, 5, 11))
        maps = backbone(x)
    assert [m.shape for m in maps] == [(2, 192, *grid)] * 3
    assert backbone.feature_info.channels() == [192] * 3
    assert backbone.feature_info.reduction() == [patch] * 3


@pytest.mark.parametrize("name", SMALL)
def test_pruning_keeps_what_was_asked_for(name):
    model, patch = create_model(name).eval(), MODELS[name][0]["patch_size"]
    x = torch.randn(1, 3, 4 * patch, 4 * patch)
    with torch.no_grad():
        expected = model.forward_intermediates(x, indices=[4], intermediates_only=True)[0]
        assert model.prune_intermediate_layers([4]) == [4]
        assert len(model.blocks) == 5
        assert_close(model.forward_intermediates(x, indices=[4], intermediates_only=True)[0], expected, 1e-6)


@pytest.mark.parametrize("name", SMALL)
def test_classifier(name):
    model = create_model(name, num_classes=7).eval()
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert model(x).shape == (2, 7)
        features = model.forward_features(x)
        assert_close(model.forward_head(features, pre_logits=True), features[:, 0], 1e-6)
        model.reset_classifier(3, "avg")
        assert_close(model.forward_head(features, pre_logits=True), features[:, 1:].mean(1), 1e-6)
        assert model(x).shape == (2, 3)
        model.reset_classifier(0)
        assert model(x).shape == (2, 192)
    assert model.get_classifier() is model.head


@pytest.mark.parametrize("name", SMALL)
def test_gradient_checkpointing_changes_nothing(name):
    model = create_model(name).eval()
    x = torch.randn(2, 3, 64, 64)
    stored = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    model.set_grad_checkpointing()
    recomputed = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(stored, recomputed, strict=True))


@pytest.mark.parametrize("name", SMALL)
def test_inference_form_is_equal_and_reversible(name):
    model = create_model(name)
    for _ in range(2):
        model(torch.randn(4, 3, 64, 64))  # BatchNorm has statistics
    model.eval()
    x, before = torch.randn(2, 3, 64, 64), copy.deepcopy(model.state_dict())
    with torch.no_grad():
        expected = model(x)
        assert_close(model.fuse()(x), expected, 1e-4)
        assert model.fused
        assert model.state_dict().keys() == before.keys()
        assert torch.equal(model.unfuse()(x), expected)
        assert not model.fused
        model.fuse().train()
    assert not model.fused
    assert all(torch.equal(a, before[k]) for k, a in model.state_dict().items())


@pytest.mark.parametrize("name", SMALL)
def test_bfloat16_and_channels_last(name):
    model, x = create_model(name).eval(), torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        expected = model(x)
        assert_close(
            model.to(memory_format=torch.channels_last)(x.to(memory_format=torch.channels_last)),
            expected,
            1e-4,
        )
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert_close(model(x), expected, 0.15)
        low = model.bfloat16()(x.bfloat16())
    assert low.dtype == torch.bfloat16
    assert_close(low, expected, 0.15)


@pytest.mark.parametrize("name", SMALL)
def test_groups_cover_every_parameter(name):
    from timm.models import group_parameters

    model = create_model(name)
    groups = group_parameters(model, model.group_matcher())
    covered = [n for names in groups.values() for n in names]
    assert sorted(covered) == sorted(n for n, _ in model.named_parameters())
    assert model.no_weight_decay() <= {n for n, _ in model.named_parameters()}
    assert {"pos_embed", "cls_token"} <= model.no_weight_decay()


def test_timms_optimizer_factory_takes_it():
    from timm.optim import create_optimizer_v2

    model = create_model("cbt_tiny_patch4_32")
    optimizer = create_optimizer_v2(model, "lion", lr=1e-4, weight_decay=0.05, layer_decay=0.75)
    model(torch.randn(2, 3, 32, 32)).sum().backward()
    optimizer.step()
    assert sum(p.numel() for g in optimizer.param_groups for p in g["params"]) == sum(
        p.numel() for p in model.parameters()
    )


def test_what_timms_training_script_always_gives_is_taken():
    given = {"drop_rate": 0.0, "drop_path_rate": 0.0, "drop_block_rate": None, "global_pool": None}
    assert len(timm.create_model("cbt_tiny_patch4_32", depth=1, scriptable=False, **given).blocks) == 1
    with pytest.raises(ValueError, match=r"drop_path_rate=0.1: cbt_tiny_patch4_32 has neither dropout"):
        timm.create_model("cbt_tiny_patch4_32", drop_path_rate=0.1)


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_hybrids_of_other_depths_are_half_and_half(depth):
    kinds = [type(block.attn).__name__ for block in create_model(HYBRID, depth=depth).blocks]
    assert kinds == ["MSSA"] * (depth // 2) + ["CBSA"] * (depth - depth // 2)
    chosen = create_model(HYBRID, depth=2, attention=["cbsa", "mssa"])
    assert [type(block.attn).__name__ for block in chosen.blocks] == ["CBSA", "MSSA"]


def test_sync_batch_norm_conversion():
    model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(create_model("cbt_tiny_patch4_32"))
    assert sum(isinstance(m, torch.nn.SyncBatchNorm) for m in model.modules()) == 2


def test_create_model_from_the_package():
    assert type(cbsa.create_model("cbt_tiny_patch4_32")) is cbsa.models.Transformer


@pytest.mark.parametrize("name", ["cbt_smal_patch16_224", "cbt_tiny", "vit_small_patch16_224"])
def test_unknown_model_gets_the_nearest_names(name):
    with pytest.raises(ValueError, match=r"name='.*': expected one of .*did you mean 'c?"):
        create_model(name)


def test_a_name_that_is_none():
    with pytest.raises(TypeError, match="name must be a string, got 3 of type int"):
        create_model(3)


def test_original_tost_refuses_what_the_others_refuse():
    name = "tost_cab_tiny_12_patch16_224"
    with pytest.raises(ValueError, match="num_classes must be at least 0, got -1"):
        create_model(name, num_classes=-1, depth=1)
    model, backbone = (
        create_model(name, depth=1).eval(),
        create_model(name, depth=1, features_only=True, out_indices=[0]),
    )
    for call in (model, backbone):
        with pytest.raises(
            ValueError, match=r"images must have shape \(B, 3, height, width\), got \(2, 1, 64"
        ):
            call(torch.randn(2, 1, 64, 64))
        with pytest.raises(ValueError, match="images of 15×64 px are smaller than a patch of 16 px"):
            call(torch.randn(2, 3, 15, 64))
    assert model(torch.randn(1, 3, 16, 70)).shape == (1, 1000)
