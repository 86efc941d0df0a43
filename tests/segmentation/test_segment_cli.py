"""``cbsa segment train``, ``eval`` and ``predict`` as a user types them, and the recipes behind them."""

import csv
import inspect
import json
import re
import shlex
import shutil
import statistics
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image

from cbsa.data.label_sets import voc_colours
from cbsa.segmentation import create_segmenter, save_segmenter
from cbsa.segmentation.windows import segment
from cbsa.train.segmentation.assess import segment_config_of
from cbsa.train.segmentation.config import SegmentConfig
from cbsa.train.segmentation.pictures import colours_of, index_image, names_of
from cbsa.train.segmentation.prediction import find_images, predict
from cbsa.train.segmentation.recipes import AUTHORS_MIOU, SEGMENT_RECIPES, segment_recipe
from cbsa.train.segmentation.trained import read_segmenter
from tests import commands
from tests.segmentation.scenes import CLASSES, save, scene, write_folder
from tests.segmentation.test_sources import write_label_files

SMALL = [
    "model.encoder=cbt_tiny_patch4_32",
    'model.encoder_kwargs={"embed_dim": 16, "depth": 1, "num_heads": 2}',
    'model.decoder_kwargs={"depth": 1, "num_heads": 2, "head_dim": 8, "representatives": [2, 2]}',
    "data.dataset=folder",
    "data.crop=16,16",
    "data.workers=0",
    "windows.size=16,16",
    "windows.stride=12,12",
    "runtime.device=cpu",
    "runtime.precision=fp32",
    "runtime.compile=false",
    "batch_size=4",
    "epochs=1",
    "schedule.warmup_epochs=0",
]
OTHER = ["data.mean=0.4,0.5,0.6", "data.std=0.3,0.2,0.1"]  # than the encoder's
succeed, fail = partial(commands.succeed, "segment"), partial(commands.fail, "segment")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("scenes"))


@pytest.fixture(scope="module")
def run(root, tmp_path_factory):
    """A run, in a folder whose name looks like rich's markup, and what was said."""
    folder = tmp_path_factory.mktemp("runs") / "scenes [red]first[/red]"
    return folder, succeed("train", "camvid_cbt_tiny", *SMALL, *OTHER, f"data.root={root}", "-o", folder)


# --- train -----------------------------------------------------------------------------------------------


def test_list():
    output = succeed("train", "--list")
    for name, function in SEGMENT_RECIPES.items():
        line = next(line for line in output.splitlines() if f" {name} " in line)
        assert function.__doc__.splitlines()[0] in line


def test_a_run_and_what_it_says(run):
    folder, output = run
    for word in ("mIoU", "boundary IoU", "IoU by class", "ground", "green", "best mIoU", "scenes [red]first"):
        assert word in output
    for name in ("curves.png", "confusion.png", "confusion.csv", "summary.json", "model/config.json"):
        assert (folder / name).is_file(), name
    again = succeed("train", "camvid_cbt_tiny", *SMALL, *OTHER, *_root_of(folder), "-o", folder)
    assert "holds a finished run: nothing to do" in again


def test_pascal_context(tmp_path):
    voc = write_label_files(tmp_path)
    assert "masks of 2 for train and 1 for val" in succeed("pascal-context", tmp_path / "trainval", voc)
    assert "has no JPEGImages/: give the folder of VOC2010" in fail("pascal-context", tmp_path, tmp_path)


def _root_of(folder):
    return [f"data.root={segment_config_of(folder).data.root}"]


def test_wrong_settings_of_a_run(root, tmp_path):
    out = ("-o", tmp_path / "run")
    assert "did you mean 'camvid_cbt_tiny'" in fail("train", "camvid_cbt_tinny")
    assert "data.root is empty: give the folder of data.dataset='camvid'" in fail(
        "train", "camvid_cbt_tiny", "runtime.device=cpu", *out
    )
    common = ("train", "camvid_cbt_tiny", *SMALL)
    assert "there is no such folder" in fail(*common, "data.root=/nowhere", *out)
    assert "unknown setting data.img_size" in fail(*common, "data.img_size=3", *out)
    assert "processes can share images of a classifier, not of a" in fail(*common, "runtime.context=2", *out)
    assert "must be at most windows.size" in fail(*common, "windows.stride=99,99", *out)
    assert "larger than the training set" in fail(*common, f"data.root={root}", "batch_size=64", *out)
    assert "heds" in fail(*common, f"data.root={root}", "model.decoder_kwargs.heds=3", *out)
    assert "no such model" in fail(*common, f"data.root={root}", "model.encoder=resnet99", *out)
    assert "in_chans=1, but images are read in RGB" in fail(
        *common, f"data.root={root}", "model.encoder_kwargs.in_chans=1", *out
    )


