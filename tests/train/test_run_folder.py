"""The folder of a run: one process at a time, one set of settings."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from cbsa.train import ModelConfig, TrainConfig, override, recipe
from cbsa.train.fields import field_names
from cbsa.train.run_folder import (
    FolderInUseError,
    locked,
    read_config,
    read_summary,
    settle_config,
    write_summary,
)

HOLD = """
import sys
from pathlib import Path
from cbsa.train.run_folder import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def begin(folder, config):
    """A run that has come to its first checkpoint."""
    settle_config(folder, config)
    (folder / "checkpoints").mkdir(exist_ok=True)
    (folder / "checkpoints" / "step-000000001.pt").touch()


# --- the lock --------------------------------------------------------------------------------------------


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path):
    """Even if it is killed."""
    folder = tmp_path / "new" / "run"
    first = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert first.stdout.readline() == "held\n"
        with (
            pytest.raises(FolderInUseError, match=rf"run is in use by another run \(process {first.pid}\)"),
            locked(folder),
        ):
            pytest.fail("two are in")
    finally:
        first.kill()
        first.communicate()
    with locked(folder):
        pass


def test_other_folders_are_free(tmp_path):
    with locked(tmp_path / "a"), locked(tmp_path / "b"):
        pass


def test_the_lock_ends_with_an_error(tmp_path):
    def fail():
        with locked(tmp_path):
            raise KeyError("in the middle")

    with pytest.raises(KeyError, match="in the middle"):
        fail()
    with locked(tmp_path):
        pass


def test_a_folder_that_cannot_be_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ValueError, match=rf"cannot write into {place}: "), locked(place):
            pytest.fail("it is a file")


# --- settings --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["digits_cbt", "imagenet_cbt_small", "finetune_cifar10"])
def test_settings_come_back(tmp_path, name):
    settle_config(tmp_path, recipe(name))
    assert read_config(tmp_path) == recipe(name)
    assert json.loads((tmp_path / "config.json").read_text())["recipe"] == name


def test_other_settings_are_refused_by_name(tmp_path):
    begin(tmp_path, recipe("digits_cbt"))
    before = (tmp_path / "config.json").read_text()
    other = override(recipe("digits_cbt"), ["optimizer.lr=1", "epochs=3", "model.kwargs.depth=9"])
    with pytest.raises(ValueError, match=r"other settings \(model\.kwargs, optimizer\.lr, epochs differ\)"):
        settle_config(tmp_path, other)
    assert (tmp_path / "config.json").read_text() == before
    settle_config(tmp_path, recipe("digits_cbt"))


FREE = [
    *("runtime.device=cuda:1", "runtime.precision=bf16", "runtime.compile=true", "runtime.parallel=fsdp"),
    *("checkpoint.keep=7", "checkpoint.every_steps=3", "data.root=/elsewhere", "data.workers=3"),
    *("data.store=host", "data.download=true", "log_every=99"),
]


@pytest.mark.parametrize("setting", FREE)
def test_how_a_run_is_carried_out_may_change(tmp_path, setting):
    begin(tmp_path, recipe("digits_cbt"))
    changed = override(recipe("digits_cbt"), [setting])
    assert changed != recipe("digits_cbt")
    settle_config(tmp_path, changed)
    assert read_config(tmp_path) == changed


def test_all_else_is_what_a_run_is():
    """Of every other field, somebody has decided that it must stay: a new one fails here until decided."""
    free = {setting.partition("=")[0] for setting in FREE}
    groups = ("runtime.", "checkpoint.")
    fixed = {n for n in field_names(TrainConfig) if n not in free and not n.startswith(groups)}
    assert {n for n in fixed if "." not in n} == {
        *("recipe", "epochs", "batch_size", "accumulate", "label_smoothing", "ema", "seed"),
        *("eval_batch_size", "eval_every"),
    }
    assert {n for n in fixed if n.startswith("data.")} == {
        f"data.{n}"
        for n in (
            *("dataset", "train_split", "val_split", "holdout", "img_size", "in_chans", "mean", "std"),
            *("resize", "crop_pct", "interpolation", "max_corrupt"),
        )
    }


def test_a_run_without_a_checkpoint_may_begin_anew_with_other_settings(tmp_path):
    """Else a mistyped setting, which stopped it, could not be mended."""
    settle_config(tmp_path, override(recipe("digits_cbt"), ["model.kwargs.embed_dim=7"]))
    settle_config(tmp_path, recipe("digits_cbt"))
    assert read_config(tmp_path) == recipe("digits_cbt")


def test_a_finished_run_keeps_its_settings_without_its_checkpoints(tmp_path):
    """Which are often deleted for their space: what is in the folder is still of those settings."""
    settle_config(tmp_path, recipe("digits_cbt"))
    write_summary(tmp_path, {"top1": 0.5})
    with pytest.raises(ValueError, match=r"other settings \(epochs differ\)"):
        settle_config(tmp_path, override(recipe("digits_cbt"), ["epochs=3"]))
    assert read_config(tmp_path) == recipe("digits_cbt")


def test_tuples_in_arguments_of_the_model_are_the_lists_they_are_stored_as(tmp_path):
    config = TrainConfig(model=ModelConfig(kwargs={"representatives": (4, 4)}))
    begin(tmp_path, config)
    settle_config(tmp_path, config)
    with pytest.raises(ValueError, match=r"\(model\.kwargs differ\)"):
        settle_config(tmp_path, replace(config, model=ModelConfig(kwargs={"representatives": (4, 2)})))


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "3", '{"epochs": "3"}', '{"unknown": 1}', '{"epochs": 0}', "[" * 100_000, '{"data": []}'],
)
def test_settings_that_are_none_are_refused(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match=r"config\.json is not the configuration of a run"):
        read_config(tmp_path)


def test_a_folder_without_settings_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no config\.json: it is not the folder of a run"):
        read_config(tmp_path)


# --- the summary -----------------------------------------------------------------------------------------


def test_the_summary_is_there_when_it_is_written(tmp_path):
    assert read_summary(tmp_path) is None
    write_summary(tmp_path, {"top1": 12.5, "classes": ["ä", "b"]})
    assert read_summary(tmp_path) == {"top1": 12.5, "classes": ["ä", "b"]}
    (tmp_path / "summary.json").write_text('{"top1": 12')
    with pytest.raises(ValueError, match=r"summary\.json is not the summary of a run"):
        read_summary(tmp_path)
