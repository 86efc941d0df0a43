"""Data sets on disk, against torchvision's own readers and exact counts."""

import hashlib
import pickle

import numpy as np
import pytest
import torchvision
from PIL import Image
from sklearn.datasets import load_digits

from cbsa.data import DATASETS, DataConfig, open_source
from cbsa.data.source import stratified_split
from tests.data.samples import encode, pixels


def write(path, seed, form="JPEG"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode(pixels(seed, 12, 10), form))


def make_folder(root, split, classes, count=3):
    for c, name in enumerate(classes):
        for i in range(count):
            form = "JPEG" if i else "PNG"
            write(root / split / name / f"{c}_{i}.{form}", 10 * c + i, form)


def arrays(source):
    images = [np.array(source.read(i)[0].convert("RGB")) for i in range(len(source))]
    assert [source.read(i)[1] for i in range(len(source))] == list(source.labels)
    return images


def md5(path):
    return hashlib.md5(path.read_bytes()).hexdigest()


def test_digits_are_scikit_learns():
    train, test = (open_source(DataConfig("digits"), train) for train in (True, False))
    assert (len(train), len(test)) == (1438, 359)
    assert list(train.classes) == [str(i) for i in range(10)]
    digits = load_digits()
    read = [source.read(i) for source in (train, test) for i in range(len(source))]
    both = sorted((label, image.tobytes()) for image, label in read)
    scaled = np.round(digits.images * 255 / 16).astype(np.uint8)
    assert both == sorted((int(y), x.tobytes()) for x, y in zip(scaled, digits.target, strict=True))
    counts = np.bincount(digits.target)
    assert np.abs(np.bincount(test.labels) - 0.2 * counts).max() <= 0.5
    with pytest.raises(ValueError, match=r"data\.train_split='val'"):
        open_source(DataConfig("digits", train_split="val"), train=True)


def test_folders_are_read_as_torchvision_does(tmp_path):
    make_folder(tmp_path, "train", ["b", "a", "C"])
    make_folder(tmp_path, "valid", ["b", "a", "C"], 2)
    write(tmp_path / "train" / "a" / "below" / "x.webp", 99, "WEBP")
    (tmp_path / "train" / "a" / "notes.txt").write_text("no image")
    for train, split in ((True, "train"), (False, "valid")):
        source = open_source(DataConfig("folder", str(tmp_path)), train)
        theirs = torchvision.datasets.ImageFolder(str(tmp_path / split))
        assert list(source.classes) == theirs.classes
        assert [(source.identify(i), source.labels[i]) for i in range(len(source))] == theirs.samples
        assert all(np.array_equal(x, np.array(y)) for x, (y, _) in zip(arrays(source), theirs, strict=True))


def test_imagenet_is_read_from_its_class_folders(tmp_path):
    for split in ("train", "val"):
        make_folder(tmp_path, split, ["n01440764", "n01443537"])
    config = DataConfig("imagenet", str(tmp_path))
    assert len(open_source(config, True)) == len(open_source(config, False)) == 6
    assert list(open_source(config, True).classes) == ["n01440764", "n01443537"]


def test_one_split_alone_can_be_evaluated(tmp_path):
    make_folder(tmp_path, "test", ["a", "b"])
    config = DataConfig("folder", str(tmp_path))
    assert len(open_source(config, train=False)) == 6
    with pytest.raises(FileNotFoundError, match=r"no split 'train' or 'trainval'; found 'test'.*train_split"):
        open_source(config, train=True)
    assert len(open_source(DataConfig("folder", str(tmp_path), train_split="test"), train=True)) == 6


def test_folders_whose_classes_differ_are_refused(tmp_path):
    make_folder(tmp_path, "train", ["a", "b", "c"])
    make_folder(tmp_path, "val", ["a", "d"])
    for train in (True, False):
        with pytest.raises(ValueError, match=r"differ in their classes; only in .*b, c|d; only in .*b, c|d"):
            open_source(DataConfig("folder", str(tmp_path)), train)


