"""Checkpoints on disk: whole or not at all, the right ones kept, and nothing foreign believed."""

import json
import os
import pickle
import zipfile

import pytest
import torch

from cbsa._files import write_atomically, write_text_atomically
from cbsa.models import CheckpointError
from cbsa.train import TrainConfig, recipe
from cbsa.train.checkpoint import CheckpointFolder, read_run_checkpoint, stored_config


class Told(list):
    """Messages to the user."""

    def __call__(self, message):
        self.append(message)


@pytest.fixture
def told():
    return Told()


@pytest.fixture
def folder(tmp_path, told):
    return CheckpointFolder(tmp_path / "checkpoints", keep=2, tell=told)


def state(value):
    return {"model": {"weight": torch.full((300,), float(value))}, "progress": {"step": value}}


def save(folder, *steps):
    for step in steps:
        assert folder.save(state(step), step, TrainConfig())


def names(folder):
    return sorted(p.name for p in folder.folder.iterdir())


def step_of(content):
    assert torch.equal(content["model"]["weight"], torch.full((300,), float(content["progress"]["step"])))
    return content["progress"]["step"]


# --- writing ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [OSError("no space left"), RuntimeError("odd"), KeyboardInterrupt()])
def test_a_writer_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, error):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def write(file):
        file.write(b"half of the n")
        file.flush()
        assert path.read_bytes() == b"old"  # while it is being written too
        raise error

    with pytest.raises(type(error)):
        write_atomically(path, write)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_writer_that_succeeds_replaces_the_file(tmp_path):
    path = tmp_path / "new" / "folder" / "file"
    write_atomically(path, lambda file: file.write(b"first"))
    write_text_atomically(path, "second: \N{GREEK SMALL LETTER ETA}\n")
    assert path.read_text(encoding="utf-8") == "second: \N{GREEK SMALL LETTER ETA}\n"
    assert os.listdir(path.parent) == ["file"]


def test_a_checkpoint_that_cannot_be_written_is_reported_and_costs_nothing(folder, told, monkeypatch):
    save(folder, 1, 2)
    folder.save_best(state(2), TrainConfig())

    def full(content, file):
        file.write(b"some bytes")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", full)
        assert folder.save(state(3), 3, TrainConfig()) is False
        assert folder.save_best(state(3), TrainConfig()) is False
    assert names(folder) == ["best.pt", "step-000000001.pt", "step-000000002.pt"]
    assert len(told) == 2
    assert "step-000000003.pt could not be written ([Errno 28] No space left on device)" in told[0]
    assert "Older checkpoints are intact: step-000000002.pt, step-000000001.pt." in told[0]
    assert step_of(folder.newest()) == 2
    assert step_of(read_run_checkpoint(folder.folder / "best.pt")) == 2
    assert folder.save(state(3), 3, TrainConfig())
    assert step_of(folder.newest()) == 3


def test_the_first_checkpoint_that_cannot_be_written(folder, told, monkeypatch):
    monkeypatch.setattr(torch, "save", lambda content, file: file.no_such_method())
    with pytest.raises(AttributeError):  # a mistake of ours is not taken for a full disk
        folder.save(state(1), 1, TrainConfig())
    assert folder.newest() is None
    assert told == []


# --- which ones ------------------------------------------------------------------------------------------


def test_the_newest_are_kept_by_number(tmp_path, told):
    folder = CheckpointFolder(tmp_path, 3, told)
    save(folder, 7, 8, 9, 10, 11)
    assert [p.name for p in folder.numbered()] == [f"step-{n:09d}.pt" for n in (11, 10, 9)]
    assert step_of(folder.newest()) == 11
    assert told == []


def test_numbers_are_compared_as_numbers(tmp_path, told):
    """Also beyond the digits of the name, and whatever the time of the files."""
    folder = CheckpointFolder(tmp_path, 2, told)
    save(folder, 999_999_999, 1_000_000_000)
    os.utime(folder.numbered()[0], (0, 0))
    assert step_of(folder.newest()) == 1_000_000_000
    save(folder, 1_000_000_001)
    assert names(folder) == ["step-1000000000.pt", "step-1000000001.pt"]


def test_the_best_and_what_is_not_ours_is_left_alone(folder):
    save(folder, 1)
    assert folder.save_best(state(1), TrainConfig())
    for name in ("notes.txt", "step-x.pt", "mystep-000000001.pt", "step-000000001.pt.bak"):
        (folder.folder / name).write_text("mine")
    save(folder, 2, 3, 4)
    assert set(names(folder)) == {
        *("best.pt", "notes.txt", "step-x.pt", "mystep-000000001.pt", "step-000000001.pt.bak"),
        *("step-000000003.pt", "step-000000004.pt"),
    }
    assert step_of(read_run_checkpoint(folder.folder / "best.pt")) == 1
    folder.save_best(state(4), TrainConfig())
    assert step_of(read_run_checkpoint(folder.folder / "best.pt")) == 4


def test_without_a_folder_there_is_none(folder):
    assert folder.numbered() == []
    assert folder.newest() is None


def test_the_best_is_not_taken_for_the_newest(folder):
    folder.save_best(state(3), TrainConfig())
    assert folder.newest() is None


# --- damaged and foreign files ---------------------------------------------------------------------------


def cut(path):
    path.write_bytes(path.read_bytes()[:-200])


