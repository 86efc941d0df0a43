"""The analyses by command: real runs on small models, their files against the probes called by hand."""

import csv
import json
import re

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import jaccard_score
from typer.testing import CliRunner

from cbsa import paper
from cbsa.analysis import (
    attention_maps,
    coding_rates,
    extraction_rank,
    perturb,
    reduced_coding_rates,
    representatives,
    zero_shot_segmentation,
)
from cbsa.analysis.segmentation import canonical
from cbsa.cli import app
from cbsa.data import DataConfig, open_voc, segmentation_loader
from cbsa.experiments import attn_map, digits, zero_shot
from cbsa.experiments.images import ImageChoice, LabelledImages
from cbsa.experiments.subjects import open_subjects
from cbsa.models import create_model, save_model
from cbsa.objective import coding_rate
from cbsa.train import override, train
from cbsa.train.trained import open_trained
from tests.data.real import real_data
from tests.data.test_masks import write_voc
from tests.explain.test_images import BAD

SMALL = [
    *("model.kwargs.embed_dim=16", "model.kwargs.depth=2", "model.kwargs.num_heads=2", "data.img_size=16"),
    *("augment.padding=2", "epochs=1", "batch_size=240", "schedule.warmup_epochs=0"),
]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A working folder in which the default models of the digits lie, small ones."""
    folder = tmp_path_factory.mktemp("home")
    for name in ("cbt", "learned", "vit"):
        train(override(digits.settings(name), SMALL), folder / digits.folder(name))
    return folder


@pytest.fixture
def reproduce(home, monkeypatch):
    """Run a command of ``cbsa reproduce`` there; its output on one line."""
    monkeypatch.chdir(home)

    def run(*arguments, code=0):
        result = CliRunner().invoke(app, ["reproduce", *map(str, arguments)], env={"COLUMNS": "200"})
        assert result.exit_code == code, result.output
        return " ".join(result.output.replace("│", " ").split())

    return run


@pytest.fixture(scope="module")
def model(home):
    return open_trained(str(home / "outputs/demo/run")).model


def images(home, count):
    data = open_trained(str(home / "outputs/demo/run")).data
    return LabelledImages(ImageChoice("digits", count=count), data)


def batches(home, count):
    return [pixels for pixels, _ in images(home, count)]


def files(folder, name):
    """The rows and the JSON of an analysis; its pictures are looked at on the way."""
    picture = Image.open(folder / f"{name}.png").convert("RGB")
    assert min(picture.size) > 200
    assert len(picture.getcolors(1 << 24)) > 5, "an empty picture"
    assert "<svg" in (folder / f"{name}.svg").read_text()[:1000]
    numbers = json.loads((folder / f"{name}.json").read_text())
    assert numbers["environment"]["torch"] == torch.__version__
    with open(folder / f"{name}.csv", newline="") as file:
        return list(csv.DictReader(file)), numbers


def column(rows, name, **where):
    return [float(row[name]) for row in rows if all(row[k] == v for k, v in where.items())]


def test_fig_coding_rate(reproduce, home, model):
    said = reproduce("fig-coding-rate", "--images", 40, "--batch", 16, "--untrained")
    rows, numbers = files(home / "outputs/fig-coding-rate", "fig-coding-rate")
    expected = coding_rates(model, batches(home, 40))
    ours = column(rows, "attention", model="CBT (digits)")
    assert ours == pytest.approx(expected.attention.flatten().tolist(), rel=1e-5)
    term = numbers["by_layer"]["CBT (digits)"]["compression"]
    assert term == pytest.approx(expected.input.sum(1).tolist(), rel=1e-5)
    assert numbers["by_layer"]["CBT (digits), untrained"]["compression"] != pytest.approx(term, rel=1e-3)
    assert [m["weights"] is None for m in numbers["models"]] == [False, True]
    assert numbers["images"]["count"] == 40
    assert f"{term[0]:.1f}" in said
    assert "Look at outputs/fig-coding-rate/fig-coding-rate.png" in said
    assert "fig-coding-rate-cbt-digits-untrained.png" in said


def test_fig_reduced_cr(reproduce, home, model):
    said = reproduce("fig-reduced-cr", "--images", 30, "--counterpart", "step", "--kappa", "own")
    rows, numbers = files(home / "outputs/fig-reduced-cr", "fig-reduced-cr")
    expected = reduced_coding_rates(model, batches(home, 30), kappa=None, counterpart="step")
    assert column(rows, "tokens_reduction") == pytest.approx(expected.tokens.flatten().tolist(), abs=1e-4)
    r = np.corrcoef(column(rows, "tokens_reduction"), column(rows, "representatives_reduction"))[0, 1]
    assert numbers["correlations"]["CBT (digits)"]["correlation"] == pytest.approx(r, abs=1e-4)
    assert numbers["settings"] == {"kappa": None, "counterpart": "step", "eps": 0.1}
    assert f"{r:.2f}" in said
    assert "highly similar trends" in said


def test_fig_attn_map(reproduce, home, model):
    reproduce("fig-attn-map", "--images", 3, "--size", 24, "--layers", "2,1", "--head", 2)
    rows, numbers = files(home / "outputs/fig-attn-map", "fig-attn-map")
    loader = LabelledImages(ImageChoice("digits", count=3), images(home, 3).config, img_size=24)
    expected = attention_maps(model, [pixels for pixels, _ in loader], [1, 0]).maps[:, :, 1]  # (2, 3, 6, 6)
    assert column(rows, "share") == pytest.approx(expected.flatten().tolist(), abs=1e-6)
    assert {row["layer"] for row in rows} == {"0", "1"}
    assert numbers["size"] == [24, 24]
    assert {row["title"] for row in rows} <= set("0123456789")
    spread = attn_map.effective_patches(expected.double()).mean(1).tolist()
    assert [entry["effective_patches"] for entry in numbers["spread"]] == pytest.approx(spread, rel=1e-5)


@pytest.mark.parametrize("kind", ["not an image", "truncated jpeg", "bomb", "10,000 px square"])
def test_maps_of_files_that_are_refused(reproduce, tmp_path, kind):
    data, message = BAD[kind]
    (tmp_path / "photo.png").write_bytes(data)
    said = reproduce("fig-attn-map", "-i", tmp_path / "photo.png", "-o", tmp_path / "out", code=2)
    assert "photo.png" in said
    assert re.search(message, said)
    assert not list((tmp_path / "out").glob("*.png"))


@pytest.mark.parametrize("size", [(1, 1), (10_000, 30)])
def test_maps_of_images_of_odd_sizes(reproduce, tmp_path, size):
    Image.new("RGB", size, (10, 200, 30)).save(tmp_path / "odd.png")
    reproduce("fig-attn-map", "-i", tmp_path / "odd.png", "-o", tmp_path / "out", "--layers", 1)
    rows, numbers = files(tmp_path / "out", "fig-attn-map")
    assert numbers["size"] == [16, 16]
    assert sum(column(rows, "share")) == pytest.approx(1)


def test_maps_of_image_files(reproduce, tmp_path):
    """Of any mode and shape, turned as their EXIF says."""
    grey = np.zeros((30, 50), dtype=np.uint8)
    grey[:, 25:] = 255
    Image.fromarray(grey).convert("CMYK").save(tmp_path / "wide.jpg")
    turn = Image.Exif()
    turn[0x0112] = 3  # upside down
    Image.fromarray(grey).save(tmp_path / "turned.jpg", exif=turn)
    subjects = open_subjects(["outputs/demo/run"])
    upright, turned = attn_map.run(subjects, [tmp_path / "wide.jpg", tmp_path / "turned.jpg"]).pixels[:, 0]
    assert upright[:, :4].max() < 50 < 200 < upright[:, -4:].min()
    assert turned[:, -4:].max() < 50 < 200 < turned[:, :4].min()
    reproduce("fig-attn-map", "-i", tmp_path / "wide.jpg", "-o", tmp_path)
    rows, numbers = files(tmp_path, "fig-attn-map")
    assert numbers["images"] == {"files": ["wide.jpg"]}
    assert len(rows) == 2 * 16  # first and last of two layers, 4×4 patches


def test_fig_overview(reproduce, home, model, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "noise.png")
    out = tmp_path / "out"
    said = reproduce(
        *("fig-overview", "-m", "outputs/demo/run", "-i", tmp_path / "noise.png", "--size", 16),
        *("--layer", 2, "--head", 2, "--patch", "1,4", "-o", out),
    )
    rows, numbers = files(out, "fig-overview")
    normed = (torch.from_numpy(pixels)[None, None] / 255 - 0.5) / 0.5
    found = representatives(model, normed, [1])
    before, after = found.extracted[0][0, 1], found.contracted[0][0, 1]
    expected = [coding_rate(part.double()).item() for part in (before, after)]
    assert list(numbers["coding_rate"].values()) == pytest.approx(expected, rel=1e-4)
    assert f"{expected[0]:.1f} nats extracted, {expected[1]:.1f} contracted" in said
    assert column(rows, "moved") == pytest.approx((after - before).norm(dim=-1).tolist(), rel=1e-4)
    assert sum(column(rows, "patches")) == 16
    assert (numbers["layer"], numbers["head"], numbers["patch"]) == (1, 1, [0, 3])


def test_spread_of_maps():
    one, flat = (
        torch.zeros(4, 4).index_put((torch.tensor(1), torch.tensor(2)), torch.tensor(1.0)),
        torch.ones(4, 4),
    )
    maps = torch.stack([one, flat / 16]).double()
    assert attn_map.effective_patches(maps).tolist() == pytest.approx([1, 16])
    assert attn_map.patches_holding(maps).tolist() == [1, 10]  # 9 patches hold 0.5625, 10 hold 0.625
    assert [attn_map.early_middle_late(d) for d in (1, 2, 4, 12)] == [(0,), (0, 1), (0, 1, 3), (0, 5, 11)]


def test_table_zero_shot_of_digits_says_what_its_masks_are(reproduce, home):
    said = reproduce("table-zero-shot", "--images", 20)
    rows, numbers = files(home / "outputs/table-zero-shot", "table-zero-shot")
    assert len(rows) == 2 * 2
    assert "The digits have no masks: these are derived from their ink" in said
    for name, values in paper.ZERO_SHOT.items():
        assert f"paper: {name} {' '.join(f'{v:.2f}' for v in values)}" in said
    best = numbers["best"]["CBT (digits)"]
    assert f"CBT (digits) {best['foreground']:.2f} {best['background']:.2f}" in said
    assert numbers["images"]["measured"] == 20


@pytest.fixture
def voc(tmp_path):
    write_voc(tmp_path, [f"im{i}" for i in range(3)])
    return tmp_path


def test_table_zero_shot_layers_on_voc_stands_beside_the_papers(reproduce, home, model, voc):
    said = reproduce("table-zero-shot-layers", "--data", voc, "-o", voc / "out", "--mass", 0.5)
    rows, numbers = files(voc / "out", "table-zero-shot-layers")
    data = DataConfig(img_size=16, in_chans=1, mean=(0.5,), std=(0.5,), resize="squash", workers=0)
    loader = segmentation_loader(open_voc(voc), DataConfig(**vars(data) | {"interpolation": "bilinear"}))
    expected = zero_shot_segmentation(model, loader, labels="voc", mass=0.5)
    assert column(rows, "foreground") == pytest.approx(expected.per_layer[:, 0].tolist(), abs=1e-6)
    assert numbers["images"]["dataset"] == "voc"
    assert numbers["paper"]["CBT-S"][2] == 0.43
    assert "0.43" in said
    assert "paper: CBT-S" in (voc / "out" / "table-zero-shot-layers.svg").read_text()


@pytest.mark.parametrize("count_boundary", [False, True])
def test_all_pixels_against_scikit_learn(count_boundary):
    mask = torch.tensor(np.random.default_rng(0).choice([1, 2, 3], (9, 7)))
    found = zero_shot.cover_all(canonical(mask, "pets"), count_boundary).tolist()
    counted = mask.flatten() if count_boundary else mask[mask != 3]
    for value, truth in zip(found, (counted == 1, counted == 2, mask.flatten() == 3), strict=True):
        assert value == pytest.approx(jaccard_score(truth, np.ones(len(truth), dtype=bool)))
    absent = zero_shot.cover_all(torch.ones(2, 2), count_boundary)  # foreground alone
    assert absent.isnan().tolist() == [False, True, True]


def test_fig_rank_compares_pooled_and_learned(reproduce, home, model):
    said = reproduce("fig-rank", "--images", 10, "--tolerance", 0.01)
    rows, numbers = files(home / "outputs/fig-rank", "fig-rank")
    expected = extraction_rank(model, batches(home, 10), tolerance=0.01)
    pooled = column(rows, "rank", init="pool")
    assert pooled == pytest.approx(expected.rank.double().mean(1).flatten().tolist())
    assert {row["init"] for row in rows} == {"pool", "learned"}
    assert "paper: CBT, learned learned around 5 64" in said
    assert numbers["tolerance"] == 0.01


def test_fig_perturb(reproduce, home, model):
    said = reproduce("fig-perturb", "--images", 50, "--sigmas", "0,0.3", "--seeds", 2, "--parts", "bases")
    rows, numbers = files(home / "outputs/fig-perturb", "fig-perturb")
    assert len(rows) == 2 * 2 * 2
    labelled = images(home, 50)

    def top1():
        with torch.no_grad():
            return 100 * np.mean(
                [int(c == t) for x, y in labelled for c, t in zip(model(x).argmax(-1), y, strict=True)]
            )

    clean = top1()
    with perturb(model, 0.3, 1, "bases"):
        noisy = top1()
    assert column(rows, "top1", model="CBT (digits)", sigma="0.0") == pytest.approx([clean] * 2)
    assert column(rows, "top1", model="CBT (digits)", sigma="0.3", seed="1") == pytest.approx([noisy])
    assert numbers["parts"] == ["bases"]
    assert f"{clean:.1f}" in said


def test_several_models_of_every_kind(reproduce, home, tmp_path):
    """A run under a label, its weights as a folder, a registered name with and without weights."""
    twin = create_model(
        "crate_tiny_patch4_32", num_classes=10, in_chans=1, embed_dim=16, depth=2, num_heads=2
    )
    save_model(twin, tmp_path / "twin", architecture="crate_tiny_patch4_32")
    said = reproduce(
        *("fig-coding-rate", "--images", 4, "--data", "digits", "-o", tmp_path / "out"),
        *("-m", "mine=outputs/demo/run", "-m", "outputs/demo/run/model", "-m", tmp_path / "twin"),
        *("-m", "cbt_tiny_patch4_32", "-m", "outputs/demo/vit"),
    )
    _, numbers = files(tmp_path / "out", "fig-coding-rate")
    labels = [entry["model"] for entry in numbers["models"]]
    assert labels == ["mine", "CBT 16×2", "CRATE 16×2", "CBT-T", "ViT 16×2"]
    assert "CBT-T has random weights: give --weights FILE" in said
    assert numbers["by_layer"]["mine"] == numbers["by_layer"]["CBT 16×2"]


def test_models_of_one_label_are_told_apart(home, monkeypatch):
    monkeypatch.chdir(home)
    subjects = open_subjects(["outputs/demo/run", "outputs/demo/learned", "outputs/demo/learned"])
    assert [s.label for s in subjects] == ["CBT 16×2", "CBT 16×2 (learned)", "CBT 16×2 (2)"]


def test_a_default_model_that_is_not_there_is_trained(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name, what, settings = digits.MODELS["crate"]
    monkeypatch.setitem(digits.MODELS, "crate", (name, what, (*settings, *SMALL)))
    command = ["reproduce", "fig-coding-rate", "-m", "digits:crate", "--images", "4"]
    first, second = (CliRunner().invoke(app, command, env={"COLUMNS": "200"}).output for _ in range(2))
    assert "Training digits:crate (MSSA instead of CBSA) into outputs/demo/crate" in first
    assert (tmp_path / "outputs/fig-coding-rate/fig-coding-rate.png").is_file()
    assert "Training" not in second


def test_every_default_model_can_be_built():
    for name in digits.MODELS:
        config = digits.settings(name)
        model = create_model(config.model.name, in_chans=1, num_classes=10, **config.model.kwargs)
        kinds = [type(block.attn).__name__ for block in model.blocks]
        assert kinds == {
            "crate": ["MSSA"] * 4,
            "vit": ["MHSA"] * 4,
            "crate_cbt": ["MSSA"] * 2 + ["CBSA"] * 2,
        }.get(name, ["CBSA"] * 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fig-coding-rate", "-m", "no/such/run"), "model 'no/such/run': there is no such folder or file"),
        (("fig-coding-rate", "-m", "cbt_tiny_patch4_32"), "give the images by --data NAME:FOLDER"),
        (("fig-coding-rate", "-m", "digits:cnn"), "NAME='cnn': expected one of 'cbt', 'crate'"),
        (("fig-coding-rate", "--data", "parquet:/no/folder"), "'/no/folder': there is no such folder"),
        (("fig-coding-rate", "--device", "tpu"), "--device='tpu': expected one of 'auto'"),
        (("fig-coding-rate", "--eps", "0"), "eps must be above 0"),
        (("fig-coding-rate", "--out", "/proc/nothing"), "cannot write into /proc/nothing"),
        (("fig-coding-rate", "--weights", "x"), "--weights was given 1 times for 0 registered names"),
        (("fig-reduced-cr", "-m", "digits:vit"), "ViT (digits): the model has no CBSA or Agent layer"),
        (("fig-reduced-cr", "--kappa", "one"), "--kappa 'one': expected numbers separated by commas"),
        (("fig-reduced-cr", "--counterpart", "x"), "counterpart='x': expected one of 'operator', 'step'"),
        (("fig-rank", "-m", "digits:vit"), "ViT (digits): the model has no CBSA or Agent layer"),
        (("fig-attn-map", "--layers", "3"), "layers must be some of the 2 blocks"),
        (("fig-attn-map", "--layers", "a"), "--layers 'a': expected whole numbers"),
        (("fig-attn-map", "--head", "3"), "head 3 is not there: the model has 2 heads"),
        (("fig-attn-map", "-i", "none.png"), "none.png: no such file"),
        (("fig-attn-map", "-i", "outputs/demo/run/config.json"), "config.json is not an image"),
        (
            ("fig-attn-map", "-m", "tost_tiny_patch4_32", "--data", "digits"),
            "ToST-T: layer 0 is TSSA: its softmax is over heads, not a map over tokens",
        ),
        (("fig-overview", "--layer", "13"), "layers must be some of the 12 blocks"),
        (("fig-overview", "--head", "4"), "head 4 is not there: the layer has 3 heads"),
        (("fig-overview", "--patch", "7"), "--patch '7': expected ROW,COLUMN"),
        (("fig-overview", "--patch", "1,50"), "on the grid of 40×40 patches"),
        (("fig-overview", "-m", "digits:cbt", "-m", "digits:vit"), "--model was given 2 times"),
        (("fig-overview", "-m", "digits:vit"), "ViT (digits): layer 0 is MHSA, which has no representatives"),
        (
            ("table-zero-shot", "-m", "cbt_tiny_patch4_32"),
            "segmentation needs images with masks: give --data pets",
        ),
        (("table-zero-shot", "--data", "pets"), "--data pets needs its folder: give --data pets:FOLDER"),
        (("table-zero-shot", "--mass", "2"), "mass is the share of the attention to keep"),
        (("table-zero-shot-layers", "--data", "voc:/no/folder"), "'/no/folder': there is no such folder"),
        (
            ("fig-perturb", "-m", "cbt_tiny_patch4_32", "--data", "digits"),
            "the model knows 1000 classes, but",
        ),
        (("fig-perturb", "--sigmas", "0,-1"), "sigmas must be at least 0"),
        (("fig-perturb", "--parts", "all"), "parts='all': expected one of 'bases'"),
    ],
)
def test_wrong_input_is_named(reproduce, arguments, message):
    said = reproduce(*arguments, code=2)
    assert message in said
    assert "Traceback" not in said


def test_on_real_pets(reproduce, tmp_path):
    folder = real_data("oxford-pets")
    said = reproduce("table-zero-shot", "--data", f"pets:{folder}", "--images", 12, "-o", tmp_path)
    _, numbers = files(tmp_path, "table-zero-shot")
    assert "all pixels" in said
    assert 0.1 < numbers["all_pixels"]["foreground"] < 0.6
    assert numbers["all_pixels"]["foreground"] + numbers["all_pixels"]["background"] == pytest.approx(1)
