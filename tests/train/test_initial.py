"""What a run starts with: weights from wherever they lie, in the model they were made for."""

import json
import random

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file

from cbsa.data import DataConfig
from cbsa.models import CheckpointError, create_model, load_reference_checkpoint, save_model
from cbsa.train import ModelConfig, TrainConfig
from cbsa.train.averaging import WeightAverage
from cbsa.train.checkpoint import CheckpointFolder
from cbsa.train.distributed import World
from cbsa.train.initial import build_model, kernels, seed_everything
from cbsa.train.state import Progress, TrainState
from tests.compare import assert_close
from tests.models import authors

NAME = "cbt_tiny_patch4_32"
SMALL = {"embed_dim": 16, "depth": 2, "num_heads": 2}
VIT = "vit_tiny_patch16_224"
VIT_SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2}
IMAGES = DataConfig(img_size=32)


def settings(name=NAME, kwargs=SMALL, *, data=IMAGES, **options):
    return TrainConfig(model=ModelConfig(name, kwargs, **options), data=data)


def trained(classes=5, **kwargs):
    """A model whose parameters and statistics are all other than at the start."""
    model = create_model(NAME, num_classes=classes, **(SMALL | kwargs))
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point():
                tensor.add_(0.1 * torch.rand_like(tensor))
    return model.eval()


def logits(model, channels=3):
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        return model.eval()(torch.randn(3, channels, 32, 32, generator=generator))


def save_checkpoint(folder, model, config, average=None):
    """A checkpoint as a run writes it."""
    world = World(0, 1, torch.device("cpu"))
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    state = TrainState(model, torch.optim.AdamW(model.parameters()), scaler, average, Progress(), world)
    assert CheckpointFolder(folder, 1, pytest.fail).save_best(state.capture(), config)
    return folder / "best.pt"


def as_run(folder, model):
    save_model(model, folder / "model", architecture=NAME)
    return folder


def as_export(folder, model):
    return save_model(model, folder, architecture=NAME)


def as_safetensors(folder, model):
    return save_model(model, folder, architecture=NAME) / "model.safetensors"


def as_bare_safetensors(folder, model):
    save_file(model.state_dict(), folder / "some weights.safetensors")
    return folder / "some weights.safetensors"


def as_checkpoint(folder, model):
    return save_checkpoint(folder, model, settings())


FORMS = [as_run, as_export, as_safetensors, as_bare_safetensors, as_checkpoint]


@pytest.mark.parametrize("form", FORMS)
def test_weights_from_everywhere_give_the_same_logits(tmp_path, form):
    model = trained()
    again = build_model(settings(weights=str(form(tmp_path, model))), 5)
    assert torch.equal(logits(again), logits(model))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("classes", [3, 9])
def test_another_number_of_classes_gets_a_new_classifier_and_the_rest_is_kept(tmp_path, form, classes):
    model = trained()
    again = build_model(settings(weights=str(form(tmp_path, model))), classes)
    assert again.num_classes == classes
    assert logits(again).shape == (3, classes)
    expected = model.state_dict()
    for name, tensor in again.state_dict().items():
        if name.startswith("head."):
            assert tensor.shape[0] == classes
        else:
            assert torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize("classes", [5, 9])
def test_authors_checkpoints(tmp_path, classes):
    """With the shifted pooling that they were trained with."""
    state = authors.make_state_dict(48, 2, 3, 5, 4, "cbsa")
    path = tmp_path / "model_best.pth.tar"
    torch.save({"epoch": 3, "state_dict": {f"module.{k}": v for k, v in state.items()}}, path)
    kwargs = {"embed_dim": 48, "depth": 2, "num_heads": 3, "representatives": (8, 8)}
    config = settings("cbt_tiny_patch16_224", kwargs, data=DataConfig(img_size=64), weights=str(path))
    model = build_model(config, classes).eval()
    assert all(block.attn.legacy_pool for block in model.blocks)
    images = torch.randn(2, 3, 64, 64)
    reference = load_reference_checkpoint(
        create_model("cbt_tiny_patch16_224", img_size=64, **kwargs), path
    ).eval()
    with torch.no_grad():
        if classes == 5:
            assert_close(model(images), authors.logits(state, images, 3, "cbsa"), 1e-5)
        assert torch.equal(model.forward_features(images), reference.forward_features(images))
    assert model.num_classes == classes


@pytest.mark.parametrize("form", [as_run, as_export, as_safetensors, as_checkpoint])
@pytest.mark.parametrize(
    "arguments", [{"representatives": (2, 3)}, {"legacy_pool": True}, {"global_pool": "avg"}]
)
def test_what_no_weight_shows_is_carried_over(tmp_path, form, arguments):
    """Without a word about it in the settings of the new run; without it, the results are others."""
    model = trained(**arguments)
    again = build_model(settings(weights=str(form(tmp_path, model))), 5)
    assert torch.equal(logits(again), logits(model))
    plain = create_model(NAME, num_classes=5, **SMALL)
    plain.load_state_dict(model.state_dict())
    assert not torch.allclose(logits(plain), logits(model), atol=1e-6)
    # It goes on from hand to hand: a checkpoint of the second run has it too.
    path = save_checkpoint(tmp_path / "second", again, settings(weights=str(tmp_path)))
    assert torch.equal(logits(build_model(settings(weights=str(path)), 5)), logits(model))


