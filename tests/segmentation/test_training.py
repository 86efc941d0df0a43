"""Training segmenters by the loop that trains classifiers: learning, resuming, processes, bad input."""

import json
import os
import signal
import subprocess
import sys
from unittest import mock

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

from cbsa.data import (
    Batch,
    MaskDataConfig,
    SegmentationSource,
    TooManyCorruptImages,
    mask_eval_loader,
    mask_train_loader,
    normalise,
    open_segmentation,
)
from cbsa.experiments.seg_noise import noise_sweep
from cbsa.models import create_model, save_model
from cbsa.segmentation import load_segmenter
from cbsa.segmentation.windows import WindowConfig
from cbsa.train import OptimizerConfig, TrainConfig, override, recipe, train
from cbsa.train.checkpoint import read_run_checkpoint, stored_config
from cbsa.train.distributed import World
from cbsa.train.fields import from_dict, to_dict
from cbsa.train.kinds import config_of
from cbsa.train.optimizer import build_optimizer
from cbsa.train.run_folder import read_config, read_run_config
from cbsa.train.schedule import learning_rate
from cbsa.train.segmentation.assess import assess_segmenter, segment_config_of
from cbsa.train.segmentation.config import SegmentConfig
from cbsa.train.segmentation.evaluation import evaluate_segmenter
from cbsa.train.segmentation.objective import PixelObjective
from cbsa.train.segmentation.task import numbers
from cbsa.train.segmentation.trained import build_segmenter, read_segmenter, settle
from cbsa.train.state import Progress
from tests.segmentation.runs import DECODERS, STEPS_PER_EPOCH, start, tiny_config
from tests.segmentation.scenes import CLASSES, save, scene, write_folder, write_listed
from tests.train.runs import assert_same_bits, finish, last_state, losses, torchrun

ALONE = World(0, 1, torch.device("cpu"))
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
VIT = ("model.encoder=vit_tiny_patch16_224", "epochs=1")  # of the same few arguments; it expects 0.5


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("scenes"))


@pytest.fixture(scope="module")
def trained(root, tmp_path_factory):
    """A run long enough to learn what colours mean."""
    folder = tmp_path_factory.mktemp("runs") / "long"
    return train(tiny_config(root, "epochs=40", "eval_every=20", "checkpoint.every_epochs=40"), folder)


# --- learning --------------------------------------------------------------------------------------------


def test_colours_are_learnt(trained):
    summary = trained.summary
    assert summary["miou"] > 65
    assert summary["pixel_accuracy"] > 85
    assert summary["miou"] == pytest.approx(np.mean(list(summary["iou"].values())))
    assert summary["best_miou"] >= summary["miou"]
    assert list(summary["iou"]) == summary["classes"] == list(CLASSES)
    assert summary["absent_classes"] == []
    assert summary["evaluated_images"] == 5
    assert summary["evaluated_pixels"] == 5 * 22 * 32  # two rows of each are ignored
    last = json.loads((trained.folder / "log.jsonl").read_text().splitlines()[-1])
    assert last["val_miou"] == summary["miou"]
    assert last["val_accuracy"] == summary["pixel_accuracy"]


def test_colours_are_learnt_from_images_on_the_device(root, tmp_path):
    settings = ("epochs=40", "eval_every=40", "checkpoint.every_epochs=40", "data.store=device")
    summary = train(tiny_config(root, *settings), tmp_path / "run").summary
    assert summary["miou"] > 65


@pytest.mark.gpu
@pytest.mark.parametrize("decoder", DECODERS)
def test_colours_are_learnt_on_a_gpu(root, tmp_path, decoder):
    """In bfloat16, compiled, as one CUDA graph, from images that are kept there."""
    settings = (
        "runtime.device=cuda",
        "runtime.precision=bf16",
        "runtime.compile=true",
        "runtime.cuda_graph=on",
    )
    settings += ("epochs=40", "eval_every=40", "checkpoint.every_epochs=40")
    config = tiny_config(root, *settings, decoder=decoder)
    loader = mask_train_loader(
        config.data,
        config.augment,
        open_segmentation(config.data, True),
        batch_size=4,
        device=torch.device("cuda"),
    )
    assert loader.store == "device"
    assert next(loader.epoch(0)).images.is_cuda
    assert train(config, tmp_path / "run").summary["miou"] > 60