# --- eval ------------------------------------------------------------------------------------------------


def test_eval(run, tmp_path):
    folder, _ = run
    numbers = tmp_path / "numbers.json"
    output = succeed("eval", folder, "-o", numbers)
    found, summary = json.loads(numbers.read_text()), json.loads((folder / "summary.json").read_text())
    for key in ("miou", "pixel_accuracy", "boundary_iou", "loss", "iou", "evaluated_pixels"):
        assert found[key] == summary[key]
    assert f"{summary['miou']:.2f}" in output
    assert found["split"] == "val"
    succeed(
        "eval", folder, "windows.scales=0.75,1.25", "windows.flip=true", "--checkpoint", "best", "-o", numbers
    )
    other = json.loads(numbers.read_text())
    assert other["windows"] == {"scales": [0.75, 1.25], "flip": True}
    assert other["loss"] != found["loss"]


def test_eval_of_weights(run, tmp_path):
    """By a recipe, and alone: images are normalised as the segmenter was trained, whatever the recipe has."""
    folder, _ = run
    summary, given = (
        json.loads((folder / "summary.json").read_text()),
        ["data.dataset=folder", *_root_of(folder)],
    )
    by_recipe = ("camvid_cbt_tiny", *SMALL, *_root_of(folder), f"model.weights={folder / 'model'}")
    for arguments in (by_recipe, (folder / "model", *given, "runtime.device=cpu", "runtime.precision=fp32")):
        output = succeed("eval", *arguments, "-o", tmp_path / "numbers.json")
        found = json.loads((tmp_path / "numbers.json").read_text())
        assert {key: found[key] for key in ("loss", "miou", "iou")} == {
            key: summary[key] for key in ("loss", "miou", "iou")
        }
        assert "Warning" not in output
    others = write_folder(tmp_path / "others", train=0)
    (others / "classes.txt").write_text("ground\nred\nblue\n")
    output = succeed("eval", folder / "model", f"data.root={others}")
    assert (
        "was trained for the classes ground, red, green; those of data.dataset='folder' are ground" in output
    )


def test_a_saved_segmenter_and_wrong_settings(run, tmp_path):
    model = run[0] / "model"
    assert "data.root is empty" in fail("eval", model)
    assert "holds one segmenter; give the folder of a run" in fail("eval", model, "--checkpoint", "best")
    assert "has 3 classes, but data.dataset='voc' has 21" in fail("eval", model, *_voc(tmp_path))
    broken = json.loads((model / "config.json").read_text()) | {"classes": ["one"]}
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/config.json").write_text(json.dumps(broken))
    assert "classes must be a list with an entry for each of 3" in fail("eval", tmp_path / "broken")


def test_wrong_targets(run, tmp_path):
    folder, _ = run
    assert "is neither the folder of a run or of a saved segmenter nor a recipe" in fail("eval", "nothing")
    assert "has no config.json: it is not the folder of a run" in fail("eval", tmp_path)
    assert "give model.weights=FILE_OR_FOLDER" in fail("eval", "camvid_cbt_tiny")
    assert "--checkpoint='first'" in fail("eval", folder, "--checkpoint", "first")
    assert f"cannot write to {tmp_path}: it is a folder" in fail("eval", folder, "-o", tmp_path)
    assert "has 3 classes, but data.dataset='voc' has 21" in fail("eval", folder, *_voc(tmp_path))
    assert "use cbsa segment train, eval, predict" in commands.fail("eval", folder)


def _voc(root):
    save(root / "voc/JPEGImages/a.jpg", scene(0)[0])
    save(root / "voc/SegmentationClass/a.png", np.zeros((24, 32), np.uint8))
    (root / "voc/ImageSets/Segmentation").mkdir(parents=True)
    (root / "voc/ImageSets/Segmentation/val.txt").write_text("a\n")
    return "data.dataset=voc", f"data.root={root / 'voc'}"


