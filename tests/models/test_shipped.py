"""The weights that ship with the package: they load without a network, and are what their cards say."""

import json
import re
import socket
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import cbsa
from cbsa.cli.shipped import weights_grid
from cbsa.data import DataConfig, normalise
from cbsa.data.transforms import EvalTransform
from cbsa.experiments.subjects import open_subjects
from cbsa.explain import photographs
from cbsa.models import MODELS, SHIPPED, create_model
from cbsa.models.shipped import shipped_name
from cbsa.train.assess import assess
from cbsa.train.card import write_card
from cbsa.train.trained import find_trained
from tests.compare import assert_close
from tests.data.real import real_data

CBT = "cbt_tiny_patch4_32.cifar10"
# Logits on scikit-learn's china.jpg, computed by `by_hand` in float64 on a CPU when the weights were added:
# python -m tests.models.test_shipped
GOLDEN_FILE = Path(__file__).with_name("shipped_logits.json")
GOLDEN = json.loads(GOLDEN_FILE.read_text())
ROOT = Path(__file__).parents[2]
WEIGHTS_PAGE, STUDY = ROOT / "docs" / "weights.md", ROOT / "benchmarks" / "results" / "studies" / "laptop"
every_entry = pytest.mark.parametrize("entry", SHIPPED.values(), ids=list(SHIPPED))


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    connect = socket.socket.connect

    def refuse(*_, **__):
        raise AssertionError("a connection was asked for")

    def within_this_machine(self, address):  # workers of a loader hand over tensors so
        return connect(self, address) if self.family == socket.AF_UNIX else refuse()

    monkeypatch.setattr(socket.socket, "connect", within_this_machine)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def by_hand(entry):
    """The model with its weights, without timm's loading: arguments of the file, tensors of the file."""
    model = cbsa.models.Transformer(**entry.arguments, num_classes=len(entry.config["label_names"]))
    tensors = load_file(entry.file)
    model.load_state_dict({k: v.float() if v.is_floating_point() else v for k, v in tensors.items()})
    return model.eval()


def photograph(entry):
    """One of scikit-learn's photographs as the model takes it, (1, 3, S, S)."""
    cfg = entry.config["pretrained_cfg"]
    data = DataConfig(
        img_size=cfg["input_size"][1], crop_pct=cfg["crop_pct"], interpolation=cfg["interpolation"]
    )
    return normalise(EvalTransform(data)(photographs()[0][1])[None], cfg["mean"], cfg["std"])


def test_results_name_what_ships_and_not_where_it_lies():
    subject, *_ = open_subjects([CBT])
    assert subject.describe()["weights"] == CBT
    assert shipped_name(Path("elsewhere.safetensors")) is None


def test_what_ships():
    assert CBT in SHIPPED
    assert {name for name in timm.list_pretrained() if name.partition(".")[0] in MODELS} == SHIPPED.keys()
    assert GOLDEN.keys() == SHIPPED.keys()


@every_entry
def test_it_loads_without_a_network_by_each_of_its_names(entry):
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        expected = by_hand(entry)(images)
        for model in (
            timm.create_model(f"local-dir:{entry.folder}", pretrained=True),
            timm.create_model(entry.architecture, pretrained=True),
            cbsa.create_model(entry.architecture, pretrained=True),
            timm.create_model(entry.name, pretrained=True),
        ):
            assert torch.equal(model.eval()(images), expected)
            assert model.num_classes == len(entry.config["label_names"])
        assert not torch.equal(timm.create_model(entry.name).eval()(images), expected)  # as timm: no weights
    config = timm.data.resolve_model_data_config(model)
    for key in ("mean", "std", "crop_pct", "interpolation"):
        given = entry.config["pretrained_cfg"][key]
        assert config[key] == (tuple(given) if isinstance(given, list) else given)


@every_entry
def test_other_classes_sizes_channels_and_features(entry):
    own = create_model(entry.name, pretrained=True).eval()
    other = create_model(entry.name, pretrained=True, num_classes=7, img_size=48, in_chans=1).eval()
    assert other(torch.randn(1, 1, 48, 48)).shape == (1, 7)
    assert torch.equal(other.blocks[3].attn.proj.weight, own.blocks[3].attn.proj.weight)
    assert other.pos_embed.shape[1] == 1 + 12 * 12
    with torch.no_grad():
        images = torch.randn(1, 3, 40, 56)
        backbone = timm.create_model(entry.name, pretrained=True, features_only=True, out_indices=(2, 11))
        expected = own.forward_intermediates(images, indices=[2, 11], intermediates_only=True)
        for ours, theirs in zip(backbone.eval()(images), expected, strict=True):
            assert_close(ours, theirs, 1e-6)