def test_compiled_blocks_train_and_evaluate(root, tmp_path):
    """Images of several sizes are evaluated: what was compiled for training is not made anew for each."""
    data = write_folder(tmp_path / "data", train=4, val=3)
    image, mask = scene(7, 40, 20)
    save(data / "images/val/001.png", image)
    save(data / "masks/val/001.png", mask)
    plain = train(tiny_config(data, "epochs=1"), tmp_path / "plain").summary
    compiled = []
    with mock.patch.object(nn.Module, "compile", lambda self: compiled.append(_count_graphs(self))):
        summary = train(tiny_config(data, "epochs=1", "runtime.compile=true"), tmp_path / "run").summary
    assert summary["miou"] == pytest.approx(plain["miou"], abs=1)
    assert len(compiled) == 4  # stem, sequence and block of the encoder, layer of the decoder
    assert sum(map(len, compiled)) == 4


def _count_graphs(module):
    """Compile a module in place by a backend that does nothing but count."""
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    module._compiled_call_impl = torch.compile(module._call_impl, backend=count)
    return graphs


@pytest.mark.parametrize("decoder", DECODERS)
def test_every_decoder_trains(root, tmp_path, decoder):
    result = train(tiny_config(root, "epochs=1", "ema=0.5", decoder=decoder), tmp_path / "run")
    assert result.summary["model"] == f"cbt_tiny_patch4_32 + {decoder}"
    assert 0 < result.summary["pixel_accuracy"] <= 100
    before = build_segmenter(tiny_config(root, decoder=decoder), 3).state_dict()
    after = load_segmenter(tmp_path / "run" / "model").state_dict()
    changed = [name for name in after if not torch.equal(before[name], after[name])]
    assert {"encoder", "decoder"} == {name.partition(".")[0] for name in changed}


def test_the_exported_model_is_the_one_evaluated(trained, root):
    """From the run's folder, its best checkpoint, and ``model/`` alone; with its normalisation."""
    config = segment_config_of(trained.folder)
    for model in (read_segmenter(trained.folder), load_segmenter(trained.folder / "model")):
        found = assess_segmenter(config, model)
        assert found.metrics.miou == trained.summary["miou"]
        assert found.classes == list(CLASSES)
    assert model.normalization == {"mean": list(config.data.mean), "std": list(config.data.std)}
    best = assess_segmenter(config, read_segmenter(trained.folder, "best"))
    assert best.metrics.miou == trained.summary["best_miou"]
    rows = (trained.folder / "confusion.csv").read_text().splitlines()
    assert rows[0] == "true \\ predicted,ground,red,green"
    assert (
        sum(int(cell) for row in rows[1:] for cell in row.split(",")[1:])
        == trained.summary["evaluated_pixels"]
    )


def test_another_run_may_begin_with_the_weights(trained, root, tmp_path):
    config = tiny_config(root, f"model.weights={trained.folder}", "epochs=1", "optimizer.lr=1e-9")
    assert train(config, tmp_path / "run").summary["miou"] == pytest.approx(trained.summary["miou"], abs=1)
    with pytest.raises(ValueError, match=r"has 3 classes, but data.dataset='folder' has 7"):
        build_segmenter(config, 7)
    with pytest.raises(FileNotFoundError, match="holds no segmenter: expected the folder of a run"):
        read_segmenter(tmp_path)


def test_a_trained_encoder_is_taken(root, tmp_path):
    """Weights of a classifier go into the encoder."""
    size = {"embed_dim": 16, "depth": 1, "num_heads": 2}
    classifier = create_model("cbt_tiny_patch4_32", num_classes=5, **size)
    save_model(classifier, tmp_path, architecture="cbt_tiny_patch4_32")
    model = build_segmenter(tiny_config(root, f"model.encoder_weights={tmp_path}"), 3)
    own = classifier.state_dict()
    name = next(n for n in model.encoder.state_dict() if n.startswith("blocks.0") and own[n].dim() == 2)
    assert torch.equal(model.encoder.state_dict()[name], own[name])


# --- normalisation ---------------------------------------------------------------------------------------