# --- predict ---------------------------------------------------------------------------------------------


def test_predict(run, root, tmp_path):
    """A folder within a folder, by a link, a grey image and a file that is none."""
    folder, _ = run
    images = tmp_path / "in"
    save(images / "a/one.jpg", scene(3, 30, 21)[0])
    save(images / "two.png", scene(4)[0][:, :, 0])
    (images / "three.png").write_bytes(b"no image")
    (tmp_path / "elsewhere").mkdir()
    (images / "a/one.jpg").rename(tmp_path / "elsewhere/one.jpg")
    (images / "a").rmdir()
    (images / "a").symlink_to(tmp_path / "elsewhere")
    out = tmp_path / "out"
    output = succeed("predict", folder, images, "-o", out)
    assert "cannot read" in output
    assert "2 images" in output
    assert all(name in output for name in CLASSES)
    written = sorted(str(p.relative_to(out)) for p in out.rglob("*.png"))
    assert written == ["labels/a/one.png", "labels/two.png", "overlays/a/one.png", "overlays/two.png"]
    labels, picture = Image.open(out / "labels/a/one.png"), Image.open(out / "overlays/a/one.png")
    assert (labels.mode, labels.size, picture.mode, picture.size) == ("P", (21, 30), "RGB", (21, 30))
    assert labels.getpalette()[:9] == [channel for colour in voc_colours(3) for channel in colour]
    config, model = segment_config_of(folder), read_segmenter(folder).eval()
    pixels = torch.from_numpy(np.array(Image.open(images / "a/one.jpg"))).permute(2, 0, 1)[None] / 255
    mean, std = (torch.tensor(v)[:, None, None] for v in (config.data.mean, config.data.std))
    expected = segment(model, (pixels - mean) / std, config.windows).argmax(1)[0]
    assert (torch.from_numpy(np.array(labels)) == expected).float().mean() > 0.999  # but for rounding
    colours = np.array(voc_colours(3))[np.array(labels)]
    blend = (np.asarray(Image.open(images / "a/one.jpg")).astype(int) + colours) / 2
    assert np.abs(blend - np.asarray(picture)).max() <= 1


def test_predict_by_a_saved_segmenter(run, root, tmp_path):
    """``model/`` of a run taken elsewhere has all it needs: classes, colours, windows, normalisation."""
    folder = tmp_path / "taken"
    shutil.copytree(run[0] / "model", folder)
    config = json.loads((folder / "config.json").read_text())
    assert config["classes"] == list(CLASSES)
    assert config["windows"] == {"size": [16, 16], "stride": [12, 12]}
    config["colours"] = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    (folder / "config.json").write_text(json.dumps(config))
    exact = ("-s", "runtime.device=cpu", "-s", "runtime.precision=fp32")
    output = succeed("predict", folder, root / "images/val", "-o", tmp_path / "a", *exact)
    assert all(name in output for name in CLASSES)
    succeed("predict", run[0], root / "images/val", "-o", tmp_path / "b")
    for path in (tmp_path / "a/labels").glob("*.png"):
        labels = Image.open(path)
        assert labels.getpalette()[:9] == [1, 2, 3, 4, 5, 6, 7, 8, 9]
        assert np.array_equal(np.array(labels), np.array(Image.open(tmp_path / "b/labels" / path.name)))


def test_photographs_are_turned_upright(run, tmp_path):
    folder, _ = run
    pixels, exif = scene(3, 30, 21)[0], Image.Exif()
    exif[0x112] = 6  # to be turned by 90° clockwise
    (tmp_path / "in").mkdir()
    Image.fromarray(pixels).save(tmp_path / "in/lying.png", exif=exif)
    save(tmp_path / "in/upright.png", np.rot90(pixels, -1))
    succeed("predict", folder, tmp_path / "in", "-o", tmp_path / "out")
    for kind in ("labels", "overlays"):
        lying, upright = (
            np.array(Image.open(tmp_path / f"out/{kind}/{n}.png")) for n in ("lying", "upright")
        )
        assert lying.shape[:2] == (21, 30)
        assert np.array_equal(lying, upright)