def test_pooling_is_carried_over_by_timm_too(tmp_path):
    model = trained(global_pool="avg")
    folder = save_model(model, tmp_path, architecture=NAME)
    again = timm.create_model(f"local-dir:{folder}", pretrained=True)
    assert again.global_pool == "avg"
    assert torch.equal(logits(again), logits(model))


def test_the_original_tost_is_carried_over_by_all_three(tmp_path):
    """By a folder, a checkpoint and timm, with other sizes than its name says, and grey images."""
    name = "tost_cab_tiny_12_patch16_224"
    grey = DataConfig(img_size=32, in_chans=1, mean=(0.5,), std=(0.5,))
    model = build_model(settings(name, SMALL | {"eta": 0.5}, data=grey), 5)
    folder = save_model(model, tmp_path, architecture=name)
    path = save_checkpoint(tmp_path / "checkpoints", model, settings(name, data=grey))
    again = [build_model(settings(name, {}, data=grey, weights=str(place)), 5) for place in (folder, path)]
    again.append(timm.create_model(f"local-dir:{folder}", pretrained=True))
    for other in again:
        assert torch.equal(logits(other, channels=1), logits(model, channels=1))


def test_settings_go_before_what_was_saved(tmp_path):
    path = as_export(tmp_path, trained(representatives=(2, 3)))
    kwargs = SMALL | {"representatives": [4, 4]}
    model = build_model(settings(kwargs=kwargs, weights=str(path)), 5)
    assert model.blocks[0].attn.representatives == (4, 4)


def test_the_shape_of_the_saved_model_need_not_be_repeated(tmp_path):
    model = trained()
    for form in (as_run, as_checkpoint):
        again = build_model(settings(kwargs={}, weights=str(form(tmp_path, model))), 5)
        assert torch.equal(logits(again), logits(model))


def test_another_size_of_images_resamples_the_positions(tmp_path):
    trained_model = trained()
    path = as_run(tmp_path, trained_model)
    model = build_model(settings(data=DataConfig(img_size=48), weights=str(path)), 5)
    assert model.img_size == (48, 48)
    assert model.pos_embed.shape == (1, 1 + 12 * 12, 16)
    assert torch.equal(model.pos_embed[:, 0], trained_model.pos_embed[:, 0])
    assert torch.equal(model.cls_token, trained_model.cls_token)


def test_the_average_of_a_checkpoint_is_taken(tmp_path):
    model = trained()
    average = WeightAverage(model, 0.5)
    expected = {name: t.clone() for name, t in model.state_dict().items()}  # of before the next step
    with torch.no_grad():
        model.head.weight.add_(1)
    path = save_checkpoint(tmp_path, model, settings(), average)
    again = build_model(settings(weights=str(path)), 5)
    for name, tensor in again.state_dict().items():
        assert torch.equal(tensor, expected[name]), name


# --- what does not fit -----------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [as_run, as_safetensors, as_checkpoint])
def test_another_architecture_is_named(tmp_path, form):
    path = form(tmp_path, trained())
    with pytest.raises(
        CheckpointError, match=rf"'{NAME}', but model\.name is 'crate_tiny_patch4_32'; set model\.name={NAME}"
    ):
        build_model(settings("crate_tiny_patch4_32", weights=str(path)), 5)


def test_another_architecture_is_found_by_its_tensors(tmp_path):
    path = as_bare_safetensors(tmp_path, trained())
    with pytest.raises(CheckpointError, match=r"does not fit this model\..*unknown: .*step_rep"):
        build_model(settings("crate_tiny_patch4_32", weights=str(path)), 5)
    with pytest.raises(CheckpointError, match=r"cls_token is \(1, 1, 16\) there and \(1, 1, 32\) here"):
        build_model(settings(kwargs=SMALL | {"embed_dim": 32}, weights=str(path)), 5)


def test_weights_that_are_not_there(tmp_path):
    for path in (tmp_path / "nowhere.pth", tmp_path):
        with pytest.raises(
            FileNotFoundError, match=rf"model\.weights='{path}': no such file, nor a folder with"
        ):
            build_model(settings(weights=str(path)), 5)


def test_files_that_are_no_weights(tmp_path):
    for name in ("x.pt", "x.pth", "x.safetensors"):
        (tmp_path / name).write_bytes(b"not weights")
        with pytest.raises(CheckpointError, match=name):
            build_model(settings(weights=str(tmp_path / name)), 5)
    torch.save({"state_dict": trained().state_dict()}, tmp_path / "x.pt")
    with pytest.raises(CheckpointError, match=r"x\.pt is not a checkpoint of a run"):
        build_model(settings(weights=str(tmp_path / "x.pt")), 5)


