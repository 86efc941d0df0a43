"""Segmenters and weights of encoders, in and out, and hostile files."""

import json
import pickle

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from timm.models.vision_transformer import VisionTransformer

import cbsa
from cbsa.adaptation.stored import stored_styles
from cbsa.adaptation.timm_attention import AdaptedAttention
from cbsa.models import SHIPPED, CheckpointError, Transformer, create_model, save_model
from cbsa.models.checkpoints import save_timm_model
from cbsa.segmentation import CBTDecoder, Segmenter, create_segmenter, load_segmenter, save_segmenter
from cbsa.segmentation.about import About
from cbsa.segmentation.windows import WindowConfig
from tests.models import authors

CBT = "cbt_tiny_patch4_32"


def assert_same(one, other, size=(20, 36)):
    images = torch.randn(2, 3, *size)
    with torch.no_grad():
        assert torch.equal(one.eval()(images), other.eval()(images))


@pytest.mark.parametrize(
    ("encoder", "encoder_kwargs", "decoder", "decoder_kwargs"),
    [
        (
            CBT,
            {"depth": 1, "representatives": (3, 2), "legacy_pool": True},
            "cbt",
            {"tied": True, "depth": 1},
        ),
        ("vit_tiny_patch16_224", {"depth": 1}, "depict", {"mode": "cross", "depth": 1}),
        ("eva02_tiny_patch14_224", {"depth": 1}, "mask_transformer", {"depth": 1}),
        ("tost_cab_tiny_12_patch16_224", {"depth": 1}, "cbt", {"representatives": [3, 4], "depth": 1}),
    ],
)
def test_round_trip(encoder, encoder_kwargs, decoder, decoder_kwargs, tmp_path):
    model = create_segmenter(
        encoder,
        decoder,
        4,
        img_size=(28, 56),
        encoder_kwargs=encoder_kwargs,
        decoder_kwargs=decoder_kwargs,
    )
    model.set_normalization([0.1, 0.2, 0.3], [0.4, 0.5, 0.6])
    folder = save_segmenter(model, tmp_path / "a" / "b")
    assert load_file(folder / "model.safetensors").keys() == model.state_dict().keys()
    again = load_segmenter(folder)
    assert again.num_classes == 4
    assert again.normalization == {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6]}
    assert again.config == json.loads(json.dumps(model.config))
    assert_same(again, model)


def test_round_trip_of_given_encoders(tmp_path):
    ours = Transformer(32, 8, embed_dim=24, depth=1, num_heads=2, attention="mssa", feed_forward="mlp")
    for number, encoder in enumerate((ours, timm.create_model("vit_tiny_patch16_224"))):
        model = create_segmenter(encoder, num_classes=3, img_size=(32, 48))
        assert_same(load_segmenter(save_segmenter(model, tmp_path / str(number))), model)


