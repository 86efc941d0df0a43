"""Folders of data sets, as users have them."""

from pathlib import Path

import pytest

from cbsa.studies.data_sets import DATA_SETS, find_roots


@pytest.fixture
def home(tmp_path):
    """Data sets in the layouts of Hugging Face and of torchvision."""
    for name in ("tiny/train.parquet", "all/tiny-imagenet/data/train.parquet", "all/cifar-10/train.parquet"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for name in ("all/oxford-pets/oxford-iiit-pet/annotations", "vision/cifar-10-batches-py"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "vision/oxford-iiit-pet/annotations").mkdir(parents=True)
    (tmp_path / "folders/train/n01443537").mkdir(parents=True)
    return tmp_path


def settings(roots, name):
    values = dict(setting.split("=", 1) for setting in roots.settings(name))
    return values["data.dataset"], Path(values["data.root"])


def test_one_folder_is_enough_for_one_data_set(home):
    assert settings(find_roots([str(home / "tiny")], ["tiny-imagenet"]), "tiny-imagenet") == (
        "parquet",
        home / "tiny",
    )
    roots = find_roots([str(home / "folders")], ["tiny-imagenet", "digits", ""])
    assert settings(roots, "tiny-imagenet") == ("folder", home / "folders")
    assert roots.settings("digits") == ()  # embedded
    assert roots.settings("") == (f"data.root={home / 'folders'}",)  # of a manifest that names no data set


def test_each_data_set_has_a_folder(home):
    given = [f"cifar10={home / 'vision'}", f"pets={home / 'vision/oxford-iiit-pet'}"]
    roots = find_roots(given, ["cifar10", "pets"])
    assert settings(roots, "cifar10") == ("cifar10", home / "vision")
    assert settings(roots, "pets") == ("pets", home / "vision")  # torchvision wants the folder above
    assert find_roots(given, []).named == roots.named


def test_one_folder_holds_several(home):
    roots = find_roots([str(home / "all")], ["tiny-imagenet", "cifar10", "pets"])
    assert settings(roots, "tiny-imagenet") == ("parquet", home / "all/tiny-imagenet")
    assert settings(roots, "cifar10") == ("parquet", home / "all/cifar-10")
    assert settings(roots, "pets") == ("pets", home / "all/oxford-pets")
    roots = find_roots([str(home / "vision"), f"tiny-imagenet={home / 'tiny'}"], list(DATA_SETS))
    assert settings(roots, "cifar10")[1] == settings(roots, "pets")[1] == home / "vision"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], r"need cifar10 and pets: add --data cifar10=FOLDER --data pets=FOLDER"),
        (["cifar10={home}/vision"], r"need pets: add --data pets=FOLDER"),
        (["{home}/tiny"], r"need cifar10 and pets.*--data .*tiny holds train.parquet"),  # not both in one
        (["{home}/no"], r"--data .*no: there is no such folder"),
        (["pets={home}/no"], r"--data pets=.*no: there is no such folder"),
        (
            ["pets={home}/folders"],
            r"folders holds train; expected oxford-iiit-pet/annotations or \*\.parquet",
        ),
        (["pet={home}/all"], "did you mean 'pets'"),
        (["{home}/tiny", "{home}/all"], "say of which data sets, by NAME=FOLDER"),
        (["digits={home}/all"], "digits is embedded"),
    ],
)
def test_what_is_missing_is_named(home, given, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        find_roots([text.format(home=home) for text in given], ["cifar10", "pets"])