def test_images_are_normalised_as_the_encoder_expects(root, tmp_path):
    """Nothing is said of it in the settings: it is looked up, stored, used, and saved with the model."""
    config = tiny_config(root, *VIT)
    assert config.data.mean is None
    result = train(config, tmp_path / "run")
    stored = segment_config_of(result.folder)
    assert stored.data.normalization == ((0.5,) * 3, (0.5,) * 3)
    for model in (load_segmenter(result.folder / "model"), read_segmenter(result.folder, "best")):
        assert model.normalization == {"mean": [0.5] * 3, "std": [0.5] * 3}
    assert assess_segmenter(config, model).metrics.loss == result.summary["loss"]
    assert assess_segmenter(tiny_config(root), model).metrics.loss == result.summary["loss"]
    other = override(stored, ["data.mean=0.1,0.1,0.1"])
    assert assess_segmenter(other, model).metrics.loss != result.summary["loss"]
    assert noise_sweep(config, model, sigmas=[0], seeds=1).scores.item() == result.summary["miou"]
    images = torch.randint(256, (1, 3, 4, 4), dtype=torch.uint8)
    batch = Batch(images, torch.zeros(1, 4, 4, dtype=torch.uint8), torch.arange(1), torch.ones(1) > 0)
    prepared = PixelObjective(stored.data, ALONE).prepare(batch)[0]
    torch.testing.assert_close(prepared, (images / 255 - 0.5) / 0.5)
    with pytest.raises(ValueError, match=r"data.mean and data.std are None, to be taken from the model"):
        PixelObjective(config.data, ALONE).prepare(batch)


def test_where_the_normalisation_comes_from(root, trained, tmp_path):
    """From the name, the encoder's run, or the segmenter's; what is given in the settings comes first."""
    size = {"embed_dim": 16, "depth": 1, "num_heads": 2}
    classifier = create_model("cbt_tiny_patch4_32", num_classes=5, **size)
    classifier.pretrained_cfg = {**classifier.pretrained_cfg, "mean": [0.1] * 3, "std": [0.2] * 3}
    save_model(classifier, tmp_path, architecture="cbt_tiny_patch4_32")
    from_run = f"model.encoder_weights={tmp_path}"
    for settings, mean, std in (
        ((), *IMAGENET.values()),
        ((from_run,), (0.1,) * 3, (0.2,) * 3),
        ((from_run, "data.std=0.3,0.3,0.3"), (0.1,) * 3, (0.3,) * 3),
        (("model.encoder=vit_small_patch16_384", "model.encoder_weights=timm"), (0.5,) * 3, (0.5,) * 3),
        ((*VIT, f"model.weights={trained.folder}"), *IMAGENET.values()),
    ):
        assert settle(tiny_config(root, *settings)).data.normalization == (mean, std)
    model = build_segmenter(tiny_config(root, from_run, "data.std=0.3,0.3,0.3"), 3)
    assert model.normalization == {"mean": [0.1] * 3, "std": [0.3] * 3}


def test_an_encoder_of_grey_images_is_refused(root, tmp_path):
    grey = create_model("cbt_tiny_patch4_32", num_classes=5, embed_dim=16, depth=1, num_heads=2, in_chans=1)
    grey.pretrained_cfg = {**grey.pretrained_cfg, "mean": [0.1], "std": [0.2]}
    save_model(grey, tmp_path, architecture="cbt_tiny_patch4_32")
    with pytest.raises(ValueError, match="in_chans=1, but those of segmentation are read in RGB"):
        settle(tiny_config(root, f"model.encoder_weights={tmp_path}"))


# --- the loss --------------------------------------------------------------------------------------------


def test_the_loss_is_the_mean_over_labelled_pixels():
    logits = torch.randn(2, 3, 4, 5, requires_grad=True)
    targets = torch.randint(3, (2, 4, 5))
    targets[0, :2] = 255
    loss = PixelObjective(MaskDataConfig(**IMAGENET), ALONE).loss(logits, targets)
    chosen = logits.permute(0, 2, 3, 1)[targets != 255]
    torch.testing.assert_close(loss, F.cross_entropy(chosen, targets[targets != 255]))


def test_a_batch_that_is_all_ignored_teaches_nothing():
    """The loss is 0 and so are the gradients: no NaN reaches the weights."""
    objective = PixelObjective(MaskDataConfig(crop=(4, 4), **IMAGENET), ALONE)
    batch = Batch(
        torch.randint(256, (2, 3, 4, 4), dtype=torch.uint8),
        torch.full((2, 4, 4), 255, dtype=torch.uint8),
        torch.arange(2),
        torch.ones(2, dtype=torch.bool),
    )
    images, targets = objective.prepare(batch)
    model = nn.Conv2d(3, 5, 1)
    loss = objective.loss(model(images), targets)
    loss.backward()
    assert loss.item() == 0
    assert all((p.grad == 0).all() for p in model.parameters())


