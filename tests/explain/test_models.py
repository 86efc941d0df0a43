"""Opening the models of a page, and the command line."""

import json
import shutil
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from cbsa.cli import app
from cbsa.explain import at_photographs, open_subject, sample_images
from cbsa.explain import models as opening
from cbsa.explain.models import open_subjects
from cbsa.models import SHIPPED, create_model, save_model
from cbsa.train import TrainConfig
from cbsa.train.fields import to_dict
from tests.explain.pages import picture

NAME = "cbt_tiny_patch4_32"


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")
    model = create_model(NAME, num_classes=3, depth=2, representatives=(2, 2))
    return save_model(model, folder / "model", architecture=NAME)


@pytest.fixture
def run_folder(weights, tmp_path):
    """The weights in the folder of a run."""
    config = to_dict(TrainConfig())
    config["model"] |= {"name": NAME, "kwargs": {"depth": 2, "representatives": [2, 2]}}
    config["data"] |= {"img_size": 32}
    run = tmp_path / "run"
    shutil.copytree(weights, run / "model")
    (run / "config.json").write_text(json.dumps(config))
    return run


@pytest.mark.parametrize("prefix", ["", "local-dir:"])
def test_a_folder_of_weights(weights, prefix):
    looked = open_subject(f"{prefix}{weights}")
    assert (looked.architecture, looked.trained, looked.model.num_classes) == (NAME, True, 3)
    assert looked.model.blocks[0].attn.num_representatives == 4
    assert looked.data.img_size == 32
    assert [looked.label(i) for i in range(3)] == ["class 0", "class 1", "class 2"]


def test_classes_come_from_the_summary_of_the_run(run_folder):
    summary = run_folder / "summary.json"
    summary.write_text(json.dumps({"classes": ["ant", "bee", "cat"]}))
    for name in (run_folder, run_folder / "model"):
        assert open_subject(str(name)).classes == ("ant", "bee", "cat")
    summary.write_text(json.dumps({"classes": ["ant", "bee"]}))
    with pytest.raises(ValueError, match="has 3 classes, but there are 2 names for them"):
        open_subject(str(run_folder))
    summary.write_text(json.dumps({"classes": "abc"}))
    with pytest.raises(ValueError, match="classes must be a list, got str"):
        open_subject(str(run_folder))


def test_a_name_has_random_weights_the_same_every_time():
    first, second = open_subject(NAME), open_subject(NAME)
    assert not first.trained
    assert "random" in first.source
    assert (first.model.pos_embed == second.model.pos_embed).all()


def test_weights_go_to_names_in_order(weights, monkeypatch):
    opened, subject = [], open_subject(NAME)
    monkeypatch.setattr(opening, "open_subject", lambda *arguments: opened.append(arguments) or subject)
    open_subjects([NAME, str(weights), NAME], ["a.pt", "b.pt"], None)
    assert opened == [(NAME, "a.pt", ()), (str(weights), None, ()), (NAME, "b.pt", ())]
    with pytest.raises(
        ValueError, match="--weights is given 1 times, but 2 of the models are registered names"
    ):
        open_subjects([NAME, str(weights), NAME], ["a.pt"], None)


def test_models_that_probes_cannot_look_into():
    with pytest.raises(TypeError, match="is a ToST, for which the page has no place: take a model of"):
        open_subject("tost_cab_tiny_12_patch16_224")


def test_an_unknown_name_names_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'cbt_tiny_patch4_32'"):
        open_subject("cbt_tiny_patch4_33")


def run(*arguments):
    return CliRunner(env={"COLUMNS": "200", "TERM": "dumb"}).invoke(app, ["explain", *map(str, arguments)])


def plain(result):
    return " ".join(result.output.replace("│", " ").split())


def test_the_command_writes_a_page(weights, tmp_path):
    labels = tmp_path / "labels.txt"
    labels.write_text("ant\n\nbee\ncat \n")
    image, page = picture(tmp_path / "a.png"), tmp_path / "new" / "page.html"
    result = run(image, image, "-m", weights, "--labels", labels, "--size", "48", "-o", page)
    assert result.exit_code == 0, result.output
    assert f"Open {page}" in plain(result)
    assert "random" not in plain(result)
    text = page.read_text()
    assert '"label":"bee"' in text
    assert '"grid":[12,12]' in text


def test_the_command_says_that_weights_are_random(tmp_path):
    result = run(picture(tmp_path / "a.png"), "-m", NAME, "-o", tmp_path / "page.html")
    assert result.exit_code == 0, result.output
    assert f"has random weights: give --weights, or --model {NAME}.cifar10" in plain(result)


def index_of(page):
    """What the page knows of its models and images."""
    return json.loads(page.read_text().split('id="index">')[1].split("</script>")[0])


