"""Segmenters: any encoder, any image size, and what is refused."""

import pytest
import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from torch.nn import functional as F

import cbsa
from cbsa.analysis import perturb
from cbsa.models import Transformer
from cbsa.segmentation import CBTDecoder, Segmenter, create_segmenter
from tests.compare import assert_close

CLASSES = 5
SMALL = {"depth": 1, "num_heads": 2, "head_dim": 6}
# Every kind of encoder: ours, ViT, two prefix tokens, registers, rotary positions, norm after pooling, a
# hybrid stem, no class token and attention pooling, norm before the blocks.
ENCODERS = {
    "cbt_tiny_patch4_32": {"depth": 1},
    "crate_cbt_tiny_patch16_224": {"depth": 2, "attention": ["mssa", "cbsa"]},
    "tost_cab_tiny_12_patch16_224": {"depth": 1},
    "vit_conv_tiny_patch16_224": {"depth": 1},
    "vit_tiny_patch16_224": {"depth": 1},
    "deit_tiny_distilled_patch16_224": {"depth": 1},
    "vit_small_patch14_reg4_dinov2": {"depth": 1},
    "eva02_tiny_patch14_224": {"depth": 1},
    "vit_small_patch16_dinov3": {"depth": 1},
    "vit_tiny_r_s16_p8_224": {"depth": 1},
    "vit_base_patch16_siglip_224": {"depth": 1, "embed_dim": 48, "num_heads": 2},
    "vit_base_patch16_clip_224": {"depth": 1, "embed_dim": 48, "num_heads": 2},
}


def segmenter(encoder="cbt_tiny_patch4_32", decoder="cbt", **kwargs):
    options = {"encoder_kwargs": ENCODERS[encoder]} if isinstance(encoder, str) else {}
    small = SMALL | ({"representatives": (3, 3)} if decoder == "cbt" else {})
    return create_segmenter(encoder, decoder, CLASSES, decoder_kwargs=small, **(options | kwargs))


def little_vit(**kwargs):
    return VisionTransformer(img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=2, **kwargs)


@pytest.mark.parametrize("name", ENCODERS)
def test_every_encoder_gives_logits_and_all_parameters_learn(name):
    model = segmenter(name).train()
    logits = model(torch.randn(2, 3, 45, 70))
    assert logits.shape == (2, CLASSES, 45, 70)
    F.cross_entropy(logits, torch.randint(CLASSES, (2, 45, 70))).backward()
    without = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    assert not without
    assert not any(n.startswith("encoder.head") for n, _ in model.named_parameters())
    assert model.no_weight_decay() >= {"decoder.class_tokens", "decoder.blocks.0.attn.step_out"}


@pytest.mark.parametrize("decoder", ["cbt", "depict", "mask_transformer"])
def test_logits_are_the_decoders_masks_upsampled(decoder):
    """Patch features without prefix tokens, in raster order, through the decoder; bilinear, corners free."""
    model, images = segmenter(little_vit(), decoder).eval(), torch.randn(2, 3, 24, 40)
    with torch.no_grad():
        tokens = model.encoder.forward_features(images)
        assert tokens.shape == (2, 1 + 15, 24)
        masks = model.decoder(tokens[:, 1:], (3, 5))
        expected = F.interpolate(masks, (24, 40), mode="bilinear", align_corners=False)
        assert torch.equal(model(images), expected)


