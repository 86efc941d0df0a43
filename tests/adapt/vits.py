"""Small ViTs of timm, one of each kind that can be adapted."""

import timm
import torch

SMALL = {"embed_dim": 32, "depth": 3, "num_heads": 2, "num_classes": 5, "img_size": 64}
KINDS = {
    "vit": ("vit_tiny_patch16_224", {}),
    "deit distilled": ("deit_tiny_distilled_patch16_224", {}),
    "dinov2 registers": ("vit_small_patch14_reg4_dinov2", {"img_size": 56, "init_values": 0.5}),
    "siglip": ("vit_base_patch16_siglip_224", {}),
    "qk norm, gap": ("vit_medium_patch16_gap_256", {"qk_norm": True, "scale_attn_norm": True}),
    "rectangle": ("vit_tiny_patch16_224", {"img_size": (32, 96)}),
    "deit3": ("deit3_small_patch16_224", {"init_values": 0.5}),
    "flexivit": ("flexivit_small", {}),
    "padded": ("vit_tiny_patch16_224", {"dynamic_img_size": True, "dynamic_img_pad": True}),
    "convolutional stem": ("vit_tiny_r_s16_p8_224", {"img_size": 96}),
    "eva02": ("eva02_tiny_patch14_224", {"img_size": 56}),  # one projection, a bias in three parts
    "eva02 clip": ("eva02_base_patch16_clip_224", {}),  # three projections, a norm after mixing
    "dinov3": ("vit_small_patch16_dinov3", {"img_size": (32, 96), "init_values": 0.5}),  # halves are rotated
    "rope mixed": ("vit_small_patch16_rope_mixed_224", {"qk_norm": True}),  # rotations by layer and head
    "rope, grouped queries": ("vit_pe_core_tiny_patch16_384", {"num_kv_heads": 1, "qkv_fused": False}),
}
ROTARY = [kind for kind, (name, _) in KINDS.items() if "eva" in name or "dinov3" in name or "rope" in kind]


def make(kind="vit", **options):
    """A model with large random weights: timm's own are so small that all attentions look alike."""
    name, special = KINDS[kind]
    model = timm.create_model(name, **(SMALL | special | options)).double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            around = float("norm" in name and name.endswith("weight"))  # norms keep their size
            parameter.normal_(around, std=0.3)
    return model


def images(model, batch=2, size=None):
    return torch.randn(batch, 3, *(size or model.patch_embed.img_size), dtype=torch.float64)