def test_predict_by_a_segmenter_that_was_never_trained(tmp_path):
    """One that ``save_segmenter`` wrote in Python says nothing of its classes."""
    model = create_segmenter("cbt_tiny_patch4_32", "cbt", 3, encoder_kwargs={"depth": 1})
    save_segmenter(model, tmp_path / "saved")
    save(tmp_path / "in/a.png", scene(0, 40, 50)[0])
    output = succeed("predict", tmp_path / "saved", tmp_path / "in", "-o", tmp_path / "out")
    assert "class 2" in output
    assert Image.open(tmp_path / "out/labels/a.png").size == (50, 40)


def test_more_classes_than_a_palette_has(tmp_path):
    model = create_segmenter("cbt_tiny_patch4_32", "cbt", 257, encoder_kwargs={"depth": 1})
    save_segmenter(model, tmp_path / "model")
    save(tmp_path / "x.png", scene(0)[0])
    message = "the segmenter has 257 classes, but a palette image holds 256"
    assert message in fail("predict", tmp_path / "model", tmp_path / "x.png", "-o", tmp_path / "out")


def test_predict_wrong_input(run, tmp_path):
    folder, _ = run
    assert "there is no such file or folder" in fail("predict", folder, tmp_path / "nowhere")
    assert "holds no image" in fail("predict", folder, tmp_path)
    (tmp_path / "x.png").write_bytes(b"no image")
    assert "opacity must be 0 to 1, got 2" in fail("predict", folder, tmp_path, "--opacity", 2)
    code, output = commands.cbsa("segment", "predict", folder, tmp_path, "-o", tmp_path / "out")
    assert code == 1
    assert "None of the 1 images could be read" in output
    assert "cannot identify the image: expected one of JPEG, PNG" in output
    save(tmp_path / "x.jpg", scene(0)[0])
    assert "would both be written to x.png: rename one" in fail("predict", folder, tmp_path)