@pytest.mark.parametrize("size", [(32, 32), (33, 32), (31, 57), (8, 8), (5, 3), (1, 1), (64, 16)])
@pytest.mark.parametrize("encoder", ["ours", "timm"])
def test_sizes_that_are_no_whole_patches_are_padded(encoder, size):
    made = little_vit() if encoder == "timm" else Transformer(32, 8, embed_dim=24, depth=1, num_heads=2)
    model, images = segmenter(made).eval(), torch.randn(2, 3, *size)
    height, width = (-(-side // 8) * 8 for side in size)
    padded = torch.zeros(2, 3, height, width)
    padded[:, :, : size[0], : size[1]] = images
    with torch.no_grad():
        logits = model(images)
        assert logits.shape == (2, CLASSES, *size)
        assert torch.equal(logits, model(padded)[:, :, : size[0], : size[1]])


@pytest.mark.parametrize("encoder", ["ours", "timm"])
def test_no_images_give_no_logits(encoder):
    made = little_vit() if encoder == "timm" else Transformer(32, 8, embed_dim=24, depth=1, num_heads=2)
    for decoder in ("cbt", "mask_transformer"):
        logits = segmenter(made, decoder)(torch.empty(0, 3, 20, 31))
        assert logits.shape == (0, CLASSES, 20, 31)
        logits.sum().backward()


def test_positions_of_a_timm_vit_are_resampled_as_timm_does():
    vit = little_vit().eval()
    fixed = little_vit().eval()
    fixed.load_state_dict(vit.state_dict())
    fixed.set_input_size((24, 40))
    images = torch.randn(2, 3, 24, 40)
    with torch.no_grad():
        expected = fixed.forward_features(images)
        assert_close(segmenter(vit).eval().encoder.forward_features(images), expected, 1e-6)


@pytest.mark.parametrize("encoder", ["vit_tiny_patch16_224", "cbt_tiny_patch4_32"])
def test_img_size_fixes_the_position_embedding(encoder):
    model = segmenter(encoder, img_size=(48, 80))
    patch = model.patch_size[0]
    assert model.encoder.pos_embed.shape[1] == 1 + 48 * 80 // patch**2
    assert segmenter(little_vit(), img_size=(24, 40)).encoder.pos_embed.shape[1] == 1 + 15
    assert model(torch.randn(1, 3, 32, 32)).shape == (1, CLASSES, 32, 32)


def test_img_size_of_as_many_patches_in_another_layout():
    """4×4 patches become 2×8, as they are when resampled in passing."""
    vit, images = little_vit().eval(), torch.randn(1, 3, 16, 64)
    fixed = little_vit().eval()
    fixed.load_state_dict(vit.state_dict())
    with torch.no_grad():
        passing = segmenter(vit).eval().encoder.forward_features(images)
        own = segmenter(fixed, img_size=(13, 60)).eval().encoder
        assert own.patch_embed.grid_size == (2, 8)
        assert_close(own.forward_features(images), passing, 1e-6)


def test_in_bfloat16_and_by_autocast():
    model, images = segmenter(little_vit()).eval(), torch.randn(2, 3, 24, 40)
    with torch.no_grad():
        expected = model(images)
        with torch.autocast("cpu", torch.bfloat16):
            mixed = model(images)
        low = model.bfloat16()(images.bfloat16())
    assert mixed.dtype == torch.float32
    assert low.dtype == torch.bfloat16
    assert_close(mixed, expected, 0.1)
    assert_close(low, expected, 0.1)


@pytest.mark.parametrize("encoder", ["ours", "timm"])
def test_compiles_as_one_graph(encoder):
    made = little_vit() if encoder == "timm" else Transformer(32, 8, embed_dim=24, depth=1, num_heads=2)
    model, images = segmenter(made).eval(), torch.randn(2, 3, 20, 40)
    with torch.no_grad():
        assert_close(torch.compile(model, fullgraph=True, backend="eager")(images), model(images), 1e-6)


def test_other_channels_and_checkpointing():
    model = create_segmenter("vit_tiny_patch16_224", "cbt", 3, encoder_kwargs={"depth": 2, "in_chans": 4})
    images = torch.randn(1, 4, 32, 32)
    plain = model(images)
    model.set_grad_checkpointing()
    again = model(images)
    assert_close(again, plain, 1e-6)
    again.sum().backward()
    with pytest.raises(
        ValueError, match=r"images must have shape \(B, 4, height, width\), got \(1, 3, 32, 32\)"
    ):
        model(images[:, :3])


def test_interface():
    model = cbsa.segmentation.create_segmenter("cbt_tiny_patch4_32", num_classes=7)
    assert model.num_classes == 7
    assert isinstance(model.decoder, CBTDecoder)
    assert isinstance(model.encoder, Transformer)
    assert model.patch_size == (4, 4)
    assert model.normalization["mean"] == pytest.approx([0.485, 0.456, 0.406])
    vit = create_segmenter("vit_tiny_patch16_224.augreg_in21k", encoder_kwargs={"depth": 1})
    assert vit.normalization == {"mean": [0.5] * 3, "std": [0.5] * 3}
    assert vit.num_classes == 150
    with perturb(model.decoder, 0.1) as names:
        assert {name.split(".")[0] for name in names} == {"blocks"}


def test_a_decoder_of_ones_own():
    class Nearest(CBTDecoder):
        def refine(self, classes, patches, grid):
            return classes, patches

    model = Segmenter(little_vit(), Nearest(24, 3, depth=1))
    assert model(torch.randn(1, 3, 16, 16)).shape == (1, 3, 16, 16)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"encoder": "vit_tinny_patch16_224"},
            "encoder='vit_tinny_patch16_224': no such model; see .* mean 'vit_tiny_patch16_224'",
        ),
        (
            {"encoder": "swin_tiny_patch4_window7_224"},
            "encoder='swin_tiny_patch4_window7_224': a SwinTransformer cannot be an encoder; expected",
        ),
        ({"encoder": "resnet18"}, "encoder='resnet18': a ResNet cannot be an encoder"),
        ({"encoder": "beit_base_patch16_224"}, "a Beit cannot be an encoder"),
        ({"encoder": nn.Linear(2, 2)}, "encoder='Linear': a Linear cannot be an encoder"),
        (
            {"decoder": "segformer"},
            "decoder='segformer': expected one of 'cbt', 'depict', 'mask_transformer'",
        ),
        (
            {"decoder_kwargs": {"heads": 3}},
            "decoder_kwargs='heads': expected one of .* did you mean 'num_heads'",
        ),
        ({"decoder_kwargs": {"dim": 3}}, "decoder_kwargs='dim': expected one of"),
        (
            {"encoder_kwargs": {"width": 3}},
            r"encoder='cbt_tiny_patch4_32' with encoder_kwargs=\{'width': 3\}",
        ),
        ({"num_classes": 1}, "num_classes must be at least 2, got 1"),
        ({"img_size": (1, 2, 3)}, "img_size must be one or two numbers"),
        ({"img_size": 0}, r"img_size\[0\] must be at least 1, got 0"),
        ({"encoder": little_vit(), "pretrained_encoder": "x"}, "are for an encoder given by name"),
        ({"encoder": little_vit(), "encoder_kwargs": {"depth": 1}}, "are for an encoder given by name"),
        (
            {"encoder": timm.create_model("eva02_tiny_patch14_224", depth=1)},
            "an Eva takes images of one size: create it with dynamic_img_size=True",
        ),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        create_segmenter(**({"encoder": "cbt_tiny_patch4_32"} | arguments))


def test_other_bad_input_is_named():
    with pytest.raises(ValueError, match="the encoder gives tokens of width 24, but the decoder has dim=32"):
        Segmenter(little_vit(), CBTDecoder(32, 3))
    dropping = segmenter(little_vit(patch_drop_rate=0.5)).train()
    with pytest.raises(ValueError, match=r"gave 8 patch tokens for 4×4 patches: .* patch_drop_rate=0"):
        dropping(torch.randn(1, 3, 32, 32))
    with pytest.raises(TypeError, match=r"images must be of a real floating-point dtype, got torch.uint8"):
        segmenter()(torch.zeros(1, 3, 8, 8, dtype=torch.uint8))
