"""Weights in and out, on files in the authors' layout, in ours, and on hostile ones."""

import argparse
import copy
import json
import pickle
import subprocess
import sys

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import load_file

from cbsa.models import (
    CheckpointError,
    ToST,
    Transformer,
    checkpoint_filter_fn,
    create_model,
    load_reference_checkpoint,
    read_checkpoint,
    save_model,
)
from tests.compare import assert_close
from tests.models import authors

HEADS, DIM, DEPTH, CLASSES = 3, 48, 2, 5
ATTENTION = {"cbsa": "cbsa", "mssa": "mssa", "tssa": "tssa", "crate": "mssa"}


def little(kind, **kwargs):
    options = {"embed_dim": DIM, "depth": DEPTH, "num_heads": HEADS, "num_classes": CLASSES, "img_size": 160}
    stem = "linear" if kind == "crate" else "conv"
    return Transformer(**(options | {"attention": ATTENTION[kind], "stem": stem} | kwargs)).eval()


def make_file(path, kind, *, wrap=True):
    """A checkpoint as the authors' training script writes it: DDP prefix, a dict with more in it."""
    state = authors.make_state_dict(DIM, DEPTH, HEADS, CLASSES, 10, kind)
    wrapped = {"epoch": 3, "best_acc1": 1.0, "state_dict": {f"module.{k}": v for k, v in state.items()}}
    torch.save(wrapped if wrap else state, path)
    return state


@pytest.mark.parametrize("kind", ATTENTION)
@pytest.mark.parametrize("wrap", [True, False])
def test_reference_checkpoints_give_their_logits(kind, wrap, tmp_path):
    path = tmp_path / "model_best.pth.tar"
    state, images = make_file(path, kind, wrap=wrap), torch.randn(2, 3, 160, 160)
    model = load_reference_checkpoint(little(kind), path)
    with torch.no_grad():
        assert_close(model(images), authors.logits(state, images, HEADS, kind), 1e-5)
        if kind == "cbsa":
            assert all(block.attn.legacy_pool for block in model.blocks)
            for block in model.blocks:
                block.attn.legacy_pool = False
            right = authors.logits(state, images, HEADS, kind, shifted=False)
            assert_close(model(images), right, 1e-5)
            assert (right - authors.logits(state, images, HEADS, kind)).abs().max() > 1e-4


def test_original_tost_checkpoints_give_their_logits(tmp_path):
    state, images = authors.make_tost_state_dict(48, 2, 3, CLASSES), torch.randn(2, 3, 96, 96)
    torch.save({"model": state, "epoch": 3}, tmp_path / "checkpoint.pth")
    model = ToST(embed_dim=48, depth=2, num_heads=3, img_size=96, num_classes=1000).eval()
    load_reference_checkpoint(model, tmp_path / "checkpoint.pth")
    with torch.no_grad():
        assert_close(model(images), authors.tost_logits(state, images, 3), 1e-5)
    folder = save_model(
        create_model("tost_cab_tiny_12_patch16_224", num_classes=4),
        tmp_path / "saved",
        architecture="tost_cab_tiny_12_patch16_224",
    )
    assert timm.create_model(f"local-dir:{folder}", pretrained=True).num_classes == 4


def test_positions_and_classifier_follow_the_file(tmp_path):
    path = tmp_path / "model.pth"
    make_file(path, "cbsa")
    model = load_reference_checkpoint(little("cbsa", img_size=(96, 224), num_classes=1000), path)
    assert model.num_classes == CLASSES
    assert model.pos_embed.shape == (1, 1 + 6 * 14, DIM)
    assert model(torch.randn(1, 3, 96, 224)).shape == (1, CLASSES)


def test_timms_filter_fits_positions_to_the_model():
    state, model = little("cbsa").state_dict(), little("cbsa", img_size=(96, 224))
    fitted = checkpoint_filter_fn(state, model)
    model.load_state_dict(fitted)
    assert fitted["pos_embed"].shape == (1, 1 + 6 * 14, DIM)
    assert torch.equal(fitted["pos_embed"][:, 0], state["pos_embed"][:, 0])
    assert all(torch.equal(v, state[k]) for k, v in fitted.items() if k != "pos_embed")


def test_legacy_pooling_is_remembered_by_the_hub_format(tmp_path):
    path = tmp_path / "model.pth"
    make_file(path, "cbsa")
    model = load_reference_checkpoint(little("cbsa", num_classes=1000), path)
    model.save_pretrained(tmp_path / "hub")
    again = Transformer.from_pretrained(tmp_path / "hub").eval()
    assert all(block.attn.legacy_pool for block in again.blocks)
    images = torch.randn(2, 3, 160, 160)
    with torch.no_grad():
        assert torch.equal(again(images), model(images))


