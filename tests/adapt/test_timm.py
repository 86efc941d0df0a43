"""`cbsa.adapt` of timm's models: weights and names stay, the function is the style's, the grid is found."""

import copy
import io

import pytest
import timm
import torch
from torch.nn import functional as F

import cbsa
from cbsa.adaptation import AdaptedAttention, AgentAttention, CBSAStarAttention, LinearKernelAttention
from cbsa.adaptation.style import Style
from tests.adapt import formulas
from tests.adapt.vits import KINDS, ROTARY, SMALL, images, make
from tests.compare import assert_close, relative_error

FORMULAS = {
    "cbsa": lambda q, k, v, reps: formulas.cbsa_star(k, v, reps, *torch.ones(2, q.shape[1]).double()),
    "agent": formulas.agent,
    "linear": lambda q, k, v, reps: formulas.linear(q, k, v),
}


def expected_attention(attention, x, options, grid, prefix, style):
    """timm's own attention with the formula in the place of its softmax: projections, norms, rotations and
    gates are timm's, the pooling of the patches' queries is PyTorch's."""

    def mix(q, k, v, **_):
        b, h, _, d = q.shape
        raster = q[:, :, prefix:].transpose(2, 3).reshape(-1, d, *grid)
        reps = F.adaptive_avg_pool2d(raster, (3, 2)).flatten(2).mT.reshape(b, h, 6, d)
        return FORMULAS[style](q, k, v, reps)

    original = attention.give_back()
    assert type(original).__module__.startswith("timm.")
    assert original.fused_attn
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(F, "scaled_dot_product_attention", mix)
        return original(x, **options)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("style", FORMULAS)