def test_what_cannot_be_made_again_is_not_saved(tmp_path):
    by_hand = Segmenter(timm.create_model("vit_tiny_patch16_224", depth=1), CBTDecoder(192, 3))
    other_depth = create_segmenter(timm.create_model("vit_tiny_patch16_224", depth=1), num_classes=3)
    nameless = create_segmenter(VisionTransformer(embed_dim=24, depth=1, num_heads=2), num_classes=3)
    for model, reason in ((by_hand, "expected"), (other_depth, "other names or shapes"), (nameless, "None")):
        with pytest.raises(CheckpointError, match=f"could not be made again .*{reason}"):
            save_segmenter(model, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("when", ["before", "after"])
def test_round_trip_of_an_adapted_encoder(when, tmp_path):
    """Styles leave no trace in the weights: they are stored, whenever the encoder was adapted."""
    vit = timm.create_model("vit_tiny_patch16_224", depth=2) if when == "before" else None
    if vit is not None:
        cbsa.adapt(vit, "cbsa", layers=[1], representatives=(3, 2))
    by_name = {"encoder_kwargs": {"depth": 2}} if vit is None else {}
    model = create_segmenter(vit or "vit_tiny_patch16_224", num_classes=3, **by_name)
    if vit is None:
        cbsa.adapt(model.encoder, "cbsa", layers=[1], representatives=(3, 2))
    else:
        model.config["encoder_kwargs"] = {"depth": 2}  # which a module of timm does not tell
    again = load_segmenter(save_segmenter(model, tmp_path))
    assert not isinstance(again.encoder.blocks[0].attn, AdaptedAttention)
    assert again.encoder.blocks[1].attn.style.representatives == (3, 2)
    assert_same(again, model)
    cbsa.adapt(model.encoder, "softmax")
    assert not torch.equal(again(torch.ones(1, 3, 32, 32)), model(torch.ones(1, 3, 32, 32)))
    assert (
        "adapted"
        not in json.loads((save_segmenter(model, tmp_path) / "config.json").read_text())["segmenter"]
    )


def test_what_classes_are_and_how_images_are_looked_at_comes_along(tmp_path):
    model = create_segmenter(CBT, num_classes=2, encoder_kwargs={"depth": 1}, decoder_kwargs={"depth": 1})
    assert load_segmenter(save_segmenter(model, tmp_path / "a")).about == About()
    windows = WindowConfig((16, 24), (8, 12))
    model.about = About(("sky\x1b[31m", "road"), ((1, 2, 3), (255, 0, 9)), 180, windows)
    about = load_segmenter(save_segmenter(model, tmp_path / "b")).about
    assert about == About(("sky\ufffd[31m", "road"), ((1, 2, 3), (255, 0, 9)), 180, windows)


def saved(tmp_path, change, inside="segmenter"):
    """A saved segmenter whose configuration was tampered with."""
    model = create_segmenter(CBT, num_classes=3, encoder_kwargs={"depth": 1}, decoder_kwargs={"depth": 1})
    folder = save_segmenter(model, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    change(config[inside] if inside else config)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder": "local-dir:/tmp"}, "encoder='local-dir:/tmp' is not the name of a registered model"),
        ({"encoder": "hf-hub:a/b"}, "is not the name of a registered model"),
        ({"encoder": 3}, "encoder=3 is not the name"),
        ({"encoder": "nothing"}, "does not describe a segmenter: encoder='nothing': no such model"),
        ({"encoder_kwargs": {"checkpoint_path": "/tmp/x.pth"}}, r"encoder_kwargs=.* are not allowed"),
        ({"encoder_kwargs": {"pretrained": True}}, r"encoder_kwargs=.* are not allowed"),
        ({"encoder_kwargs": 3}, "encoder_kwargs=3 are not allowed"),
        ({"decoder": "x"}, "decoder='x': expected one of"),
        ({"decoder_kwargs": {"depth": -1}}, "depth must be at least 1, got -1"),
        ({"pretrained_encoder": "/tmp/x"}, "is not the configuration of a segmenter"),
        ({"num_classes": "3"}, "num_classes must be an integer, got '3'"),
        ({"num_classes": 4}, "does not fit this model. 3 of another shape"),
        ({"adapted": [{"name": "cbsa"}]}, "cannot adapt a Transformer"),
        ({"adapted": [None, None]}, "'adapted' must be a list of 1 styles, got 2 layers"),
    ],
)
def test_tampered_configurations_are_refused(changes, message, tmp_path):
    folder = saved(tmp_path, lambda config: config.update(changes))
    with pytest.raises(CheckpointError, match=message):
        load_segmenter(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": ["a"]}, "classes must be a list with an entry for each of 3 classes, got 1 of them"),
        ({"classes": 3}, "classes must be a list .* got 3"),
        ({"classes": ["a", "b", 5]}, "the name of a class must be a text, got 5"),
        ({"colours": [[0, 0, 0]] * 2 + [[0, 0, 256]]}, "from 0 to 255"),
        ({"colours": [[0, 0]] * 3}, "does not describe a segmenter"),
        ({"short_side": -1}, "short_side must be at least 0"),
        ({"windows": {"size": [4, 4]}}, "does not describe a segmenter"),
        ({"windows": {"size": [4, 4], "stride": [5, 5]}}, "must be at most windows.size"),
        ({"mean": None}, "does not describe a segmenter"),
    ],
)
def test_tampered_descriptions_are_refused(changes, message, tmp_path):
    folder = saved(tmp_path, lambda config: config.update(changes), inside=None)
    with pytest.raises(CheckpointError, match=message):
        load_segmenter(folder)