def test_progress_counts_every_image(run, tmp_path):
    folder, _ = run
    for i in range(3):
        save(tmp_path / f"{i}.png", scene(i)[0])
    seen = []
    result = predict(
        read_segmenter(folder),
        segment_config_of(folder),
        [tmp_path],
        tmp_path / "out",
        torch.device("cpu"),
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert result.pixels.sum() == 3 * 24 * 32
    assert len(find_images([tmp_path / "0.png", tmp_path / "1.png"])) == 2


def test_names_of_a_set_in_the_home_folder(tmp_path, monkeypatch):
    write_folder(tmp_path / "set", train=1, val=0)
    monkeypatch.setenv("HOME", str(tmp_path))
    data = replace(segment_recipe("camvid_cbt_tiny").data, dataset="folder", root="~/set")
    assert names_of(data, 3) == list(CLASSES)


def test_palettes_and_names():
    camvid = segment_recipe("camvid_cbt_tiny").data
    assert names_of(camvid, 11)[3] == "road"
    assert names_of(camvid, 4) == ["class 0", "class 1", "class 2", "class 3"]
    assert colours_of(camvid, 11)[0] == (128, 128, 128)
    labels = np.arange(6, dtype=np.uint8).reshape(2, 3)
    image = index_image(labels, voc_colours(6))
    assert np.array_equal(np.array(image), labels)
    assert np.array_equal(np.asarray(image.convert("RGB")).reshape(-1, 3), np.array(voc_colours(6)))


# --- noise -----------------------------------------------------------------------------------------------


reproduce = partial(commands.answer, "reproduce", "fig-seg-noise")


def test_noise(run, tmp_path):
    folder, _ = run
    options = ("--sigmas", "0,2", "--seeds", 2, "--images", 3, "-o", tmp_path)
    code, output = reproduce("-m", f"ours={folder}", "-m", f"again={folder}", *options)
    assert code == 0, output
    found = json.loads((tmp_path / "fig-seg-noise.json").read_text())
    assert found["by_sigma"]["ours"] == found["by_sigma"]["again"]
    without, noisy = found["by_sigma"]["ours"]
    assert without["std"] == 0
    assert noisy["mean"] != without["mean"]
    spread = statistics.stdev(float(row["miou"]) for row in _rows(tmp_path) if row["sigma"] != "0.0")
    assert f"{noisy['mean']:.1f} ± {spread:.1f}" in output
    rows = (tmp_path / "fig-seg-noise.csv").read_text().splitlines()
    assert len(rows) == 1 + 2 * 2 * 2
    assert (tmp_path / "fig-seg-noise.png").is_file()


def _rows(folder):
    with (folder / "fig-seg-noise.csv").open() as file:
        return [row for row in csv.DictReader(file) if row["model"] == "ours"]


def test_noise_wrong_input(run, tmp_path):
    folder, _ = run
    out = ("-o", tmp_path)
    for arguments, message in (
        (("-m", folder, "-m", folder), "two models are called"),
        (("-m", tmp_path), "has no config.json"),
        (("-m", folder, "--sigmas", "0,x"), "--sigmas"),
        (("-m", folder, "--parts", "everything"), "parts='everything'"),
        (("-m", folder, "-s", "data.val_split=dev"), "images/dev is missing"),
    ):
        code, output = reproduce(*arguments, *out)
        assert code == 2
        assert message in output


# --- recipes ---------------------------------------------------------------------------------------------


def test_the_required_recipes_are_there():
    required = {
        f"{dataset}_{decoder}_{size}"
        for dataset in ("camvid", "pets", "ade20k", "cityscapes", "pascal_context", "voc")
        for decoder in ("cbt", "depict", "segmenter")
        for size in ("tiny", "small")
    }
    assert required <= set(SEGMENT_RECIPES)
    assert {f"ade20k_cbt_{size}" for size in AUTHORS_MIOU} <= set(SEGMENT_RECIPES)


@pytest.mark.parametrize("name", SEGMENT_RECIPES)
def test_a_recipe_is_a_valid_run(name):
    config = segment_recipe(name)
    assert isinstance(config, SegmentConfig)
    assert config.recipe == name
    assert config.data.root is None
    dataset, decoder, _ = name.rsplit("_", 2)
    assert config.data.dataset == dataset
    assert config.model.decoder == {"segmenter": "mask_transformer"}.get(decoder, decoder)
    description = inspect.getdoc(SEGMENT_RECIPES[name])
    (command,) = re.findall(r"Command: ``(.+)``", description)
    words = shlex.split(command)
    assert words[:4] == ["cbsa", "segment", "train", name]
    output = succeed(*words[2:], "--show")
    assert json.loads(output[output.index("\n{") :])["data"]["root"] == words[4].partition("=")[2]


@pytest.mark.parametrize(
    "name",
    ["ade20k_cbt_large", "ade20k_segmenter_tiny", "camvid_depict_small", "pets_cbt_tiny", "voc_cbt_small"],
)
def test_the_model_of_a_recipe_takes_its_images(name):
    config = segment_recipe(name)
    with torch.device("meta"):
        model = create_segmenter(
            config.model.encoder,
            config.model.decoder,
            7,
            img_size=config.data.crop,
            encoder_kwargs=config.model.encoder_kwargs,
            decoder_kwargs=config.model.decoder_kwargs,
        )
        assert model(torch.empty(2, 3, *config.data.crop)).shape == (2, 7, *config.data.crop)


def test_ade20k_is_as_the_reference():
    config = segment_recipe("ade20k_cbt_small")
    assert (config.optimizer.name, config.optimizer.lr, config.optimizer.momentum) == ("sgd", 1e-3, 0.9)
    assert (config.schedule.name, config.schedule.power) == ("poly", 0.9)
    assert (config.epochs, config.batch_size, config.data.crop) == (64, 8, (512, 512))


@pytest.mark.parametrize(
    (
        "dataset",
        "expected",
    ),  # learning rate, epochs, batch, short side, crop, stride of Segmenter's config.yml
    [
        ("cityscapes", (1e-2, 216, 8, 1024, 768, 512)),
        ("pascal_context", (1e-3, 256, 16, 520, 480, 320)),
    ],
)
def test_what_segmenter_was_trained_on(dataset, expected):
    config = segment_recipe(f"{dataset}_segmenter_tiny")
    found = (config.optimizer.lr, config.epochs, config.batch_size, config.data.short_side)
    assert (*found, config.data.crop[0], config.windows.stride[0]) == expected
    assert (config.optimizer.name, config.optimizer.weight_decay, config.schedule.name) == ("sgd", 0, "poly")