def test_every_layer_computes_the_style(kind, style):
    model = cbsa.adapt(make(kind), style, representatives=(3, 2))
    seen = []
    for block in model.blocks:
        assert isinstance(block.attn, AdaptedAttention)
        block.attn.register_forward_hook(
            lambda module, x, options, y: seen.append((module, x[0], options, y)), with_kwargs=True
        )
    model(images(model))
    assert len(seen) == 3
    for attention, x, options, y in list(seen):  # the original has the hooks too
        assert (kind in ROTARY) == (options.get("rope") is not None)
        grid, prefix = model.patch_embed.grid_size, model.num_prefix_tokens
        assert_close(y, expected_attention(attention, x, options, grid, prefix, style), 1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_names_and_weights_stay_and_softmax_goes_back(kind):
    model = make(kind)
    pixels, before = images(model), copy.deepcopy(model.state_dict())
    original = model(pixels)
    assert cbsa.adapt(model, "agent") is model
    adapted = model(pixels)
    assert relative_error(adapted, original) > 1e-3
    assert list(model.state_dict()) == list(before)
    model.load_state_dict(before)
    assert torch.equal(model(pixels), adapted)
    cbsa.adapt(model, "softmax")
    assert torch.equal(model(pixels), original)
    assert not any(isinstance(module, AdaptedAttention) for module in model.modules())
    assert not model.patch_embed._forward_hooks


def test_a_copy_leaves_the_original_alone_and_has_its_own_grid():
    model = make(dynamic_img_size=True)
    pixels = images(model)
    original = model(pixels)
    first = cbsa.adapt(model, "cbsa", representatives=(2, 2), copy=True)
    assert torch.equal(model(pixels), original)
    second = copy.deepcopy(first)
    expected = first(pixels)
    second(images(model, size=(32, 96)))
    assert second.blocks[0].attn.layout.grid == (2, 6)
    assert first.blocks[0].attn.layout.grid == (4, 4)
    assert torch.equal(second(pixels), expected)
    cbsa.adapt(second, "softmax")
    assert not second.patch_embed._forward_hooks
    assert torch.equal(first(pixels), expected)


def test_layers_are_chosen_one_by_one():
    model = make()
    cbsa.adapt(model, "agent", layers=[0])
    cbsa.adapt(model, "linear", layers=[-1], kernel="elu")
    styles = [getattr(block.attn, "style", None) for block in model.blocks]
    assert styles == [Style("agent"), None, Style("linear", kernel="elu")]
    assert model(images(model)).isfinite().all()
    assert len(model.patch_embed._forward_hooks) == 1
    pixels, expected = images(model), make()
    expected.load_state_dict(model.state_dict())
    cbsa.adapt(model, "softmax", layers=range(3))
    assert torch.equal(model(pixels), expected(pixels))


@pytest.mark.parametrize("kind", ["vit", "eva02 clip", "rope mixed"])
def test_grid_follows_set_input_size_and_dynamic_sizes(kind):
    static, dynamic = make(kind), make(kind, dynamic_img_size=True)
    dynamic.load_state_dict(static.state_dict())
    for model in (static, dynamic):
        cbsa.adapt(model, "cbsa", representatives=(2, 3))
    pixels = images(static, size=(48, 112))
    flexible = dynamic(pixels)
    static.set_input_size((48, 112))
    assert_close(static(pixels), flexible, 1e-6)  # timm keeps the angles of one size in float32
    assert static.blocks[0].attn.layout.grid == (3, 7)


@pytest.mark.parametrize(
    ("kind", "style"), [*(("dinov2 registers", style) for style in FORMULAS), ("eva02", "cbsa")]
)
def test_training_with_checkpointing_and_compiled(kind, style):
    model = cbsa.adapt(make(kind), style, representatives=(2, 2)).train()
    pixels = images(model)

    def gradients(function):
        model.zero_grad()
        function(pixels).square().sum().backward()
        return [p.grad.clone() for p in model.parameters()]

    plain = gradients(model)
    assert all(g.isfinite().all() and g.abs().sum() > 0 for g in plain)
    model.set_grad_checkpointing()
    for a, t in zip(gradients(model), plain, strict=True):
        assert_close(a, t, 1e-10)
    model.set_grad_checkpointing(False)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for a, t in zip(gradients(compiled), plain, strict=True):
        assert_close(a, t, 1e-8)


def test_what_an_attention_was_compiled_to_does_not_outlive_it():
    model, plain = make(), make()
    plain.load_state_dict(model.state_dict())
    x = images(model)
    for style in ("agent", "softmax"):
        for block in model.blocks:
            block.attn.compile(backend="eager")
        model(x)
        for vit in (model, plain):
            cbsa.adapt(vit, style, representatives=(3, 2))
        assert torch.equal(model(x), plain(x))


def test_saved_whole_and_loaded():
    model = cbsa.adapt(make(), "cbsa")
    pixels, file = images(model), io.BytesIO()
    expected = model(pixels)
    torch.save(model, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(pixels), expected)


@pytest.mark.parametrize("style", ["cbsa", "agent", "linear"])
def test_timm_builds_it_from_a_class(style):
    layer = {"cbsa": CBSAStarAttention, "agent": AgentAttention, "linear": LinearKernelAttention}[style]
    built, swapped = make(attn_layer=layer), cbsa.adapt(make(), style)
    built.load_state_dict(swapped.state_dict())
    pixels = images(built)
    assert_close(built(pixels), swapped(pixels), 1e-12)


class Fewer(CBSAStarAttention):
    style = Style("cbsa", representatives=(2, 2))
    num_prefix_tokens = 2


def test_a_class_of_ones_own_and_its_link_to_the_model():
    built = make("deit distilled", attn_layer=Fewer)
    swapped = cbsa.adapt(make("deit distilled"), "cbsa", representatives=(2, 2))
    built.load_state_dict(swapped.state_dict())
    pixels = images(built)
    assert_close(built(pixels), swapped(pixels), 1e-12)
    oblong = make("rectangle", attn_layer=CBSAStarAttention)
    with pytest.raises(ValueError, match="12 patch tokens do not form a square"):
        oblong(images(oblong))
    cbsa.adapt(oblong, "cbsa", layers=[])
    assert oblong(images(oblong)).isfinite().all()


@pytest.mark.parametrize("kind", ["deit distilled", "dinov2 registers", "siglip"])
def test_other_prefix_tokens_of_a_class_are_told_or_found(kind):
    built = make(kind, attn_layer=CBSAStarAttention)
    tokens = 16 + built.num_prefix_tokens
    message = (
        f"{tokens} tokens less num_prefix_tokens=1: .*adapt\\(model, layers=.*subclass of CBSAStarAttention"
    )
    with pytest.raises(ValueError, match=message):
        built(images(built))
    assert cbsa.adapt(built, layers=[])(images(built)).isfinite().all()
    linear = make(kind, attn_layer=LinearKernelAttention)
    assert linear(images(linear)).isfinite().all()  # it pools nothing


@pytest.mark.parametrize("style", FORMULAS)
@pytest.mark.parametrize("kind", ["vit", "eva02", "eva02 clip"])
def test_a_batch_of_no_images(kind, style):
    model = cbsa.adapt(make(kind), style, representatives=(2, 2))
    assert model(images(model, batch=0)).shape == (0, 5)


def test_padded_images_are_pooled_on_the_grid_of_the_padded_ones():
    model = cbsa.adapt(make("padded"), "cbsa", representatives=(2, 3))
    pixels = images(model, size=(42, 90))
    padded = F.pad(pixels, (0, 6, 0, 6))  # to 48×96, at the right and below
    assert torch.equal(model(pixels), model(padded))
    assert model.blocks[0].attn.layout.grid == (3, 6)


def test_refusals_name_the_model():
    for name, message in {
        "beit_base_patch16_224": "cannot adapt a Beit",
        "swin_tiny_patch4_window7_224": "cannot adapt a SwinTransformer",
    }.items():
        with torch.device("meta"), pytest.raises(TypeError, match=message):
            cbsa.adapt(timm.create_model(name))
    with pytest.raises(TypeError, match=r"vit must be a model, got 'vit_tiny_patch16_224' of type str"):
        cbsa.adapt("vit_tiny_patch16_224")
    extractor = timm.create_model("vit_tiny_patch16_224", features_only=True, **(SMALL | {"num_classes": 0}))
    for wrapper, place in ((extractor, r"\.model"), (torch.nn.DataParallel(make()), r"\.module")):
        with pytest.raises(TypeError, match=rf"a VisionTransformer in it, {place}: adapt that one"):
            cbsa.adapt(wrapper)
    with pytest.raises(TypeError, match="layer 0: a ParallelScalingBlock"):
        cbsa.adapt(make(block_fn=timm.models.vision_transformer.ParallelScalingBlock))
    with pytest.raises(TypeError, match="attention of type DiffAttention"):
        cbsa.adapt(make(attn_layer="diff"))
    for kind in ("vit", "dinov3"):
        with pytest.raises(
            ValueError, match=r"patch_drop_rate=0\.5.*create the model with patch_drop_rate=0"
        ):
            cbsa.adapt(make(kind, patch_drop_rate=0.5))
    with pytest.raises(ValueError, match=r"attn_drop=0\.1.*attn_drop_rate=0"):
        cbsa.adapt(make(attn_drop_rate=0.1))


@pytest.mark.parametrize("style", ["agent", "softmax"])
def test_a_forward_that_was_put_on_an_attention_is_not_taken_along(style):
    model = make() if style == "agent" else cbsa.adapt(make(), "agent")
    attention = model.blocks[1].attn
    attention.forward = attention.forward  # as accelerate's hooks and recipes that show attention maps do
    with pytest.raises(ValueError, match=r"layer 1: the forward of its attention was replaced .*undo that"):
        cbsa.adapt(model, style)
    assert model.blocks[1].attn is attention


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"style": "agnet"}, ValueError, "style='agnet'.*did you mean 'agent'"),
        ({"layers": [3]}, ValueError, r"layers=\[3\]: the model has 3 layers, 0 to 2"),
        ({"layers": [-4]}, ValueError, "layers must be at least -3, got -4"),
        ({"layers": 2}, TypeError, r"layers must be numbers of layers, such as .*got 2"),
        ({"representatives": (2, 2, 2)}, ValueError, r"representatives=\(2, 2, 2\) must be a layout"),
        ({"representatives": (0, 2)}, ValueError, r"representatives\[0\] must be at least 1"),
        ({"kernel": "gelu", "style": "linear"}, ValueError, "kernel='gelu': expected one of 'elu', 'relu'"),
        ({"broadcast_scale": "hot"}, TypeError, "broadcast_scale must be a number"),
        ({"broadcast": "sum"}, ValueError, "broadcast='sum': expected one of 'transpose', 'softmax'"),
        (
            {"broadcast": "softmax", "style": "agent"},
            ValueError,
            "broadcast='softmax' is for style 'cbsa', not",
        ),
        ({"impl": "flash"}, ValueError, "impl='flash': expected one of"),
    ],
)
def test_bad_options_are_named_and_change_nothing(options, error, message):
    model = make()
    with pytest.raises(error, match=message):
        cbsa.adapt(model, **options)
    assert not any(isinstance(module, AdaptedAttention) for module in model.modules())


def test_masks_are_refused():
    attention = cbsa.adapt(make(), "agent").blocks[0].attn
    x = torch.randn(1, 17, 32, dtype=torch.float64)
    with pytest.raises(ValueError, match="style='agent' takes no attn_mask"):
        attention(x, attn_mask=torch.ones(17, 17, dtype=torch.bool))
    with pytest.raises(ValueError, match="no is_causal"):
        attention(x, is_causal=True)
