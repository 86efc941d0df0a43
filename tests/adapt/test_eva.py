"""What goes with an adapted model of timm's Eva: costs, files, the tokens that distillation compares."""

import json

import pytest
import timm
import torch
from safetensors.torch import save_file

import cbsa
from cbsa.adaptation import load_adapted
from cbsa.adaptation.costs import adapted_macs
from cbsa.adaptation.stored import stored_styles
from cbsa.train.adaptation.distillation import record_blocks
from tests.adapt.vits import SMALL, images, make


@pytest.mark.parametrize("name", ["vit_small_patch16_dinov3", "vit_small_patch16_rope_mixed_224"])
def test_what_is_saved_is_that_of_the_formulas(name):
    """Per layer 2N²d for softmax, and 4Nmd for m agents; rotations are no products that are counted."""
    with torch.device("meta"):
        model = timm.create_model(name, **(SMALL | {"img_size": 128}))
    n, m, d = 64 + model.num_prefix_tokens, 16, 32
    saved = adapted_macs(model, 128) - adapted_macs(cbsa.adapt(model, "agent", representatives=(4, 4)), 128)
    assert saved == 3 * (2 * n * n * d - 4 * n * m * d)


def test_saved_with_its_styles_and_loaded(tmp_path):
    size = SMALL | {"num_classes": 3}
    model = timm.create_model("vit_small_patch16_dinov3", **size).eval()
    cbsa.adapt(model, "cbsa", layers=[0, 2], representatives=(2, 2))
    arguments = {k: v for k, v in size.items() if k != "num_classes"} | stored_styles(model)
    config = {"architecture": "vit_small_patch16_dinov3", "num_classes": 3, "model_args": arguments}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    loaded, pixels = load_adapted(tmp_path).eval(), torch.randn(2, 3, 64, 64)
    assert [getattr(block.attn, "style", None) for block in loaded.blocks] == [
        getattr(block.attn, "style", None) for block in model.blocks
    ]
    assert torch.equal(loaded(pixels), model(pixels))


@pytest.mark.parametrize("kind", ["rope mixed", "dinov3"])
def test_tokens_of_every_block_are_recorded(kind):
    model, seen = cbsa.adapt(make(kind), "agent", representatives=(2, 2)), []
    pixels = images(model)
    expected = model(pixels)
    for block in model.blocks:
        block.register_forward_hook(lambda module, x, y: seen.append(y))
    with record_blocks(model).recording() as tokens:
        assert torch.equal(model(pixels), expected)
    assert len(tokens) == len(seen) == 3
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(tokens, seen, strict=True))
