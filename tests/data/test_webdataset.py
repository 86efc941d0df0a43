"""Images in tar shards, written here as the webdataset library does."""

import io
import json
import pickle
import tarfile

import numpy as np
import pytest

from cbsa.data import DataConfig, open_source
from tests.data.samples import encode, eval_loader, join, pixels


def write(path, members):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def samples(start, stop, label=lambda i: i % 3):
    for i in range(start, stop):
        yield f"{i:06d}.png", encode(pixels(i))
        yield f"{i:06d}.cls", str(label(i)).encode()


def opened(root, train=True, **options):
    return open_source(DataConfig("webdataset", str(root), **options), train)


def check(source, start, stop):
    assert len(source) == stop - start
    for i, number in enumerate(range(start, stop)):
        image, label = source.read(i)
        assert np.array_equal(np.array(image), pixels(number))
        assert label == source.labels[i] == number % 3


@pytest.fixture
def shards(tmp_path):
    write(tmp_path / "train-000000.tar", samples(0, 4))
    write(tmp_path / "train-000001.tar", samples(4, 9))
    write(tmp_path / "val-000000.tar", samples(20, 22))
    return tmp_path


def test_a_folder_of_shards(shards):
    train, val = opened(shards), opened(shards, train=False)
    check(train, 0, 9)
    check(val, 20, 22)
    assert len(train.classes) == len(val.classes) == 3
    assert train.identify(5) == f"{shards / 'train-000001.tar'}:000005"
    check(pickle.loads(pickle.dumps(train)), 0, 9)


def test_patterns_of_shards(shards):
    check(opened(f"{shards}/{{train,val}}-{{000000..000000}}.tar"), 0, 4)
    check(opened(f"{shards}/train-{{000000..000001}}.tar"), 0, 9)
    check(opened(f"{shards}/train-*.tar"), 0, 9)
    with pytest.raises(FileNotFoundError, match=r"there is no .*train-000002\.tar"):
        opened(f"{shards}/train-{{000000..000003}}.tar")
    with pytest.raises(FileNotFoundError, match=r"no split 'val' .*; found 'train'"):
        opened(f"{shards}/train-*.tar", train=False)


def test_sub_folders_and_shards_without_a_split(tmp_path):
    write(tmp_path / "sub" / "train" / "0.tar", samples(0, 3))
    write(tmp_path / "sub" / "validation" / "0.tar", samples(3, 5))
    check(opened(tmp_path / "sub"), 0, 3)
    check(opened(tmp_path / "sub", train=False), 3, 5)
    write(tmp_path / "flat" / "pictures-0.tar", samples(0, 12))
    check(opened(tmp_path / "flat"), 0, 12)
    with pytest.raises(FileNotFoundError, match="no split 'val'"):
        opened(tmp_path / "flat", train=False)
    assert len(opened(tmp_path / "flat", holdout=0.25)) == 9
    assert len(opened(tmp_path / "flat", train=False, holdout=0.25)) == 3


def test_json_labels_folders_and_other_members(tmp_path):
    members = [
        ("x/a.b.txt", b"caption"),
        ("x/a.JPG", encode(pixels(0), "JPEG")),
        ("x/a.json", json.dumps({"label": 2, "who": "me"}).encode()),
        ("y/a.png", encode(pixels(1))),
        ("y/a.seg.png", encode(pixels(2))),
        ("y/a.json", b'{"who": "no label, but there is a .cls"}'),
        ("y/a.cls", b"1\n"),
        ("z.json", b"{}"),
    ]
    write(tmp_path / "train.tar", members)
    source = opened(tmp_path)
    assert source.labels.tolist() == [2, 1]
    assert np.array_equal(np.array(source.read(1)[0]), pixels(1))
    assert source.identify(1).endswith("train.tar:y/a")


def test_workers_read_the_shards_too(shards):
    found = join(eval_loader(opened(shards), config={"workers": 2}))
    expected = np.stack([pixels(i) for i in range(9)]).transpose(0, 3, 1, 2)
    assert np.array_equal(found["images"][found["valid"]].numpy(), expected)


def test_every_truncation_is_noticed(shards):
    shard = shards / "train-000001.tar"
    whole = shard.read_bytes()
    with tarfile.open(shard) as tar:
        members = tar.getmembers()
    last = members[-1]
    cuts = {members[2].offset, members[2].offset + 100, members[2].offset_data + 5, last.offset_data + 1}
    for cut in [*cuts, last.offset_data + 512, 0]:
        shard.write_bytes(whole[:cut])
        with pytest.raises(ValueError, match=r"train-000001\.tar is truncated or"):
            opened(shards)
    damaged = bytearray(whole)
    damaged[members[4].offset : members[4].offset + 512] = b"x" * 512
    shard.write_bytes(damaged)
    with pytest.raises(ValueError, match=r"train-000001\.tar is truncated or damaged"):
        opened(shards)


def test_what_cannot_be_used_is_named(tmp_path):
    for root in ("https://host/train-{0..3}.tar", "pipe:cat train.tar", "s3://bucket/x.tar"):
        with pytest.raises(ValueError, match="URLs and pipes are not read"):
            opened(root)
    with pytest.raises(FileNotFoundError, match=r"holds no \.tar shard"):
        opened(tmp_path)
    with pytest.raises(ValueError, match=r"\{9\.\.1\} must rise"):
        opened(f"{tmp_path}/train-{{9..1}}.tar")
    cases = {
        "no label": ([("a.png", b"x")], "1 samples have neither .cls nor .json, such as 'a'"),
        "bad label": ([("a.png", b"x"), ("a.cls", b"cat")], "a.cls does not hold an integer label"),
        "bad json": ([("a.png", b"x"), ("a.json", b"[1]")], "a.json does not hold an integer label"),
        "two images": ([("a.png", b"x"), ("a.jpg", b"x")], "'a' has two images"),
        "negative": ([("a.png", b"x"), ("a.cls", b"-1")], "labels from -1 to -1"),
        "nothing": ([("a.txt", b"x")], "holds no images"),
    }
    for name, (members, message) in cases.items():
        write(tmp_path / name / "train.tar", members)
        with pytest.raises(ValueError, match=message.replace(".", r"\.")):
            opened(tmp_path / name)
    with tarfile.open(tmp_path / "nothing" / "train.tar", "w:gz"):
        pass
    with pytest.raises(ValueError, match="not an uncompressed tar file"):
        opened(tmp_path / "nothing")
