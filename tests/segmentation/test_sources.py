"""Segmentation data sets in the layouts of their authors, written here, and the real ones where they are."""

import pickle

import numpy as np
import pytest

from cbsa.data import LabelSet, MaskDataConfig, open_segmentation
from cbsa.data.label_sets import (
    ADE20K,
    CAMVID,
    CITYSCAPES,
    IGNORE,
    PASCAL_CONTEXT,
    PASCAL_CONTEXT_60,
    PETS,
    VOC,
    voc_colours,
)
from cbsa.data.pascal_context import convert_pascal_context
from tests.data.real import real_data
from tests.segmentation.scenes import CLASSES, save, scene, write_folder

IMAGE = scene(0)[0][:6, :8]


def mask_of(*values):
    """A mask in which some integers occur in turn."""
    return np.resize(np.array(values, dtype=np.uint8), (6, 8))


def open_val(dataset, root, **settings):
    return open_segmentation(MaskDataConfig(dataset, str(root), **settings), train=False)


def test_plain_folders(tmp_path):
    write_folder(tmp_path, masks="annotations")
    config = MaskDataConfig("folder", str(tmp_path))
    train, val = (open_segmentation(config, train) for train in (True, False))
    assert (len(train), len(val)) == (12, 5)
    assert train.classes == CLASSES
    for source in (train, pickle.loads(pickle.dumps(train))):
        image, mask = source.read(3)
        assert np.array_equal(np.asarray(image), scene(3)[0])
        assert np.array_equal(mask, scene(3)[1])
    assert val.identify(1) == str(tmp_path / "images/val/001.png")


def test_folders_below_the_split_are_kept_apart(tmp_path):
    """Images of one name in several folders have their own masks."""
    write_folder(tmp_path)
    for i, place in enumerate("ab"):
        save(tmp_path / f"images/test/{place}/x.jpg", IMAGE)
        save(tmp_path / f"masks/test/{place}/x.png", mask_of(i))
    source = open_val("folder", tmp_path, val_split="test")
    assert [source.read(i)[1].max() for i in range(2)] == [0, 1]