@pytest.mark.parametrize("content", ["{", "[]", '{"model_args": [1]}', '{"model_args": "x"}'])
def test_a_configuration_beside_the_weights_that_is_none(tmp_path, content):
    path = as_safetensors(tmp_path, trained())
    path.with_name("config.json").write_text(content)
    with pytest.raises(CheckpointError, match="the configuration of a model"):
        build_model(settings(weights=str(path)), 5)


def test_a_configuration_beside_the_weights_decides_nothing_but_the_model(tmp_path):
    """No other file is loaded for its sake, and classes, channels and size stay the run's."""
    model = trained()
    path = as_safetensors(tmp_path, model)
    saved = json.loads(path.with_name("config.json").read_text())
    saved["model_args"] |= {"pretrained": True, "checkpoint_path": "/nowhere", "cache_dir": "/nowhere"}
    saved["model_args"] |= {"num_classes": 3, "in_chans": 1, "img_size": 8}
    path.with_name("config.json").write_text(json.dumps(saved))
    again = build_model(settings(weights=str(path)), 5)
    assert torch.equal(logits(again), logits(model))
    assert again.img_size == (32, 32)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            settings("cbt_tyny_patch4_32"),
            r"model\.name='cbt_tyny_patch4_32': no such model; see `cbsa models` .*mean 'cbt_tiny_patch4_32'",
        ),
        (
            settings(kwargs={"widht": 3}),
            r"model\.kwargs=\{'widht': 3\}: .*unexpected keyword argument 'widht'",
        ),
        (settings(kwargs={"embed_dim": 16, "num_heads": 3}), r"num_heads"),
    ],
)
def test_models_that_cannot_be(config, message):
    with pytest.raises(ValueError, match=message):
        build_model(config, 5)


# --- timm's models ---------------------------------------------------------------------------------------


def test_a_vit_of_timm_by_name():
    """Nothing is downloaded: weights are asked for by model.kwargs.pretrained alone."""
    model = build_model(settings(VIT, VIT_SMALL), 5)
    assert type(model).__module__.startswith("timm.")
    assert logits(model).shape == (3, 5)
    grey = DataConfig(img_size=32, in_chans=1, mean=(0.5,), std=(0.5,))
    assert logits(build_model(settings(VIT, VIT_SMALL, data=grey), 4), channels=1).shape == (3, 4)


@pytest.mark.parametrize(
    ("name", "kwargs", "head"), [(VIT, VIT_SMALL, "head."), ("resnet10t", {}, "fc.")], ids=["vit", "resnet"]
)
def test_weights_of_timms_models(tmp_path, name, kwargs, head):
    model = build_model(settings(name, kwargs), 5)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    config = settings(name, kwargs, weights=str(tmp_path))
    assert torch.equal(logits(build_model(config, 5)), logits(model))
    other = build_model(config, 3)
    assert logits(other).shape == (3, 3)
    for key, tensor in other.state_dict().items():
        assert key.startswith(head) or torch.equal(tensor, model.state_dict()[key]), key


def test_weights_that_do_not_fit_timms_models(tmp_path):
    path = as_bare_safetensors(tmp_path, trained())
    with pytest.raises(CheckpointError, match=r"some weights\.safetensors does not fit this model"):
        build_model(settings(VIT, VIT_SMALL, weights=str(path)), 5)
    (tmp_path / "x.pth").write_bytes(b"")
    with pytest.raises(ValueError, match=r"for timm's VisionTransformer it must be a \.safetensors"):
        build_model(settings(VIT, VIT_SMALL, weights=str(tmp_path / "x.pth")), 5)


# --- the rest --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [NAME, VIT])
def test_recomputation_is_switched_on_by_its_setting(name):
    kwargs = SMALL if name == NAME else VIT_SMALL
    assert build_model(settings(name, kwargs, checkpointing=True), 5).grad_checkpointing is True
    assert build_model(settings(name, kwargs, checkpointing=False), 5).grad_checkpointing is False
    left_to_the_model = None if name == NAME else False  # timm's models never do so by themselves
    assert build_model(settings(name, kwargs), 5).grad_checkpointing is left_to_the_model


def test_one_seed_one_beginning():
    def draw(seed):
        seed_everything(seed)
        numbers = random.random(), np.random.rand(), torch.rand(1).item()  # noqa: NPY002
        return numbers, logits(build_model(settings(), 5))

    (first, model), (again, same), (other, another) = draw(3), draw(3), draw(4)
    assert first == again
    assert torch.equal(model, same)
    assert all(a != b for a, b in zip(first, other, strict=True))
    assert not torch.equal(model, another)
    seed_everything(2**40)  # beyond what NumPy takes


@pytest.mark.parametrize("deterministic", [False, True])
def test_the_choice_of_kernels_ends_with_the_run(deterministic, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    with kernels(deterministic):
        assert torch.are_deterministic_algorithms_enabled() == deterministic
        assert torch.backends.cudnn.benchmark != deterministic
    assert (torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark) == before