def test_what_was_done_to_a_model_is_saved_with_it(tmp_path):
    model = little("cbsa", num_classes=1000, representatives=(3, 2), weight_init="unit_steps")
    model.reset_classifier(4, "avg")
    model.set_input_size((96, 128))
    model.save_pretrained(tmp_path / "hub")
    again = Transformer.from_pretrained(tmp_path / "hub").eval()
    images = torch.randn(2, 3, 96, 128)
    with torch.no_grad():
        assert torch.equal(again(images), model(images))
    registered = create_model("cbt_tiny_patch4_32", num_classes=7, representatives=(3, 2)).eval()
    registered.set_input_size(48)
    save_model(registered, tmp_path / "timm", architecture="cbt_tiny_patch4_32")
    again = timm.create_model(f"local-dir:{tmp_path / 'timm'}", pretrained=True).eval()
    assert again.blocks[0].attn.representatives == (3, 2)
    images = torch.randn(2, 3, 48, 48)
    with torch.no_grad():
        assert torch.equal(again(images), registered(images))


def test_save_model_loads_through_timm(tmp_path):
    model = create_model("cbt_tiny_patch4_32", num_classes=7).eval()
    for block in model.blocks:
        block.attn.legacy_pool = True
    folder = save_model(model, tmp_path / "mine", architecture="cbt_tiny_patch4_32")
    assert load_file(folder / "model.safetensors").keys() == model.state_dict().keys()
    assert "1,5" in (folder / "README.md").read_text()  # its number of parameters
    again = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(again(images), model(images))
    assert again.num_classes == 7
    assert all(block.attn.legacy_pool for block in again.blocks)
    fewer = timm.create_model(f"local-dir:{folder}", pretrained=True, num_classes=3)
    assert fewer.head.out_features == 3


def test_convert_command(tmp_path):
    state = authors.make_state_dict(192, 12, 3, 11, 14, "cbsa")
    torch.save({"state_dict": {f"module.{k}": v for k, v in state.items()}}, tmp_path / "theirs.pth.tar")
    program = "from cbsa.cli import app; app()"
    arguments = ["convert", "theirs.pth.tar", "-m", "cbt_tiny_patch16_224", "-o", "ours"]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "Written: ours" in done.stdout
    assert json.loads((tmp_path / "ours/config.json").read_text())["model_args"]["legacy_pool"] is True
    model = timm.create_model(f"local-dir:{tmp_path / 'ours'}", pretrained=True).eval()
    images = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        assert_close(model(images), authors.logits(state, images, 3, "cbsa"), 1e-4)


@pytest.mark.parametrize(
    ("kind", "other", "messages"),
    [
        ("mssa", "cbsa", ["missing: ", "blocks.0.attn.step_rep"]),
        ("cbsa", "mssa", ["unknown: ", "blocks.0.attn.step_rep"]),
        (
            "crate",
            "mssa",
            ["missing: patch_embed.proj.0.0.weight", "unknown: patch_embed.norm_pixels.weight"],
        ),
    ],
)
def test_another_architecture_is_named_key_by_key(kind, other, messages, tmp_path):
    make_file(tmp_path / "x.pth", kind)
    with pytest.raises(CheckpointError, match="does not fit this model") as error:
        load_reference_checkpoint(little(other), tmp_path / "x.pth")
    assert all(m in str(error.value) for m in messages)


def test_another_width_is_named_with_shapes(tmp_path):
    make_file(tmp_path / "x.pth", "cbsa")
    with pytest.raises(CheckpointError, match=r"cls_token is \(1, 1, 48\) there and \(1, 1, 96\) here"):
        load_reference_checkpoint(little("cbsa", embed_dim=96), tmp_path / "x.pth")


def test_a_model_that_a_file_does_not_fit_stays_as_it_was(tmp_path):
    make_file(tmp_path / "x.pth", "cbsa")
    model = little("cbsa", embed_dim=96, num_classes=3)
    before, classifier = copy.deepcopy(model.state_dict()), model.head
    with pytest.raises(CheckpointError, match=r"cls_token is \(1, 1, 48\) there"):
        load_reference_checkpoint(model, tmp_path / "x.pth")
    assert model.num_classes == 3
    assert model.head is classifier
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