def test_an_image_without_a_mask_is_named(tmp_path):
    write_folder(tmp_path)
    (tmp_path / "masks/val/002.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"1 of 5 images in .*images/val have no mask in .*: 002.png"):
        open_val("folder", tmp_path)


def test_an_image_with_several_masks_is_named(tmp_path):
    write_folder(tmp_path)
    save(tmp_path / "masks/val/002.bmp", mask_of(0))
    with pytest.raises(ValueError, match=r"val/002.png has several masks in .*: 002.bmp, 002.png; keep one"):
        open_val("folder", tmp_path)


def test_links_are_followed_but_not_in_circles(tmp_path):
    """Folders that lie elsewhere, as large sets do; macOS's companions of files are no images."""
    write_folder(tmp_path / "set")
    for kind in ("images", "masks"):
        (tmp_path / f"set/{kind}/val").rename(tmp_path / kind)
        (tmp_path / f"set/{kind}/val").mkdir()
        (tmp_path / f"set/{kind}/val/linked").symlink_to(tmp_path / kind)
    (tmp_path / "images/again").symlink_to(tmp_path / "images")
    (tmp_path / "images/up").symlink_to(tmp_path / "set/images")
    (tmp_path / "images/._000.png").write_bytes(b"resource fork")
    source = open_val("folder", tmp_path / "set")
    assert [source.masks.images[i] for i in range(2)] == [f"images/val/linked/00{i}.png" for i in range(2)]
    assert len(source) == 5


@pytest.mark.parametrize("nested", [False, True])
def test_ade20k(tmp_path, nested):
    root = tmp_path / "ADEChallengeData2016" if nested else tmp_path
    save(root / "images/validation/ADE_val_00000001.jpg", IMAGE)
    save(root / "annotations/validation/ADE_val_00000001.png", mask_of(0, 1, 150))
    source = open_val("ade20k", tmp_path)
    assert len(source.classes) == 150
    assert source.read(0)[1].ravel()[:3].tolist() == [IGNORE, 0, 149]
    with pytest.raises(FileNotFoundError, match="has no annotations/training"):
        open_segmentation(MaskDataConfig("ade20k", str(tmp_path)), train=True)


def test_ade20k_in_one_folder(tmp_path):
    """Both splits in one folder are told apart by the names of their files."""
    for name in ("ADE_val_00000001", "ADE_train_00000001", "ADE_train_00000002"):
        save(tmp_path / f"images/{name}.jpg", IMAGE)
        save(tmp_path / f"annotations/{name}.png", mask_of(1))
    config = MaskDataConfig("ade20k", str(tmp_path))
    assert [len(open_segmentation(config, train)) for train in (True, False)] == [2, 1]


def test_real_ade20k():
    source = open_val("ade20k", real_data("ade20k-sample"))
    assert len(source) == 3
    image, mask = source.read(0)
    assert image.size == (683, 512)
    assert mask.shape == (512, 683)
    assert {source.classes[c] for c in np.unique(mask) if c != IGNORE} >= {"wall", "building", "sky"}


@pytest.mark.parametrize("ends", ["labelIds", "labelTrainIds"])
def test_cityscapes(tmp_path, ends):
    stem = "aachen/aachen_000000_000019"
    save(tmp_path / f"leftImg8bit/val/{stem}_leftImg8bit.png", IMAGE)
    written = (7, 33, 26, 0, 9) if ends == "labelIds" else (0, 18, 13, 255, 255)
    save(tmp_path / f"gtFine/val/{stem}_gtFine_{ends}.png", mask_of(*written))
    save(tmp_path / f"gtFine/val/{stem}_gtFine_color.png", IMAGE)
    source = open_val("cityscapes", tmp_path)
    assert source.read(0)[1].ravel()[:5].tolist() == [0, 18, 13, IGNORE, IGNORE]
    assert [source.classes[i] for i in (0, 13, 18)] == ["road", "car", "bicycle"]


def test_cityscapes_without_annotations(tmp_path):
    save(tmp_path / "leftImg8bit/val/a/a_1_leftImg8bit.png", IMAGE)
    with pytest.raises(FileNotFoundError, match="has no gtFine/val: give the folder with leftImg8bit/ and"):
        open_val("cityscapes", tmp_path)
    (tmp_path / "gtFine/val/a").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match=r"1 of 1 images .* have no mask"):
        open_val("cityscapes", tmp_path)


@pytest.mark.parametrize(
    ("dataset", "expected"), [("pascal_context", [IGNORE, 0, 58]), ("pascal_context_60", [0, 1, 59])]
)
def test_pascal_context(tmp_path, dataset, expected):
    root = tmp_path / "VOCdevkit/VOC2010"
    save(root / "JPEGImages/2008_000002.jpg", IMAGE)
    save(root / "SegmentationClassContext/2008_000002.png", mask_of(0, 1, 59))
    (root / "ImageSets/SegmentationContext").mkdir(parents=True)
    (root / "ImageSets/SegmentationContext/val.txt").write_text("2008_000002\n")
    source = open_val(dataset, tmp_path)
    assert source.read(0)[1].ravel()[:3].tolist() == expected
    assert source.classes[-1] == "wood"


def write_label_files(root, splits=(("train", 2), ("val", 1))):
    """Pascal-Context as its authors give it: VOC 2010, and a MATLAB file of 459 classes for each image."""
    io = pytest.importorskip("scipy.io")
    voc, ids = root / "VOC2010", np.array([[0, 2, 458], [1, 9, 459]], dtype=np.uint16)
    for split, count in splits:
        names = [f"{split}_{i}" for i in range(count)]
        (voc / "ImageSets/Main").mkdir(parents=True, exist_ok=True)
        (voc / f"ImageSets/Main/{split}.txt").write_text("".join(f"{name}\n" for name in names))
        for name in names:
            save(voc / f"JPEGImages/{name}.jpg", IMAGE[:2, :3])
            (root / "trainval").mkdir(exist_ok=True)
            io.savemat(root / f"trainval/{name}.mat", {"LabelMap": ids}, do_compression=True)
    return voc