def test_a_run_goes_on_through_ignored_batches(root, tmp_path):
    data = write_folder(tmp_path / "data")
    for path in (data / "masks/train").glob("*.png"):
        save(path, np.full((24, 32), 255, np.uint8))
    result = train(tiny_config(data, "epochs=1"), tmp_path / "run")
    assert set(losses(result.folder).values()) == {0.0}
    assert np.isfinite(result.summary["loss"])


# --- evaluation ------------------------------------------------------------------------------------------


class Colours(nn.Module):
    """Knows the classes by their colours; logits in the size of the images."""

    def forward(self, images):
        colours = torch.tensor([[90, 90, 110], [220, 40, 30], [40, 200, 60]], dtype=torch.float32)
        centres = normalise(colours[:, :, None, None], *IMAGENET.values())
        return -10 * (images[:, None] - centres[None]).square().sum(2)


def evaluate(root, at_a_time=1, windows=None, **settings):
    data = MaskDataConfig("folder", str(root), workers=0, **IMAGENET, **settings)
    source = open_segmentation(data, train=False)
    return evaluate_segmenter(
        Colours(),
        mask_eval_loader(data, source, device=ALONE.device),
        data=data,
        windows=windows or WindowConfig((16, 16), (8, 8)),
        num_classes=3,
        precision="fp32",
        world=ALONE,
        at_a_time=at_a_time,
    )


def test_a_model_that_knows_is_perfect(root):
    for at_a_time in (1, 3, 100):
        metrics = evaluate(root, at_a_time)
        assert metrics.miou == 100
        assert metrics.count == 5
        assert metrics.loss < 1e-3
    flipped = evaluate(root, windows=WindowConfig((24, 32), (24, 32), scales=(1.0, 1.5), flip=True))
    assert flipped.miou > 90


def test_scores_are_taken_at_the_size_of_the_mask(root):
    metrics = evaluate(root, short_side=48)
    assert metrics.scores.pixels == 5 * 22 * 32
    assert metrics.miou > 80


def test_images_of_several_sizes(root, tmp_path):
    data = write_folder(tmp_path, val=3)
    image, mask = scene(7, 40, 20)
    save(data / "images/val/001.png", image)
    save(data / "masks/val/001.png", mask)
    metrics = evaluate(data, at_a_time=3)
    assert metrics.count == 3
    assert metrics.scores.pixels == 2 * 22 * 32 + 38 * 20


def test_an_absent_class_is_reported_as_such(root, tmp_path):
    data = write_folder(tmp_path / "data")
    for path in (data / "masks/val").glob("*.png"):
        save(path, np.where(np.arange(24)[:, None] < 12, 0, 1).repeat(32, 1).astype(np.uint8))
    result = train(tiny_config(data, "epochs=1"), tmp_path / "run")
    assert result.summary["absent_classes"] == ["green"]
    assert result.summary["iou"]["green"] is None
    present = [result.summary["iou"][name] for name in ("ground", "red")]
    assert result.summary["miou"] == pytest.approx(np.mean(present))


def test_a_split_without_labels_is_refused(tmp_path):
    data = write_folder(tmp_path)
    for path in (data / "masks/val").glob("*.png"):
        save(path, np.full((24, 32), 255, np.uint8))
    with pytest.raises(ValueError, match="no labelled pixel to score"):
        evaluate(data)


def test_too_many_wrong_masks_stop_the_run(tmp_path):
    data = write_folder(tmp_path / "data")
    for path in (data / "masks/train").glob("*.png"):
        save(path, np.full((24, 32), 9, np.uint8))
    with pytest.raises(TooManyCorruptImages, match="labels 9 outside of the 3 classes"):
        train(tiny_config(data, "data.max_corrupt=3"), tmp_path / "run")
    assert "outside of the 3 classes" in (tmp_path / "run/corrupt.jsonl").read_text()


