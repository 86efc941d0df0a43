"""Models as users name them: every way to name one run gives the same model."""

import shutil

import pytest
import timm
import torch

from cbsa.models import CheckpointError, create_model, save_model
from cbsa.train import train
from cbsa.train.trained import label_of, open_trained
from tests.compare import assert_close
from tests.models import authors
from tests.train.runs import tiny_config


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(tiny_config("epochs=1", "data.mean=0.4", "data.std=0.3"), folder)
    return folder


@pytest.fixture(scope="module")
def expected(run):
    model = timm.create_model(f"local-dir:{run / 'model'}", pretrained=True).eval()
    return model(torch.ones(1, 1, 16, 16))


@pytest.mark.parametrize("what", ["", "model", "model/model.safetensors", "local-dir"])
def test_every_name_of_a_run_is_the_same_model(run, expected, what):
    name = f"local-dir:{run / 'model'}" if what == "local-dir" else str(run / what)
    trained = open_trained(name)
    assert not trained.model.training
    assert torch.equal(trained.model(torch.ones(1, 1, 16, 16)), expected)
    assert (trained.label, trained.architecture) == ("CBT 16×2", "cbt_tiny_patch4_32")
    assert (trained.data.img_size, trained.data.in_chans) == (16, 1)
    assert trained.weights == run / "model" / "model.safetensors"
    assert (trained.has_data, trained.run) == ((True, run) if what == "" else (False, None))


def test_a_run_tells_its_data_and_normalisation(run):
    assert open_trained(str(run)).data.dataset == "digits"
    assert open_trained(str(run)).data.mean == (0.4,)
    checkpoint = open_trained(str(run / "checkpoints" / "best.pt"))
    assert checkpoint.has_data
    assert checkpoint.data.std == (0.3,)


def test_a_run_that_is_not_finished_has_its_last_checkpoint(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "model")
    trained = open_trained(str(tmp_path / "run"))
    assert trained.weights.name.startswith("step-")


def test_registered_names_have_random_weights_or_those_given(tmp_path):
    random = open_trained("cbt_tiny_patch4_32")
    assert random.weights is None
    assert not random.has_data
    assert (random.data.img_size, random.data.in_chans) == (32, 3)
    model = create_model("cbt_tiny_patch4_32", num_classes=7)
    save_model(model, tmp_path, architecture="cbt_tiny_patch4_32")
    (tmp_path / "config.json").unlink()
    trained = open_trained("cbt_tiny_patch4_32", str(tmp_path / "model.safetensors"))
    assert trained.model.num_classes == 7
    assert torch.equal(trained.model.head.weight, model.head.weight)
    with pytest.raises(CheckpointError, match="does not say which model it is for"):
        open_trained(str(tmp_path))


def test_a_checkpoint_of_the_authors_keeps_its_classifier(tmp_path):
    state = authors.make_state_dict(192, 12, 3, 7, 14, "cbsa")
    torch.save(
        {"state_dict": {f"module.{name}": value for name, value in state.items()}}, tmp_path / "x.pth.tar"
    )
    trained = open_trained("cbt_tiny_patch16_224", str(tmp_path / "x.pth.tar"))
    images = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        assert_close(trained.model(images), authors.logits(state, images, 3, "cbsa"), 1e-4)


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("cbt_tiny_patch16_224", "CBT-T"),
        ("crate_small_patch4_64", "CRATE-S"),
        ("crate_cbt_tiny_patch4_32", "CRATE+CBT-T"),
        ("vit_conv_small_patch16_224", "ViT-S"),
        ("tost_tiny_patch16_224", "ToST-T"),
        ("agent_tiny_patch4_64", "Agent-T"),
        ("crate_large_linear_patch16_224", "CRATE-L"),
        ("another", "another"),
    ],
)
def test_labels_are_the_papers(name, label):
    with torch.device("meta"):
        model = create_model(name) if name != "another" else torch.nn.Linear(1, 1)
    assert label_of(name, model) == label


@pytest.mark.parametrize(
    ("name", "weights", "error", "message"),
    [
        ("no/such/run", None, FileNotFoundError, "'no/such/run': there is no such folder or file"),
        ("cbt_tyny_patch4_32", None, ValueError, "did you mean 'cbt_tiny_patch4_32'"),
        ("cbt_tiny_patch4_32", "none.safetensors", FileNotFoundError, "'none.safetensors': no such file"),
        (".", "x.safetensors", ValueError, "goes with the name of a model, and '.' is none"),
    ],
)
def test_wrong_names(name, weights, error, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        open_trained(name, weights)
    with pytest.raises(FileNotFoundError, match=r"nor a folder with model\.safetensors"):
        open_trained(".")