def test_empty_and_missing_folders(tmp_path):
    config = DataConfig("folder", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="found none"):
        open_source(config, train=True)
    (tmp_path / "train").mkdir()
    with pytest.raises(FileNotFoundError, match="has no class folders"):
        open_source(config, train=True)
    (tmp_path / "train" / "a").mkdir()
    with pytest.raises(ValueError, match="train/a holds no image"):
        open_source(config, train=True)
    make_folder(tmp_path, "train", ["a"])
    with pytest.raises(FileNotFoundError, match=r"no split 'val' or 'valid' .*data\.holdout"):
        open_source(config, train=False)


@pytest.mark.parametrize("dataset", [name for name in DATASETS if name != "digits"])
def test_a_missing_root_is_named(dataset, tmp_path):
    with pytest.raises(ValueError, match=r"data\.root is empty"):
        open_source(DataConfig(dataset), train=True)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        open_source(DataConfig(dataset, str(tmp_path / "nowhere")), train=True)


def make_cifar(root, kind, monkeypatch):
    """Files in CIFAR's own layout, ten images each, and their checksums in torchvision's lists."""
    fine = kind is torchvision.datasets.CIFAR100
    folder = root / kind.base_folder
    folder.mkdir(parents=True)
    images = {}
    for name, entries in (("train_list", kind.train_list), ("test_list", kind.test_list)):
        listed = []
        for file, _ in entries:
            data = np.random.default_rng(len(images)).integers(0, 256, (10, 3072), dtype=np.uint8)
            labels = list(range(10))
            content = {"data": data} | ({"fine_labels": labels} if fine else {"labels": labels})
            (folder / file).write_bytes(pickle.dumps(content))
            listed.append([file, md5(folder / file)])
            images[file] = data.reshape(10, 3, 32, 32).transpose(0, 2, 3, 1)
        monkeypatch.setattr(kind, name, listed)
    meta = dict(kind.meta)
    names = [f"class {i}" for i in range(100 if fine else 10)]
    (folder / meta["filename"]).write_bytes(pickle.dumps({meta["key"]: names}))
    monkeypatch.setattr(kind, "meta", meta | {"md5": md5(folder / meta["filename"])})
    return images


@pytest.mark.parametrize("dataset", ["cifar10", "cifar100"])
def test_cifar_is_read_from_its_files(dataset, tmp_path, monkeypatch):
    kind = getattr(torchvision.datasets, dataset.upper())
    images = make_cifar(tmp_path, kind, monkeypatch)
    config = DataConfig(dataset, str(tmp_path))
    train, test = open_source(config, True), open_source(config, False)
    assert len(train) == 10 * len(kind.train_list)
    assert len(train.classes) == (10 if dataset == "cifar10" else 100)
    last = "test_batch" if dataset == "cifar10" else "test"
    assert np.array_equal(np.stack(arrays(test)), images.pop(last))
    assert np.array_equal(np.stack(arrays(train)), np.concatenate(list(images.values())))
    assert test.identify(3) == f"{dataset}/test[3]"
    (tmp_path / kind.base_folder / last).write_bytes(b"changed")
    with pytest.raises(FileNotFoundError, match=rf"{dataset} was not found whole .* data\.download=true"):
        open_source(config, True)


@pytest.mark.parametrize("dataset", ["pets", "cifar10"])
def test_parquet_files_in_the_folder_of_torchvisions_are_pointed_at(dataset, tmp_path):
    (tmp_path / "test.parquet").touch()
    with pytest.raises(FileNotFoundError, match=r"holds test\.parquet .* are read by data\.dataset=parquet"):
        open_source(DataConfig(dataset, str(tmp_path)), True)