def test_pascal_context_is_converted_from_its_own_label_files(tmp_path):
    voc, seen = write_label_files(tmp_path), []
    done = convert_pascal_context(tmp_path, voc, lambda *counts: seen.append(counts))
    assert done == {"train": 2, "val": 1}
    assert seen == [(1, 3), (2, 3), (3, 3)]
    source = open_val("pascal_context_60", voc)
    _, classes = source.read(0)
    assert [[source.classes[c] for c in row] for row in classes] == [
        ["background", "aeroplane", "wood"],  # 2 and 458 of the 459
        ["background", "bag", "background"],  # "accordion", 9, and the last, "wool"
    ]
    assert len(open_segmentation(MaskDataConfig("pascal_context", str(voc)), train=True)) == 2
    assert open_val("pascal_context", voc).read(0)[1].tolist() == [[255, 0, 58], [255, 1, 255]]


def test_label_files_that_are_none(tmp_path):
    voc = write_label_files(tmp_path)
    io, file = pytest.importorskip("scipy.io"), tmp_path / "trainval/val_0.mat"
    for content, message in (
        ({"LabelMap": np.array([[460]], dtype=np.uint16)}, "labels from 460 to 460, expected 0 to 459"),
        ({"LabelMap": np.array([[0.5]])}, "must be integers"),
        ({"Other": np.array([[1]])}, "not a label file of Pascal-Context"),
    ):
        io.savemat(file, content)
        with pytest.raises(ValueError, match=message):
            convert_pascal_context(tmp_path, voc)
    assert not (voc / "ImageSets/SegmentationContext/val.txt").exists()
    file.write_bytes(b"no MATLAB file")
    with pytest.raises(ValueError, match=r"val_0\.mat is not a label file"):
        convert_pascal_context(tmp_path, voc)
    file.unlink()
    with pytest.raises(FileNotFoundError, match=r"1 of 3 images have no label file in .*, such as val_0.mat"):
        convert_pascal_context(tmp_path, voc)
    with pytest.raises(FileNotFoundError, match="has no JPEGImages/: give the folder of VOC2010"):
        convert_pascal_context(tmp_path, tmp_path)


