"""Images that cannot be read are counted, replaced in training and left out of evaluation."""

import json

import pytest
import torch

from cbsa.data import CorruptLog, DataConfig, TooManyCorruptImages, open_source
from tests.data.samples import Tiles, encode, eval_loader, join, pixels, train_loader

both_stores = pytest.mark.parametrize("store", ["host", "device"])


def quiet(limit=100, path=None):
    messages = []
    return CorruptLog(limit, path, messages.append), messages


def test_the_log_counts_each_image_once_and_stops_above_its_limit(tmp_path):
    log, messages = quiet(2, tmp_path / "run" / "corrupt.jsonl")
    for name in ("a.jpg", "b.jpg", "a.jpg"):
        log.record(name, "OSError: truncated")
    assert log.count == 2
    assert messages == [f"cannot read {name}: OSError: truncated" for name in ("a.jpg", "b.jpg")]
    with pytest.raises(
        TooManyCorruptImages, match=r"3 images .*\.max_corrupt=2; .*b\.jpg .*; c\.jpg \(bad\)"
    ):
        log.record("c.jpg", "bad")
    lines = [json.loads(line) for line in (tmp_path / "run" / "corrupt.jsonl").read_text().splitlines()]
    assert [line["image"] for line in lines] == ["a.jpg", "b.jpg", "c.jpg"]
    assert lines[2]["error"] == "bad"


def test_without_a_reporter_there_are_warnings():
    with pytest.warns(RuntimeWarning, match=r"cannot read a\.jpg: bad"):
        CorruptLog(1).record("a.jpg", "bad")


@both_stores
@pytest.mark.parametrize("workers", [0, 2])
def test_training_takes_the_next_readable_image(store, workers):
    source = Tiles(12, broken={3, 4, 11})
    log, messages = quiet()
    loader = train_loader(source, config={"store": store, "workers": workers}, corrupt=log)
    for epoch in (0, 1):
        planned = torch.cat([loader.batch_indices(epoch, step) for step in range(3)]).tolist()
        found = join(loader.epoch(epoch))
        assert found["indices"].tolist() == [{3: 5, 4: 5, 11: 0}.get(i, i) for i in planned]
        assert found["targets"].tolist() == [source.labels[i] for i in found["indices"]]
        assert found["valid"].all()
        assert (found["images"].float().std((1, 2, 3)) > 1).all()
    assert log.count == len(messages) == 3


@both_stores
def test_evaluation_leaves_them_out(store):
    source = Tiles(10, broken={3, 4})
    log, _ = quiet()
    found = join(eval_loader(source, config={"store": store}, corrupt=log))
    assert found["indices"].tolist() == [*range(10), -1, -1]
    assert found["valid"].tolist() == [i not in (3, 4) for i in range(10)] + [False, False]
    assert found["targets"][:10].tolist() == source.labels.tolist()
    assert log.count == 2


@both_stores
@pytest.mark.parametrize("workers", [0, 2])
def test_too_many_stop_the_run(store, workers):
    config = {"store": store, "workers": workers, "max_corrupt": 2}
    with pytest.raises(TooManyCorruptImages, match=r"3 images .* data\.max_corrupt=2"):
        list(train_loader(Tiles(12, broken={3, 4, 11}), config=config, corrupt=quiet(2)[0]).epoch(0))
    with pytest.raises(TooManyCorruptImages, match=r"3 images"):
        list(eval_loader(Tiles(12, broken={3, 4, 11}), config=config, corrupt=quiet(2)[0]))


@both_stores
def test_no_readable_image_stops_the_run(store):
    with pytest.raises(TooManyCorruptImages, match="none of the 4 training images can be read"):
        list(train_loader(Tiles(4, broken=range(4)), config={"store": store}, corrupt=quiet()[0]).epoch(0))


def test_files_that_are_no_images(tmp_path):
    for split in ("train", "val"):
        for name in ("cat", "dog"):
            (tmp_path / split / name).mkdir(parents=True)
            for i in range(3):
                (tmp_path / split / name / f"{i}.jpg").write_bytes(encode(pixels(i, 32, 32), "JPEG"))
    whole = encode(pixels(0, 32, 32), "JPEG")
    bad = {
        "damaged.jpg": whole[:2] + bytes(40) + whole[42:],
        "truncated.jpg": whole[: len(whole) * 2 // 3],
        "empty.jpg": b"",
        "text.jpg": b"not an image at all\n",
    }
    for name, data in bad.items():
        (tmp_path / "train" / "dog" / name).write_bytes(data)
    config = DataConfig("folder", str(tmp_path))
    source = open_source(config, train=True)
    assert len(source) == 10
    log, messages = quiet(path=tmp_path / "corrupt.jsonl")
    found = join(train_loader(source, batch_size=10, corrupt=log).epoch(0))
    readable = {i for i in range(10) if source.identify(i).rsplit("/", 1)[1] not in bad}
    assert set(found["indices"].tolist()) == readable
    logged = [json.loads(line)["image"] for line in (tmp_path / "corrupt.jsonl").read_text().splitlines()]
    assert sorted(logged) == sorted(str(tmp_path / "train" / "dog" / name) for name in bad)
    assert any("truncated" in message for message in messages)
    assert join(eval_loader(open_source(config, train=False)))["valid"].sum() == 6


def test_a_file_that_cannot_be_written_stops_nothing(tmp_path):
    """The image is counted and reported all the same."""
    said = []
    (tmp_path / "taken").write_text("a file, not a folder")
    log = CorruptLog(3, tmp_path / "taken" / "corrupt.jsonl", report=said.append)
    log.record("a.jpg", "OSError: truncated")
    assert log.count == 1
    assert "could not be written" in said[0]
    assert said[1] == "cannot read a.jpg: OSError: truncated"