def test_by_default_the_cbt_that_ships_sees_photographs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run()
    assert result.exit_code == 0, result.output
    assert "random" not in plain(result)
    index = index_of(tmp_path / "outputs" / "explorer.html")
    assert [(m["name"], m["source"], m["trained"]) for m in index["models"]] == [
        ("CBT-T", "cbt_tiny_patch4_32.cifar10", True)
    ]
    assert [image["name"] for image in index["images"]] == ["china.jpg", "flower.jpg"]
    assert [image["views"][0]["grid"] for image in index["images"]] == [[24, 24]] * 2
    labels = {c["label"] for image in index["images"] for c in image["views"][0]["predictions"]}
    assert labels <= {*SHIPPED["cbt_tiny_patch4_32.cifar10"].config["label_names"]}


def test_photographs_are_seen_in_enough_patches(weights):
    small = open_subject(str(weights))
    assert at_photographs(small).data.img_size == 24 * 4
    large = replace(small, data=replace(small.data, img_size=64))
    assert at_photographs(large) is large


def test_all_that_ship_side_by_side():
    subjects = open_subjects(["shipped"], [], None)
    assert [s.source for s in subjects] == sorted(SHIPPED)[:4]  # "cbt" is the first, also by the alphabet
    assert subjects[0].name == "CBT-T"
    assert all(s.trained and len(s.classes) == s.model.num_classes for s in subjects)


def test_a_copy_without_weights_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(opening, "SHIPPED", {})
    result = run(picture(tmp_path / "a.png"))
    assert result.exit_code == 2
    assert "no model given, and this copy of cbsa has no weights with it: give --model" in plain(result)


def test_models_of_the_digits_by_name(run_folder, tmp_path, monkeypatch):
    """As `cbsa reproduce` names them, under the same label; those that are there are not trained again."""
    monkeypatch.chdir(tmp_path)
    for name in ("run", "crate_cbt"):
        shutil.copytree(run_folder, tmp_path / "outputs" / "demo" / name)
    page = tmp_path / "page.html"
    result = run(picture(tmp_path / "a.png"), "-m", "digits", "-m", "two=digits:crate_cbt", "-o", page)
    assert result.exit_code == 0, result.output
    text = page.read_text().split('id="index">')[1].split("</script>")[0]
    assert [model["name"] for model in json.loads(text)["models"]] == ["CBT (digits)", "two"]
    result = run(tmp_path / "a.png", "-m", "digits:crat", "-o", page)
    assert result.exit_code == 2
    assert "did you mean 'crate'" in plain(result)


def test_images_of_the_runs_own_data_set(run_folder, tmp_path):
    """The embedded digits, one a class from all of their range; the name tells the class."""
    page = tmp_path / "page.html"
    result = run("-m", run_folder, "--samples", "3", "-o", page)
    assert result.exit_code == 0, result.output
    names = [image["name"] for image in index_of(page)["images"]]
    assert [name.split(" · digits[")[0] for name in names] == ["0", "4", "9"]
    many = sample_images(open_subject(str(run_folder)), 25)
    labels = [name[0] for name, _ in many]
    assert labels[:10] == [*"0123456789"]
    assert labels[20:] == [*"01234"]
    assert len({name for name, _ in many}) == 25


def test_without_images_and_without_a_run_there_are_photographs(weights):
    (name, image), *more = sample_images(open_subject(str(weights)), 6)
    assert (name, image.size, image.mode) == ("china.jpg", (640, 427), "RGB")
    assert [name for name, _ in more] == ["flower.jpg"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{folder}/a.txt", "-m", NAME], "a.txt is not an image of a known kind"),
        (["{folder}/none.png", "-m", NAME], "none.png: no such file"),
        (["{folder}/a.png", "-m", "cbt_huge"], "expected one of"),
        (["{folder}/a.png", "-m", NAME, "-w", "{folder}/a.txt"], "not a checkpoint"),
        (["{folder}/a.png", "-m", NAME, "-w", "{folder}/none.pt"], "no such file"),
        (["{folder}/a.png", "-m", NAME, "--labels", "{folder}/none.txt"], "cannot be read as a text file"),
        (
            ["{folder}/a.png", "-m", NAME, "--labels", "{folder}/a.txt"],
            "has 1000 classes, but there are 1 names",
        ),
        (["{folder}/a.png", "-m", NAME, "--size", "2"], "is less than one patch"),
        (["{folder}/a.png", "-m", NAME, "--size", "90000"], "give a smaller --size"),
        (["{folder}/a.png", "-m", NAME, "-o", "{folder}"], "is a folder: give the file to write"),
        (["{folder}/a.png", "-m", "tost_cab_tiny_12_patch16_224"], "for which the page has no place"),
    ],
)
def test_what_cannot_be_shown_is_said_in_one_message(arguments, message, tmp_path):
    picture(tmp_path / "a.png")
    (tmp_path / "a.txt").write_text("some text\n")
    result = run(
        *(a.format(folder=tmp_path) for a in arguments),
        *([] if "-o" in arguments else ["-o", tmp_path / "p"]),
    )
    assert result.exit_code == 2, result.output
    assert message in plain(result)
    assert "Traceback" not in result.output


def test_a_label_names_a_model(weights):
    first, second = open_subjects([f"ours={weights}", NAME], [], None)
    assert first.name == "ours"
    assert first.trained
    assert second.name != "ours"