@pytest.mark.parametrize("dataset", ["voc", "pascal_context", "pets"])
def test_a_mask_that_a_list_names_and_no_file_holds(dataset, tmp_path):
    """It is named, the image left out; more of them than allowed stop the run."""
    data, lacking = write_listed(tmp_path / "data", dataset)
    settings = (f"data.dataset={dataset}", "batch_size=2", "epochs=1")
    summary = train(tiny_config(data, *settings), tmp_path / "run").summary
    assert summary["unreadable_images"] == 2
    assert summary["evaluated_images"] == 2
    assert summary["evaluated_pixels"] == 2 * 24 * 32
    lines = (tmp_path / "run/corrupt.jsonl").read_text().splitlines()
    named = {json.loads(line)["image"]: json.loads(line)["error"] for line in lines}
    assert named.keys() == {str(image) for image in lacking}
    for image, mask in lacking.items():
        assert "FileNotFoundError" in named[str(image)]
        assert str(mask) in named[str(image)]
    with pytest.raises(TooManyCorruptImages, match=r"\.png"):
        train(tiny_config(data, *settings, "data.max_corrupt=0"), tmp_path / "stopped")


def test_noise_on_the_decoder(trained, root):
    """The sweep of the paper's figure, by mIoU: without noise as it was, much noise breaks it."""
    config, model = segment_config_of(trained.folder), read_segmenter(trained.folder)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    result = noise_sweep(config, model, sigmas=[0, 3.0], seeds=2)
    assert result.scores[0].tolist() == [trained.summary["miou"]] * 2
    assert result.mean[1] < result.mean[0]
    assert_same_bits(model.state_dict(), before)


def test_noise_reads_no_more_images_than_it_looks_at(root, monkeypatch):
    read, wholly = [], SegmentationSource.read
    monkeypatch.setattr(
        SegmentationSource, "read", lambda self, i: read.append(self.identify(i)) or wholly(self, i)
    )
    noise_sweep(tiny_config(root), build_segmenter(tiny_config(root), 3), sigmas=[0, 1.0], seeds=2, images=2)
    assert [name[-7:] for name in read] == ["000.png", "002.png"]


@pytest.mark.parametrize("decoder", DECODERS)
def test_noise_reaches_every_decoder(root, decoder):
    model = build_segmenter(tiny_config(root, decoder=decoder), 3)
    result = noise_sweep(tiny_config(root), model, sigmas=[0, 1.0], seeds=1, images=2)
    assert result.scores[0] != result.scores[1]


# --- interruption and processes --------------------------------------------------------------------------


@pytest.mark.usefixtures("one_thread")
def test_killed_without_warning_and_started_again(root, tmp_path):
    """SIGKILL in mid-epoch; the same command ends with the same bits as a run that was left alone."""
    settings = ("checkpoint.every_steps=2", "data.workers=1", "ema=0.9", "optimizer.name=sgd")
    reference, folder = tmp_path / "whole", tmp_path / "run"
    code, output = finish(start(root, folder, *settings, KILL_AT=str(STEPS_PER_EPOCH + 2)))
    assert code == -signal.SIGKILL, output
    assert last_state(folder)["progress"]["step"] == 4
    assert not (folder / "summary.json").exists()
    for path in (folder, reference):
        train(tiny_config(root, *settings), path)
    assert losses(folder) == losses(reference)
    assert_same_bits(last_state(folder), last_state(reference))
    assert (folder / "confusion.csv").read_text() == (reference / "confusion.csv").read_text()
    assert_same_bits(*(load_file(path / "model/model.safetensors") for path in (folder, reference)))


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_learn_what_one_does(root, tmp_path, parallel):
    """Though they have different numbers of labelled pixels; and every image is counted once."""
    settings = ("optimizer.name=sgd", "optimizer.lr=1e-2")
    spread = (*settings, f"runtime.parallel={parallel}")
    process = start(root, tmp_path / "two", *spread, launcher=torchrun(2))
    one = train(tiny_config(root, *settings), tmp_path / "one").summary
    code, output = finish(process)
    assert code == 0, output
    two = json.loads((tmp_path / "two" / "summary.json").read_text())
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-4)
    assert two["processes"] == 2
    assert two["evaluated_pixels"] == one["evaluated_pixels"]
    assert two["loss"] == pytest.approx(one["loss"], rel=1e-3)