@pytest.mark.parametrize("prefix", ["_orig_mod.module.", "module._orig_mod.", "_orig_mod."])
def test_prefixes_of_compiled_and_distributed_models(prefix, tmp_path):
    state = authors.make_state_dict(DIM, DEPTH, HEADS, CLASSES, 10, "cbsa")
    torch.save({"state_dict": {prefix + k: v for k, v in state.items()}}, tmp_path / "x.pth")
    model, images = little("cbsa"), torch.randn(1, 3, 160, 160)
    load_reference_checkpoint(model, tmp_path / "x.pth")
    with torch.no_grad():
        assert_close(model(images), authors.logits(state, images, HEADS, "cbsa"), 1e-5)


@pytest.mark.parametrize("model", [torch.nn.Linear(3, 3), "cbt_tiny_patch16_224"])
def test_only_models_of_ours_take_reference_checkpoints(model, tmp_path):
    make_file(tmp_path / "x.pth", "cbsa")
    with pytest.raises(TypeError, match=rf"one of cbsa.create_model .*got {type(model).__name__}"):
        load_reference_checkpoint(model, tmp_path / "x.pth")


class Bomb:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return (open, (self.marker, "w"))


def test_a_hostile_pickle_runs_nothing(tmp_path):
    marker, path = tmp_path / "owned", tmp_path / "evil.pth"
    torch.save({"state_dict": {"a": torch.ones(1)}, "x": Bomb(str(marker))}, path)
    with pytest.raises(
        CheckpointError, match=r"holds a \S+open; it was not loaded, since that could run code"
    ):
        read_checkpoint(path)
    path.write_bytes(pickle.dumps(Bomb(str(marker))))
    with pytest.raises(CheckpointError, match=r"evil.pth"):
        read_checkpoint(path)
    assert not marker.exists()


def test_the_arguments_of_a_training_script_may_stand_beside_the_tensors(tmp_path):
    """As the code of ToST, DeiT and timm saves them; in there, too, nothing runs."""
    weights, marker = torch.randn(3), tmp_path / "owned"
    args = argparse.Namespace(lr=1e-3, opt_betas=None, data_set="IMNET")
    torch.save({"model": {"a": weights}, "args": args}, tmp_path / "run.pth")
    assert torch.equal(read_checkpoint(tmp_path / "run.pth")["a"], weights)
    torch.save(
        {"model": {"a": weights}, "args": argparse.Namespace(x=Bomb(str(marker)))}, tmp_path / "evil.pth"
    )
    with pytest.raises(CheckpointError, match="it was not loaded"):
        read_checkpoint(tmp_path / "evil.pth")
    assert not marker.exists()


def test_what_keeps_a_file_from_being_loaded_is_named(tmp_path):
    torch.save({"state_dict": {"a": torch.ones(1)}, "best": np.float64(3)}, tmp_path / "x.pth")
    with pytest.raises(CheckpointError, match=r"holds a numpy\.\S+scalar; .*weights_only=False"):
        read_checkpoint(tmp_path / "x.pth")


@pytest.mark.parametrize("name", ["cut.pth", "cut.safetensors"])
def test_a_truncated_file_is_an_error_not_a_guess(name, tmp_path):
    make_file(tmp_path / "whole.pth", "cbsa")
    folder = save_model(create_model("cbt_tiny_patch4_32"), tmp_path, architecture="cbt_tiny_patch4_32")
    whole = tmp_path / "whole.pth" if name.endswith("pth") else folder / "model.safetensors"
    (tmp_path / name).write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    with pytest.raises(CheckpointError, match=name):
        read_checkpoint(tmp_path / name)


@pytest.mark.parametrize("content", [b"", b"not a checkpoint at all", b"\x80\x04."])
def test_files_that_are_no_checkpoints(content, tmp_path):
    (tmp_path / "x.pth").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"x.pth (is|holds) .*(\w\)|code|by name)$"):
        read_checkpoint(tmp_path / "x.pth")


def test_other_bad_files(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_checkpoint(tmp_path / "nowhere.pth")
    with pytest.raises(FileNotFoundError, match="a folder, not a file"):
        read_checkpoint(tmp_path)
    torch.save([1, 2, 3], tmp_path / "list.pth")
    with pytest.raises(CheckpointError, match="holds no tensors by name"):
        read_checkpoint(tmp_path / "list.pth")
    monkeypatch.setattr("cbsa.models.checkpoints.MAX_BYTES", 10)
    with pytest.raises(CheckpointError, match="more than the limit of 10"):
        read_checkpoint(tmp_path / "list.pth")