@every_entry
def test_the_files_are_what_the_card_says(entry):
    with safe_open(entry.file, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    parameters = dict(create_model(entry.architecture, num_classes=10).named_parameters())
    assert {n: t.shape for n, t in tensors.items() if n in parameters} == {
        n: p.shape for n, p in parameters.items()
    }
    assert {t.dtype for n, t in tensors.items() if not n.endswith("num_batches_tracked")} == {torch.bfloat16}
    assert all(t.isfinite().all() for t in tensors.values())
    assert entry.file.stat().st_size < 5e6
    training, card = entry.training, entry.card.read_text()
    assert card == write_card(entry)
    assert f"{sum(p.numel() for p in parameters.values()):,} parameters" in card
    assert training["accuracy"]["shipped"] is not None
    assert abs(training["accuracy"]["shipped"] - training["accuracy"]["float32"]) < 0.3
    for part in ("## Accuracy", "## Data", "## Training", "## Limits", "not a model of the paper", "seed"):
        assert part in card
    told = card + (entry.folder / "config.json").read_text()
    assert not re.search(r"[Tt]o be filled in|/tmp|/work|/home|None", told)
    assert f"data.root=/data/{entry.tag}" in training["run"]["command"]


@every_entry
def test_logits_on_a_photograph_are_those_of_the_day_it_was_added(entry):
    with torch.no_grad():
        logits = create_model(entry.name, pretrained=True).eval()(photograph(entry))[0]
    assert_close(logits, torch.tensor(GOLDEN[entry.name]), 1e-3)
    assert logits.argmax() == torch.tensor(GOLDEN[entry.name]).argmax()


@every_entry
def test_accuracy_on_cifar_10_is_the_cards(entry):
    root = real_data("cifar10")
    config = find_trained(entry.name).config
    config = replace(
        config,
        data=replace(config.data, dataset="parquet", root=str(root)),
        runtime=replace(config.runtime, precision="fp32"),
    )
    assert abs(assess(config).metrics.top1 - entry.training["accuracy"]["shipped"]) < 0.1


def test_a_model_without_weights_says_which_have_some():
    for create in (timm.create_model, cbsa.create_model):
        with pytest.raises(ValueError, match="no weights of cbt_small_patch16_224 ship") as error:
            create("cbt_small_patch16_224", pretrained=True)
        assert all(name in str(error.value) for name in SHIPPED)
        assert "load_reference_checkpoint" in str(error.value)
    with pytest.raises(ValueError, match=r"no weights of cbt_tiny_patch4_32\.untrained ship"):
        create_model("cbt_tiny_patch4_32.untrained", pretrained=True)
    with pytest.raises(ValueError, match=r"tag of cbt_tiny_patch4_32='cifar11': expected one of .*'cifar10'"):
        create_model("cbt_tiny_patch4_32.cifar11")


def test_the_documentation_has_the_table_of_the_command():
    table, text = weights_grid(SHIPPED.values()).markdown().partition("\n\n")[2], WEIGHTS_PAGE.read_text()
    assert table in text
    larger = json.loads((ROOT / "benchmarks/results/cpu/cifar10_cbt_tiny_48px.json").read_text())
    assert f"{larger['top1']:.2f} % where CIFAR-10 is enlarged to 48 px" in text


def test_accuracy_on_the_card_is_that_of_the_studys_record():
    result = json.loads((STUDY / "cbsa-t" / "seed0.json").read_text())["result"]
    assert SHIPPED[CBT].training["accuracy"]["run"] == result["top1"]
    assert SHIPPED[CBT].training["run"]["seconds"] == result["seconds"]


def test_weights_from_elsewhere_still_load():
    entry = SHIPPED[CBT]
    overlay = {"file": str(entry.file), "num_classes": 10}
    model = timm.create_model("cbt_tiny_patch4_32.untrained", pretrained=True, pretrained_cfg_overlay=overlay)
    assert torch.equal(model.pos_embed, create_model(entry.name, pretrained=True).pos_embed)


def test_a_name_without_a_tag_is_what_it_was():
    """Weights of ten classes do not change what a model is that is made without them."""
    model = timm.create_model(SHIPPED[CBT].architecture)
    assert model.num_classes == 1000
    assert model.pretrained_cfg["tag"] == "untrained"


if __name__ == "__main__":
    with torch.no_grad():
        found = {
            name: by_hand(entry).double()(photograph(entry).double())[0].tolist()
            for name, entry in SHIPPED.items()
        }
    GOLDEN_FILE.write_text(json.dumps(found, indent=1) + "\n")