@pytest.mark.usefixtures("one_thread")
def test_two_processes_count_what_one_counts(root, trained, tmp_path):
    """``cbsa segment eval`` by torchrun: images of several sizes, an odd number; counts are the same."""
    data = write_folder(tmp_path / "data", train=0)
    for name, (height, width) in {"001": (40, 20), "003": (17, 50), "004": (16, 16)}.items():
        image, mask = scene(7, height, width)
        save(data / f"images/val/{name}.png", image)
        save(data / f"masks/val/{name}.png", mask)
    settings = (f"data.root={data}", "eval_batch_size=1")
    command = [sys.executable, "-m", "torch.distributed.run", *torchrun(2), "-m", "cbsa", "segment", "eval"]
    process = subprocess.Popen(
        [*command, str(trained.folder), *settings, "--out", str(tmp_path / "two.json")],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    config = override(segment_config_of(trained.folder), settings)
    one = assess_segmenter(config, read_segmenter(trained.folder))
    code, output = finish(process)
    assert code == 0, output
    two = json.loads((tmp_path / "two.json").read_text())
    expected = numbers(one.metrics, one.classes)
    assert two["loss"] == pytest.approx(expected.pop("loss"), rel=1e-9)  # a sum in another order
    assert {name: two[name] for name in expected} == expected
    assert two["evaluated_images"] == 5
    assert two["evaluated_pixels"] == 2 * 22 * 32 + 38 * 20 + 15 * 50 + 14 * 16


# --- settings --------------------------------------------------------------------------------------------


def test_settings_come_back_as_their_kind(root, trained):
    config = tiny_config(root)
    assert config_of(json.loads(json.dumps(to_dict(config)))) == config
    assert isinstance(read_run_config(trained.folder), SegmentConfig)
    digits = recipe("digits_cbt")
    assert config_of(to_dict(digits)) == digits
    with pytest.raises(ValueError, match="is of another task than this command's: use cbsa segment train"):
        read_config(trained.folder)
    with pytest.raises(ValueError, match="use cbsa segment"):
        stored_config(read_run_checkpoint(trained.folder / "checkpoints/best.pt"))
    with pytest.raises(ValueError, match="task='detection': expected one of 'segmentation'"):
        from_dict(SegmentConfig, {"task": "detection"})
    with pytest.raises(ValueError, match=r"model.decoder='cbtt': .* did you mean 'cbt'"):
        override(config, ["model.decoder=cbtt"])


def test_other_settings_are_refused_when_a_run_goes_on(root, trained, tmp_path):
    other = override(segment_config_of(trained.folder), ["epochs=3", "data.crop=8,8"])
    with pytest.raises(ValueError, match=r"holds a run with other settings \(data.crop, epochs differ\)"):
        train(other, trained.folder)
    with pytest.raises(ValueError, match="is of another task"):
        train(TrainConfig(), trained.folder)


def test_progress_of_older_runs_is_read():
    stored = {"step": 3, "epoch_loss": 0.5, "best_top1": 12.0, "best_epoch": 1, "seconds": 2.0}
    assert Progress.of(stored) == Progress(3, 0.5, 12.0, 1, 2.0)


def test_sgd_is_plain_momentum():
    """v = m·v + g + w·p, p = p − lr·v: not Nesterov's."""
    model = nn.Linear(3, 2, bias=False).double()
    config = OptimizerConfig("sgd", 0.1, 0.01, momentum=0.8)
    optimizer = build_optimizer(model, config)
    expected, velocity = model.weight.detach().clone(), torch.zeros(2, 3, dtype=torch.float64)
    for _ in range(3):
        gradient = torch.randn(2, 3, dtype=torch.float64)
        model.weight.grad = gradient.clone()
        optimizer.step()
        velocity = 0.8 * velocity + gradient + 0.01 * expected
        expected = expected - 0.1 * velocity
        torch.testing.assert_close(model.weight.detach(), expected)


def test_poly():
    config = SegmentConfig()
    rates = [learning_rate(config, step, 10) for step in range(640)]
    assert rates[0] == 1e-3
    assert rates[320] == pytest.approx(1e-3 * 0.5**0.9)
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] == pytest.approx(1e-3 * (1 / 640) ** 0.9)
    warm = override(config, ["schedule.warmup_epochs=2", "schedule.min_lr=1e-5"])
    assert learning_rate(warm, 9, 10) == pytest.approx(0.5e-3)
    assert learning_rate(warm, 20, 10) == pytest.approx(1e-3)
    assert learning_rate(warm, 640, 10) == pytest.approx(1e-5)