def flip(path):
    content = bytearray(path.read_bytes())
    content[content.index(torch.full((300,), 3.0).numpy().tobytes()[:64]) + 5] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "cut": cut,
    "one bit": flip,
    "empty": lambda path: path.write_bytes(b""),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "text": lambda path: path.write_text("not a checkpoint"),
    "list": lambda path: torch.save([1, 2], path),
    "weights": lambda path: torch.save({"model": {"weight": torch.ones(2)}}, path),
    "folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_torn_checkpoints_are_passed_over_with_a_message(folder, told, damage):
    save(folder, 2, 3)
    newest = folder.numbered()[0]
    DAMAGES[damage](newest)
    assert step_of(folder.newest()) == 2
    assert len(told) == 1
    assert str(newest) in told[0]
    assert told[0].endswith("The checkpoint before it is used instead.")


def test_if_all_are_torn_the_message_does_not_promise_another(folder, told):
    save(folder, 2, 3)
    for path in folder.numbered():
        cut(path)
    assert folder.newest() is None
    assert len(told) == 2
    assert "step-000000003.pt" in told[0]
    assert told[0].endswith("The checkpoint before it is used instead.")
    assert "step-000000002.pt" in told[1]
    assert told[1].endswith("There is none before it.")


@pytest.mark.parametrize("keep", [1, 2])
def test_torn_checkpoints_do_not_crowd_out_good_ones(tmp_path, told, keep):
    """The run went on from step 10; what it writes then is kept, and not the torn files of later steps."""
    folder = CheckpointFolder(tmp_path, 9, told)
    save(folder, 10, 20, 30)
    for path in folder.numbered()[:2]:
        cut(path)
    assert step_of(folder.newest()) == 10
    folder.keep = keep
    save(folder, 11)
    assert step_of(folder.newest()) == 11
    save(folder, 12)
    assert names(folder) == [f"step-{n:09d}.pt" for n in (11, 12)][-keep:]


class Bomb:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return (open, (self.marker, "w"))


def test_a_hostile_pickle_runs_nothing(tmp_path, folder, told):
    marker = tmp_path / "owned"
    save(folder, 1)
    evil = folder.folder / "step-000000002.pt"
    torch.save({"format": "cbsa-run-1", "model": {}, "x": Bomb(str(marker))}, evil)
    with pytest.raises(CheckpointError, match=r"step-000000002\.pt is torn or not a checkpoint"):
        read_run_checkpoint(evil)
    assert step_of(folder.newest()) == 1
    evil.write_bytes(pickle.dumps(Bomb(str(marker))))
    with pytest.raises(CheckpointError, match=r"step-000000002\.pt"):
        read_run_checkpoint(evil)
    with zipfile.ZipFile(evil, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Bomb(str(marker)), protocol=2))
        archive.writestr("archive/version", "3\n")
    with pytest.raises(CheckpointError, match=r"step-000000002\.pt"):
        read_run_checkpoint(evil)
    assert not marker.exists()
    assert len(told) == 1


@pytest.mark.parametrize(
    "content",
    [
        [1, 2],
        {"state_dict": {"weight": torch.ones(2)}},
        {"format": "another-1", "model": {}},
        {"format": ["cbsa-run-1"], "model": {}},
        {"format": "cbsa-run-1"},
    ],
)
def test_checkpoints_of_others_are_refused(tmp_path, content):
    torch.save(content, tmp_path / "x.pt")
    with pytest.raises(CheckpointError, match=r"x\.pt is not a checkpoint of a run of cbsa"):
        read_run_checkpoint(tmp_path / "x.pt")


def test_files_beyond_all_measure_are_not_opened(tmp_path, monkeypatch):
    torch.save(state(1), tmp_path / "x.pt")
    monkeypatch.setattr("cbsa.train.checkpoint.MAX_BYTES", 100)
    with pytest.raises(CheckpointError, match="more than the limit of 400"):
        read_run_checkpoint(tmp_path / "x.pt")


# --- what is in them -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["digits_cbt", "imagenet_cbt_base", "finetune_pets"])
def test_the_settings_are_stored_inside(folder, name):
    folder.save(state(1), 1, recipe(name))
    assert stored_config(folder.newest()) == recipe(name)


def test_a_state_comes_back_as_it_was(folder):
    content = {
        "model": {"a": torch.randn(3, dtype=torch.float64), "b": torch.tensor(3)},
        "random": [{"python": (3, (1, 2, 3), None), "torch": torch.get_rng_state()}],
        "progress": {"best_top1": 12.5},
    }
    folder.save(content, 5, TrainConfig())
    found = folder.newest()
    assert found["model"]["a"].dtype == torch.float64
    assert all(torch.equal(found["model"][k], v) for k, v in content["model"].items())
    assert found["random"][0]["python"] == (3, (1, 2, 3), None)
    assert torch.equal(found["random"][0]["torch"], torch.get_rng_state())
    assert found["progress"] == {"best_top1": 12.5}


def test_hostile_settings_inside_are_refused(tmp_path):
    config = json.dumps({"optimizer": {"lr": "fast"}})
    torch.save({"format": "cbsa-run-1", "model": {}, "config": config}, tmp_path / "x.pt")
    with pytest.raises(TypeError, match=r"optimizer\.lr must be of type float"):
        stored_config(read_run_checkpoint(tmp_path / "x.pt"))