def test_other_bad_files(tmp_path):
    with pytest.raises(FileNotFoundError, match="expected a folder written by save_segmenter"):
        load_segmenter(tmp_path / "nowhere")
    folder = saved(tmp_path, lambda config: None)
    (folder / "model.safetensors").write_bytes(b"short")
    with pytest.raises(CheckpointError, match=r"model\.safetensors is truncated or not a checkpoint"):
        load_segmenter(folder)
    for text in ("{", "[]", '{"segmenter": 3}', "{}"):
        (folder / "config.json").write_text(text)
        with pytest.raises(CheckpointError, match=r"config\.json is not the configuration of a segmenter"):
            load_segmenter(folder)


# --- weights of an encoder -------------------------------------------------------------------------------


def test_encoder_from_a_saved_model_or_run(tmp_path):
    """Arguments that no weight shows come along; the position embedding is resampled to img_size."""
    trained = create_model(CBT, depth=1, num_classes=7, representatives=(3, 2), legacy_pool=True)
    run = tmp_path / "run"
    folder = save_model(trained, run / "model", architecture=CBT)
    for path in (run, folder, folder / "model.safetensors"):
        model = create_segmenter(CBT, num_classes=3, pretrained_encoder=path)
        assert model.encoder.blocks[0].attn.representatives == (3, 2)
        assert model.encoder.blocks[0].attn.legacy_pool
        images = torch.randn(1, 3, 32, 32)
        with torch.no_grad():
            ours, theirs = model.eval().encoder, trained.eval()
            assert torch.equal(ours.forward_features(images), theirs.forward_features(images))
    assert_same(load_segmenter(save_segmenter(model, tmp_path / "segmenter")), model)
    assert create_segmenter(CBT, pretrained_encoder=run, img_size=48).encoder.pos_embed.shape[1] == 1 + 144
    with pytest.raises(
        ValueError, match=f"holds weights of '{CBT}', but the encoder is 'crate_tiny_patch4_32'"
    ):
        create_segmenter("crate_tiny_patch4_32", pretrained_encoder=run)


def test_encoder_from_a_run_that_adapted_it(tmp_path):
    """Its arguments, styles and normalisation come along, and are saved with the segmenter."""
    vit = timm.create_model("vit_tiny_patch16_224", depth=1, embed_dim=24, num_heads=2, num_classes=7)
    cbsa.adapt(vit, "cbsa", representatives=(3, 2))
    save_timm_model(
        vit,
        tmp_path / "run" / "model",
        architecture="vit_tiny_patch16_224",
        arguments={"depth": 1, "embed_dim": 24, "num_heads": 2, **stored_styles(vit)},
        transform={"input_size": (3, 224, 224), "mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6)},
    )
    model = create_segmenter("vit_tiny_patch16_224", num_classes=3, pretrained_encoder=tmp_path / "run")
    assert model.normalization == {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6]}
    images = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        assert torch.equal(model.eval().encoder.forward_features(images), vit.eval().forward_features(images))
    assert_same(load_segmenter(save_segmenter(model, tmp_path / "segmenter")), model)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ([], "is not the configuration of an encoder"),
        ({"architecture": CBT, "model_args": 3}, "is not the configuration of an encoder"),
        ({"architecture": "local-dir:/tmp"}, "is not allowed"),
        ({"architecture": CBT, "model_args": {"checkpoint_path": "/x"}}, "is not allowed"),
        ({"architecture": CBT, "model_args": {"adapted": 3}}, "'adapted' must be a list"),
    ],
)
def test_tampered_encoders_are_refused(config, message, tmp_path):
    save_model(create_model(CBT), tmp_path, architecture=CBT)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=message):
        create_segmenter(CBT, num_classes=3, pretrained_encoder=tmp_path)