def test_voc(tmp_path):
    save(tmp_path / "JPEGImages/a.jpg", IMAGE)
    save(tmp_path / "SegmentationClass/a.png", mask_of(0, 20, 255))
    (tmp_path / "ImageSets/Segmentation").mkdir(parents=True)
    (tmp_path / "ImageSets/Segmentation/val.txt").write_text("a\nb\n")
    source = open_val("voc", tmp_path)
    assert source.read(0)[1].ravel()[:3].tolist() == [0, 20, IGNORE]
    with pytest.raises(FileNotFoundError, match=r"b\.jpg"):
        source.read(1)
    (tmp_path / "SegmentationClass/a.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"SegmentationClass/a\.png"):
        source.read(0)


@pytest.mark.parametrize(
    ("dataset", "folder", "counts", "size"),
    [("camvid", "camvid", (367, 101), (360, 480)), ("pets", "oxford-pets", (3680, 3669), None)],
)
def test_real_parquet(dataset, folder, counts, size):
    config = MaskDataConfig(dataset, str(real_data(folder)))
    sources = [open_segmentation(config, train) for train in (True, False)]
    assert tuple(map(len, sources)) == counts
    image, mask = sources[1].read(7)
    assert mask.shape == (image.height, image.width) == (size or mask.shape)
    assert set(np.unique(mask)) <= {*range(len(sources[1].classes)), IGNORE}


def test_labels_outside_the_classes_are_refused(tmp_path):
    write_folder(tmp_path)
    save(tmp_path / "masks/val/000.png", np.full((24, 32), 7, dtype=np.uint8))
    source = open_val("folder", tmp_path)
    with pytest.raises(
        ValueError, match="labels 7 outside of the 3 classes; expected 0–2, or 255 for pixels"
    ):
        source.read(0)
    everything = np.arange(256, dtype=np.uint8)[None]
    for labels, wrong in (
        (ADE20K, 105),
        (CITYSCAPES, 221),
        (PASCAL_CONTEXT, 195),
        (CAMVID, 243),
        (PETS, 253),
    ):
        with pytest.raises(ValueError, match=r"has the labels \d+, .*, … outside of"):
            labels.encode(everything)
        allowed = np.array([[v for v in range(256) if labels._known[v]]], dtype=np.uint8)
        assert 256 - allowed.size == wrong
        assert set(labels.encode(allowed).ravel()) - {IGNORE} == set(range(len(labels.classes)))
    with pytest.raises(ValueError, match=r"expected 1–3$"):
        PETS.encode(everything)


def test_a_mask_of_another_size_is_refused(tmp_path):
    write_folder(tmp_path)
    save(tmp_path / "masks/val/000.png", np.zeros((32, 24), dtype=np.uint8))
    with pytest.raises(ValueError, match="the image has 32×24 pixels, its mask 24×32"):
        open_val("folder", tmp_path).read(0)


def test_wrong_folders_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"data.root is empty: give the folder of data.dataset='voc'"):
        open_segmentation(MaskDataConfig("voc"), train=True)
    for dataset, message in (
        ("folder", r"must hold images/SPLIT/ and one of masks/SPLIT/"),
        ("ade20k", "has no images/ and annotations/"),
        ("pascal_context", "has no SegmentationClassContext/: give the folder of VOC2010"),
        ("camvid", "has no split 'val': found no Parquet file; give the folder of CamVid"),
    ):
        with pytest.raises(FileNotFoundError, match=message):
            open_val(dataset, tmp_path)
    write_folder(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"images/dev is missing: .*images has train, val; data"):
        open_val("folder", tmp_path, val_split="dev")
    with pytest.raises(ValueError, match=r"split='../x' is not the name of a split"):
        open_val("folder", tmp_path, val_split="../x")
    with pytest.raises(ValueError, match=r"data.ignore_label=1 is the label of class 'red'"):
        open_val("folder", tmp_path, ignore_label=1)
    for text, message in (
        ("a\n\nb\n", "line 2 is empty, and so the name of label 1"),
        ("a\nb\na\n", "the labels 0 and 2 are both called 'a'"),  # one would hide the other's IoU
    ):
        (tmp_path / "classes.txt").write_text(text)
        with pytest.raises(ValueError, match=message):
            open_val("folder", tmp_path)
    (tmp_path / "classes.txt").write_text("\ufeffa\nb\nc\n\n")  # as some editors begin and end a file
    assert open_val("folder", tmp_path).classes == ("a", "b", "c")
    (tmp_path / "classes.txt").write_text("\n\n")
    with pytest.raises(ValueError, match="names 0 classes, expected 1 to 254"):
        open_val("folder", tmp_path)
    (tmp_path / "classes.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"classes.txt is missing: write the names of the classes"):
        open_val("folder", tmp_path)


def test_label_sets():
    assert [len(s.classes) for s in (ADE20K, CITYSCAPES, PASCAL_CONTEXT_60, VOC, CAMVID)] == [
        150,
        19,
        60,
        21,
        11,
    ]
    for labels in (ADE20K, CITYSCAPES, PASCAL_CONTEXT, VOC, CAMVID, PETS):
        assert len(set(labels.colours)) == len(labels.classes)
    assert voc_colours(16)[15] == (192, 128, 128)  # "person" of VOC
    with pytest.raises(ValueError, match="needs a value of its own"):
        LabelSet(("a", "b"), (0, 255))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dataset": "ade"}, "did you mean 'ade20k'"),
        ({"crop": (0, 5)}, "data.crop must be at least 1"),
        ({"crop": (5,)}, "data.crop must be two integers"),
        ({"mean": (0.5,)}, "data.mean must have 3 values"),
        ({"std": (0.5, 0.0, 0.5)}, "data.std must be above 0"),
        ({"ignore_label": 256}, "data.ignore_label must be 0 to 255"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        MaskDataConfig(**settings)