def test_flowers_are_read_from_their_folder(tmp_path, monkeypatch):
    savemat = pytest.importorskip("scipy.io").savemat
    base = tmp_path / "flowers-102"
    for i in range(1, 13):
        write(base / "jpg" / f"image_{i:05d}.jpg", i)
    labels = np.array([5, 1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 102])
    splits = {"trnid": [2, 3, 4], "valid": [5, 6], "tstid": [1, 7, 8, 9, 10, 11, 12]}
    savemat(base / "imagelabels.mat", {"labels": labels})
    savemat(base / "setid.mat", {name: np.array(ids) for name, ids in splits.items()})
    known = torchvision.datasets.Flowers102._file_dict
    sums = {key: (known[key][0], md5(base / known[key][0])) for key in ("label", "setid")}
    monkeypatch.setattr(torchvision.datasets.Flowers102, "_file_dict", known | sums)
    cases = {("", True): "trnid", ("", False): "tstid", ("val", False): "valid"}
    for (split, train), name in cases.items():
        source = open_source(DataConfig("flowers102", str(tmp_path), val_split=split), train)
        assert [int(source.identify(i)[-9:-4]) for i in range(len(source))] == splits[name]
        assert source.labels.tolist() == [labels[i - 1] - 1 for i in splits[name]]
        assert len(source.classes) == 102
    both = open_source(DataConfig("flowers102", str(tmp_path), train_split="trainval"), True)
    assert [int(both.identify(i)[-9:-4]) for i in range(len(both))] == [2, 3, 4, 5, 6]
    expected = Image.open(base / "jpg" / "image_00005.jpg")
    assert np.array_equal(np.array(both.read(3)[0]), np.array(expected))


def test_pets_are_read_from_their_folder(tmp_path):
    base = tmp_path / "oxford-iiit-pet"
    names = ["Abyssinian_1", "american_bulldog_7", "Abyssinian_2", "american_bulldog_3"]
    for i, name in enumerate(names):
        write(base / "images" / f"{name}.jpg", i)
    (base / "annotations").mkdir()
    (base / "annotations" / "trainval.txt").write_text("Abyssinian_1 1 1 1\namerican_bulldog_7 2 2 1\n")
    (base / "annotations" / "test.txt").write_text("american_bulldog_3 2 2 1\nAbyssinian_2 1 1 1\n")
    config = DataConfig("pets", str(tmp_path))
    train, test = open_source(config, True), open_source(config, False)
    assert list(train.classes) == ["Abyssinian", "American Bulldog"]
    assert (train.labels.tolist(), test.labels.tolist()) == ([0, 1], [1, 0])
    assert test.identify(0) == str(base / "images" / "american_bulldog_3.jpg")
    theirs = torchvision.datasets.OxfordIIITPet(tmp_path, "test")
    assert all(np.array_equal(x, np.array(y)) for x, (y, _) in zip(arrays(test), theirs, strict=False))
    with pytest.raises(ValueError, match=r"data\.val_split='val': expected one of 'trainval', 'test'"):
        open_source(DataConfig("pets", str(tmp_path), val_split="val"), False)


def test_a_set_to_be_downloaded_says_so(tmp_path):
    for dataset in ("cifar10", "cifar100", "flowers102", "pets"):
        with pytest.raises(FileNotFoundError, match=r"holds nothing .* Pass data\.download=true"):
            open_source(DataConfig(dataset, str(tmp_path)), train=True)


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5])
def test_the_holdout_is_drawn_per_class_and_the_same_for_every_run(share):
    config = DataConfig("digits", holdout=share)
    whole = open_source(DataConfig("digits"), True)
    kept, held = open_source(config, True), open_source(config, False)
    names = [[s.identify(i) for i in range(len(s))] for s in (kept, held)]
    assert sorted(names[0] + names[1]) == sorted(whole.identify(i) for i in range(len(whole)))
    wanted = share * np.bincount(whole.labels)
    assert np.abs(np.bincount(held.labels) - wanted).max() <= 0.5
    again = open_source(config, False)
    assert [again.identify(i) for i in range(len(again))] == names[1]
    assert kept.read(5)[1] == kept.labels[5]


def test_a_class_of_one_image_stays_in_training():
    kept, held = stratified_split(np.array([0, 1, 1, 2, 2, 2]), 0.9, "test")
    assert 0 in kept
    assert len(held) == 1 + 2
