"""The log of a run: JSON lines, CSV and TensorBoard say the same, and survive a crash."""

import csv
import json
from importlib.util import find_spec

import pytest

from cbsa.train.log import RunLog, read_epochs, read_log

EPOCHS = [
    {"step": 10, "epoch": 1, "train_loss": 2.25, "val_loss": 2.0, "val_top1": 25.0, "lr": 1e-3},
    {"step": 20, "epoch": 2, "train_loss": 1.5, "lr": 5e-4},  # an epoch that was not evaluated
    {"step": 30, "epoch": 3, "train_loss": 1.0, "val_loss": 1.25, "val_top1": 50.0, "lr": 1e-4},
]


class Told(list):
    def __call__(self, message):
        self.append(message)


def write(folder, epochs=EPOCHS):
    log = RunLog(folder, Told())
    log.rewind(0)
    for record in epochs:
        for step in (record["step"] - 5, record["step"]):
            log.add("step", {"step": step, "loss": 3 - step / 30, "lr": record["lr"]})
        log.add("epoch", record)
    log.close()
    assert log.tell == []
    return log


def rows(folder):
    with (folder / "epochs.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_entry_is_a_line_of_json(tmp_path):
    write(tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["step", "step", "epoch"] * 3
    assert [line["step"] for line in lines] == [5, 10, 10, 15, 20, 20, 25, 30, 30]
    assert [line for line in lines if line["kind"] == "epoch"] == [{"kind": "epoch", **r} for r in EPOCHS]
    assert read_log(tmp_path) == lines
    assert read_epochs(tmp_path) == [{"kind": "epoch", **r} for r in EPOCHS]


def test_floats_come_back_to_the_last_bit(tmp_path):
    value = 0.1 + 0.2
    log = RunLog(tmp_path, Told())
    log.add("epoch", {"step": 1, "train_loss": value})
    assert read_epochs(tmp_path)[0]["train_loss"] == value
    assert float(rows(tmp_path)[0]["train_loss"]) == value


def test_the_epochs_are_a_table(tmp_path):
    write(tmp_path)
    found = rows(tmp_path)
    assert list(found[0]) == ["step", "epoch", "train_loss", "val_loss", "val_top1", "lr"]
    for row, record in zip(found, EPOCHS, strict=True):
        assert {k: float(v) for k, v in row.items() if v} == record
    assert found[1]["val_loss"] == ""


def test_the_table_is_there_after_each_epoch(tmp_path):
    log = RunLog(tmp_path, Told())
    for done, record in enumerate(EPOCHS, 1):
        log.add("epoch", record)
        assert len(rows(tmp_path)) == done
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("step", [0, 10, 12, 20, 30, 99])
def test_rewinding_drops_later_entries(tmp_path, step):
    write(tmp_path)
    before = read_log(tmp_path)
    log = RunLog(tmp_path, Told())
    log.rewind(step)
    assert read_log(tmp_path) == [r for r in before if r["step"] <= step]
    again = {"step": 40, "epoch": 4, "train_loss": 0.5, "lr": 1e-5}
    log.add("epoch", again)
    log.close()
    kept = [r for r in EPOCHS if r["step"] <= step]
    assert [int(row["step"]) for row in rows(tmp_path)] == [r["step"] for r in [*kept, again]]


def test_a_run_that_is_repeated_writes_the_same_log(tmp_path):
    """Rewound to the middle and written again, it is what it was."""
    write(tmp_path)
    before = (tmp_path / "log.jsonl").read_text(), (tmp_path / "epochs.csv").read_text()
    log = RunLog(tmp_path, Told())
    log.rewind(10)
    for record in EPOCHS[1:]:
        for step in (record["step"] - 5, record["step"]):
            log.add("step", {"step": step, "loss": 3 - step / 30, "lr": record["lr"]})
        log.add("epoch", record)
    log.close()
    assert ((tmp_path / "log.jsonl").read_text(), (tmp_path / "epochs.csv").read_text()) == before


@pytest.mark.parametrize(
    "torn", ['{"kind": "ep', "{", '{"kind": "epoch", "step": 40, "train_lo', "\0\0\0\0", "[1, 2]", "3"]
)
def test_a_torn_last_line_is_left_out(tmp_path, torn):
    write(tmp_path)
    whole = read_log(tmp_path)
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write(torn)
    assert read_log(tmp_path) == whole
    log = RunLog(tmp_path, Told())
    log.rewind(30)
    log.add("step", {"step": 31, "loss": 1.0})
    log.close()
    assert read_log(tmp_path) == [*whole, {"kind": "step", "step": 31, "loss": 1.0}]
    for line in (tmp_path / "log.jsonl").read_text().splitlines():
        json.loads(line)


def test_bytes_that_are_no_text_are_left_out(tmp_path):
    """What a power cut may leave at the end of a file."""
    write(tmp_path)
    whole = read_log(tmp_path)
    with (tmp_path / "log.jsonl").open("ab") as file:
        file.write(b'{"kind": "step", "step": 31, "lo\xff\xfe\x00\xc3')
    assert read_log(tmp_path) == whole


def test_a_log_that_cannot_be_written_is_reported_once(tmp_path):
    log = RunLog(tmp_path / "gone", Told())
    log.add("step", {"step": 1, "loss": 1.0})
    log.add("epoch", {"step": 1, "train_loss": 1.0})
    assert len(log.tell) == 1
    assert "the log could not be written" in log.tell[0]
    (tmp_path / "gone").mkdir()
    log.add("step", {"step": 2, "loss": 1.0})
    assert [r["step"] for r in read_log(tmp_path / "gone")] == [2]


def test_a_folder_without_a_log_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no log\.jsonl: it is not the folder of a run"):
        read_epochs(tmp_path)


# --- TensorBoard -----------------------------------------------------------------------------------------

needs_tensorboard = pytest.mark.skipif(
    find_spec("tensorboard") is None, reason="TensorBoard is not installed"
)


def board(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder / "tensorboard"))
    accumulator.Reload()
    return {
        name: [(event.step, pytest.approx(event.value)) for event in accumulator.Scalars(name)]
        for name in accumulator.Tags()["scalars"]
    }


@needs_tensorboard
def test_tensorboard_has_the_same_numbers(tmp_path):
    write(tmp_path)
    found = board(tmp_path)
    names = ("epoch", "train_loss", "val_loss", "val_top1", "lr")
    assert set(found) == {*(f"epoch/{n}" for n in names), "step/loss", "step/lr"}
    for name in names:
        assert found[f"epoch/{name}"] == [(r["step"], r[name]) for r in EPOCHS if name in r]
    steps = [r for r in read_log(tmp_path) if r["kind"] == "step"]
    assert found["step/loss"] == [(r["step"], r["loss"]) for r in steps]


@needs_tensorboard
def test_tensorboard_forgets_what_is_rewound(tmp_path):
    write(tmp_path)
    log = RunLog(tmp_path, Told())
    log.rewind(10)
    log.add("epoch", {"step": 20, "train_loss": 9.0})
    log.close()
    assert board(tmp_path)["epoch/train_loss"] == [(10, 2.25), (20, 9.0)]


def test_without_tensorboard_nothing_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr("cbsa.train.log.find_spec", lambda name: None)
    write(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["epochs.csv", "log.jsonl"]
