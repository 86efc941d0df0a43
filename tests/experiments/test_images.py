"""Images as the commands name them, against the data set read by hand."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from cbsa.data import DataConfig, open_source
from cbsa.experiments.images import ImageChoice, LabelledImages, choose_images, evenly
from cbsa.experiments.masks import DATASETS as WITH_MASKS
from cbsa.experiments.masks import open_masks
from tests.data.samples import encode, pixels

GREY = DataConfig("digits", img_size=8, in_chans=1, mean=(0.25,), std=(0.5,), crop_pct=1.0)


@pytest.mark.parametrize(
    ("total", "count", "expected"),
    [(5, 0, [0, 1, 2, 3, 4]), (5, 9, [0, 1, 2, 3, 4]), (10, 4, [0, 2, 5, 7]), (7, 1, [0])],
)
def test_evenly(total, count, expected):
    assert evenly(total, count).tolist() == expected


def test_the_chosen_images_are_those_of_the_split():
    source = open_source(GREY, train=False)
    images = LabelledImages(ImageChoice("digits", count=10), GREY, batch_size=4)
    assert len(images) == 3
    read, targets = map(torch.cat, zip(*images, strict=True))
    places = [i * len(source) // 10 for i in range(10)]
    assert targets.tolist() == source.labels[places].tolist()
    expected = np.stack([np.asarray(source.read(i)[0]) for i in places]) / 255
    assert torch.allclose(read[:, 0], torch.tensor((expected - 0.25) / 0.5, dtype=torch.float32), atol=1e-6)


def test_another_size():
    images = LabelledImages(ImageChoice("digits", count=2), GREY, img_size=24)
    assert next(iter(images))[0].shape == (2, 1, 24, 24)


def test_a_run_knows_its_data():
    own = DataConfig("folder", root="/data", val_split="valid", holdout=0.1)
    assert choose_images(None, ("folder",), own=own, count=5) == ImageChoice(
        "folder", "/data", "valid", 5, 0.1
    )
    assert choose_images(None, ("folder",), own=own, split="x") == ImageChoice("folder", "/data", "x", 0, 0.0)


def test_names_and_folders(tmp_path):
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "val.parquet").touch()
    (tmp_path / "voc" / "VOC2012" / "SegmentationClass").mkdir(parents=True)
    known = ("digits", "folder", "parquet")
    assert choose_images("digits", known, own=None) == ImageChoice("digits")
    assert choose_images("parquet:/a:b", known, own=None) == ImageChoice("parquet", "/a:b")
    for folder, names, expected in (
        ("rows", known, "parquet"),
        ("", known, "folder"),
        ("voc", WITH_MASKS, "voc"),
        ("rows", WITH_MASKS, "pets"),
    ):
        assert choose_images(str(tmp_path / folder), names, own=None).dataset == expected


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (None, ValueError, "does not say what it was trained on: give the images by --data NAME:FOLDER"),
        ("parket:/data", ValueError, "did you mean 'parquet'"),
        ("/no/such/folder", FileNotFoundError, "'/no/such/folder': there is no such folder"),
    ],
)
def test_wrong_names(text, error, message):
    with pytest.raises(error, match=message):
        choose_images(text, ("digits", "parquet"), own=None)


def test_masks_of_digits_are_their_ink():
    """From 8 of 16 dots on foreground (1), none background (2), in between boundary (3)."""
    masks = open_masks(ImageChoice("digits", count=40))
    assert (len(masks), masks.labels) == (40, "pets")
    digits = load_digits()
    known = {image.astype(int).tobytes(): image for image in digits.images}
    for i in range(40):
        image, mask = masks.read(i)
        dots = known[(np.asarray(image) * (16 / 255)).round().astype(int).tobytes()]
        expected = [[1 if d >= 8 else 2 if d == 0 else 3 for d in row] for row in dots]
        assert mask.tolist() == expected
        assert masks.identify(i).startswith("digits[")


def test_some_masks_of_a_folder(tmp_path):
    for folder in ("images", "annotations/trimaps"):
        (tmp_path / folder).mkdir(parents=True)
    for i in range(4):
        (tmp_path / "images" / f"{i}.jpg").write_bytes(encode(pixels(i), "JPEG"))
        (tmp_path / "annotations" / "trimaps" / f"{i}.png").write_bytes(
            encode(np.full((8, 8), 1 + i % 3, np.uint8))
        )
    (tmp_path / "annotations" / "test.txt").write_text("0\n1\n2\n3\n")
    masks = open_masks(ImageChoice("pets", str(tmp_path), count=2))
    assert [masks.read(i)[1][0, 0] for i in range(2)] == [1, 3]
    assert [masks.identify(i).rpartition("/")[2] for i in range(2)] == ["0.jpg", "2.jpg"]


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (ImageChoice("pets"), "--data pets needs its folder: give --data pets:FOLDER"),
        (ImageChoice("cifar10"), "masks are known of digits, pets and voc: data set='cifar10'"),
    ],
)
def test_masks_that_cannot_be_had(choice, message):
    with pytest.raises(ValueError, match=message):
        open_masks(choice)