def test_encoder_from_the_authors_file(tmp_path):
    state = authors.make_state_dict(192, 1, 3, 11, 14, "cbsa")
    torch.save({"state_dict": {f"module.{k}": v for k, v in state.items()}}, tmp_path / "best.pth.tar")
    model = create_segmenter(
        "cbt_tiny_patch16_224",
        num_classes=3,
        encoder_kwargs={"depth": 1},
        pretrained_encoder=tmp_path / "best.pth.tar",
    )
    assert torch.equal(model.encoder.cls_token, state["cls_token"])
    assert model.encoder.blocks[0].attn.legacy_pool
    assert model.encoder.num_classes == 0
    assert model.config["encoder_kwargs"]["legacy_pool"] is True


@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
def test_encoder_from_a_file_of_timms_names(suffix, tmp_path):
    path, kwargs = tmp_path / f"vit.{suffix}", {"depth": 1}
    vit = timm.create_model("vit_tiny_patch16_224", **kwargs).eval()
    (save_file if suffix == "safetensors" else torch.save)(vit.state_dict(), path)
    model = create_segmenter("vit_tiny_patch16_224", encoder_kwargs=kwargs, pretrained_encoder=path).eval()
    images = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        assert torch.equal(model.encoder.forward_features(images), vit.forward_features(images))
    smaller = create_segmenter(
        "vit_tiny_patch16_224", encoder_kwargs=kwargs, pretrained_encoder=path, img_size=(64, 96)
    )
    assert smaller.encoder.pos_embed.shape[1] == 1 + 24
    with pytest.raises(CheckpointError, match=r"does not fit this model. 12 missing: blocks.1.norm1.weight"):
        create_segmenter("vit_tiny_patch16_224", encoder_kwargs={"depth": 2}, pretrained_encoder=path)


def test_encoder_from_a_file_of_ours(tmp_path):
    trained = create_model(CBT, depth=1, num_classes=7)
    save_file(trained.state_dict(), tmp_path / "mine.safetensors")
    model = create_segmenter(
        CBT, encoder_kwargs={"depth": 1}, pretrained_encoder=tmp_path / "mine.safetensors"
    )
    assert torch.equal(model.encoder.pos_embed, trained.pos_embed)


class Bomb:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return (open, (self.marker, "w"))


def test_weights_that_ship_with_the_package():
    name = "cbt_tiny_patch4_32.cifar10"
    model = create_segmenter("cbt_tiny_patch4_32", num_classes=3, pretrained_encoder=name)
    shipped, images = create_model(name, pretrained=True).eval(), torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        expected = shipped.forward_features(images)
        assert torch.equal(model.eval().encoder.forward_features(images), expected)
    assert model.normalization["mean"] == list(SHIPPED[name].pretrained_cfg()["mean"])
    with pytest.raises(FileNotFoundError, match="nor weights that ship with cbsa"):
        create_segmenter("cbt_tiny_patch4_32", num_classes=3, pretrained_encoder="cbt_tiny_patch4_32.cifar")


def test_bad_files_of_encoders(tmp_path):
    (tmp_path / "evil.pth").write_bytes(pickle.dumps(Bomb(str(tmp_path / "owned"))))
    with pytest.raises(CheckpointError, match=r"evil\.pth"):
        create_segmenter(CBT, pretrained_encoder=tmp_path / "evil.pth")
    assert not (tmp_path / "owned").exists()
    with pytest.raises(FileNotFoundError, match="no such file"):
        create_segmenter(CBT, pretrained_encoder=tmp_path / "nowhere.pth")
    with pytest.raises(FileNotFoundError, match=r"a folder without config\.json and model\.safetensors"):
        create_segmenter(CBT, pretrained_encoder=tmp_path)
    (tmp_path / "last.pt").touch()
    with pytest.raises(CheckpointError, match="give the folder of the run"):
        create_segmenter(CBT, pretrained_encoder=tmp_path / "last.pt")
