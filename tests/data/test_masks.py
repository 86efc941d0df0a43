"""Images with masks, in the layouts of Oxford-IIIT Pets and PASCAL VOC 2012, written here."""

import io
import os
import pickle
import struct
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from cbsa.data import (
    CorruptLog,
    DataConfig,
    TooManyCorruptImages,
    normalise,
    open_pets_trimaps,
    open_voc,
    segmentation_loader,
)
from cbsa.data.sources.masks import decode_mask
from tests.data.real import real_data
from tests.data.samples import encode, pixels

SQUASH = DataConfig(img_size=8, resize="squash", workers=0)
IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def labels(seed, height=8, width=8, values=(1, 2, 3)):
    return np.random.default_rng(seed).choice(np.array(values, dtype=np.uint8), (height, width))


def palette(mask):
    """A palette PNG, as VOC's are: colours mean nothing, indices do."""
    image = Image.fromarray(mask).convert("P")
    image.putdata(mask.ravel().tolist())
    image.putpalette(np.random.default_rng(0).integers(0, 256, 768, dtype=np.uint8).tolist())
    return image


def write_parquet(path, rows):
    """Rows of encoded images and masks, in row groups of two."""
    columns = {
        name: pa.array([{"bytes": row[i], "path": None} for row in rows], IMAGE)
        for i, name in enumerate(("image", "mask"))
    }
    pq.write_table(pa.table(columns | {"label": pa.array([0] * len(rows))}), path, row_group_size=2)


def write_voc(root, names, split="val", masks=None):
    for folder in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for i, name in enumerate(names):
        (root / "JPEGImages" / f"{name}.jpg").write_bytes(encode(pixels(i, 6, 10), "JPEG"))
        mask = labels(i, 6, 10, (0, 5, 20, 255)) if masks is None else masks[i]
        palette(mask).save(root / "SegmentationClass" / f"{name}.png")
    (root / f"ImageSets/Segmentation/{split}.txt").write_text("".join(f"{name}\n" for name in names))


def test_parquet_rows_over_files_and_row_groups(tmp_path):
    rows = [(encode(pixels(i, 5, 7)), encode(labels(i, 5, 7))) for i in range(5)]
    write_parquet(tmp_path / "test-00000-of-00002.parquet", rows[:3])
    write_parquet(tmp_path / "test-00001-of-00002.parquet", rows[3:])
    source = open_pets_trimaps(tmp_path)
    for copy in (source, pickle.loads(pickle.dumps(source))):
        assert len(copy) == 5
        assert copy.labels == "pets"
        for i in range(5):
            image, mask = copy.read(i)
            assert np.array_equal(np.asarray(image), pixels(i, 5, 7))
            assert np.array_equal(mask, labels(i, 5, 7))
    assert source.identify(4) == "test-00001-of-00002.parquet[4]"


def test_official_pets_layout(tmp_path):
    root = tmp_path / "oxford-iiit-pet"
    for folder in ("images", "annotations/trimaps"):
        (root / folder).mkdir(parents=True)
    (root / "images/cat_1.jpg").write_bytes(encode(pixels(0), "JPEG"))
    (root / "annotations/trimaps/cat_1.png").write_bytes(encode(labels(0)))
    (root / "annotations/test.txt").write_text("# comment\n\ncat_1 1 1 1\n")
    for folder in (root, tmp_path):
        source = open_pets_trimaps(folder)
        assert len(source) == 1
        assert np.array_equal(source.read(0)[1], labels(0))
        assert source.identify(0).endswith("images/cat_1.jpg")


@pytest.mark.parametrize("inside", [".", "VOC2012", "VOCdevkit/VOC2012"])
def test_voc_reads_indices_of_the_palette(tmp_path, inside):
    names = ["2007_000033", "2008_000107"]
    write_voc(tmp_path / inside, names)
    source = open_voc(tmp_path)
    assert len(source) == 2
    assert source.labels == "voc"
    for i in range(2):
        image, mask = source.read(i)
        assert image.size == (10, 6)
        assert np.array_equal(mask, labels(i, 6, 10, (0, 5, 20, 255)))


def grey_png(mask, bits):
    """A grey PNG of so many bits a pixel, as its specification has it: rows packed from the highest bit."""
    rows = b"".join(b"\0" + row for row in packed(mask, bits))
    size = struct.pack(">IIBBBBB", mask.shape[1], mask.shape[0], bits, 0, 0, 0, 0)
    chunks = (b"IHDR", size), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )


def grey_tiff(mask, bits):
    """The same as a TIFF of one strip."""
    strip = b"".join(packed(mask, bits))
    strip += b"\0" * (len(strip) % 2)
    height, width = mask.shape
    tags = {256: width, 257: height, 258: bits, 259: 1, 262: 1, 273: 8, 277: 1, 278: height, 279: len(strip)}
    entries = b"".join(struct.pack("<HHIHH", tag, 3, 1, value, 0) for tag, value in tags.items())
    return b"II*\0" + struct.pack("<I", 8 + len(strip)) + strip + struct.pack("<H", 9) + entries + b"\0" * 4


def packed(mask, bits):
    for row in mask:
        digits = "".join(f"{label:0{bits}b}" for label in row)
        yield bytes(int(digits[i : i + 8].ljust(8, "0"), 2) for i in range(0, len(digits), 8))


@pytest.mark.parametrize("encoder", [grey_png, grey_tiff])
@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_labels_are_the_integers_of_the_file(encoder, bits):
    """Programs that make files smaller leave out the bits that no label needs."""
    mask = np.random.default_rng(bits).integers(0, 2**bits, (5, 7))
    assert np.array_equal(decode_mask(encoder(mask, bits)), mask)


def test_palettes_of_few_bits():
    mask = labels(0, 5, 7, (0, 1, 2, 3))
    for bits in (2, 4, 8):
        file = io.BytesIO()
        palette(mask).save(file, "PNG", bits=bits)
        assert np.array_equal(decode_mask(file.getvalue()), mask)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (lambda mask: encode(mask, "JPEG"), r"\(PNG, BMP, TIFF, GIF\), got JPEG: make it anew"),
        (lambda mask: b"P5\n7 5\n3\n" + mask.tobytes(), "got PPM"),  # 3 is its brightest grey: 255 to Pillow
        (lambda mask: encode(np.stack([mask] * 3, -1)), "got mode 'RGB': save the label of each pixel"),
        (lambda mask: encode(mask.astype(np.uint16)), "got mode 'I;16'"),
    ],
)
def test_masks_that_do_not_keep_their_labels_are_refused(data, message):
    with pytest.raises(ValueError, match=message):
        decode_mask(data(labels(0, 5, 7, (0, 1, 2, 3))))


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_normalised_images_and_masks_of_their_own_size(tmp_path, workers):
    sizes = [(5, 7), (8, 8), (9, 4)]
    write_parquet(
        tmp_path / "test.parquet",
        [(encode(pixels(i, *size)), encode(labels(i, *size))) for i, size in enumerate(sizes)],
    )
    config = DataConfig(img_size=8, resize="squash", workers=workers)
    loader = segmentation_loader(open_pets_trimaps(tmp_path), config, batch_size=2)
    assert len(loader) == 2
    (first, masks), (second, last) = loader
    assert first.shape == (2, 3, 8, 8)
    assert second.shape == (1, 3, 8, 8)
    for i, mask in enumerate([*masks, *last]):
        assert np.array_equal(mask.numpy(), labels(i, *sizes[i]))
    plain = torch.from_numpy(pixels(1)).permute(2, 0, 1)  # fits as it is
    assert torch.equal(first[1], normalise(plain, config.mean, config.std))


def test_unreadable_images_are_recorded_and_left_out(tmp_path):
    good, mask = encode(pixels(0)), encode(labels(0))
    rows = [
        (good, mask),
        (good[:50], mask),  # truncated
        (good, encode(labels(0, 4, 8))),  # of another size
        (good, encode(pixels(1))),  # colours are not labels
        (good, None),
    ]
    write_parquet(tmp_path / "test.parquet", rows)
    log = CorruptLog(4, report=lambda message: None)
    loader = segmentation_loader(open_pets_trimaps(tmp_path), SQUASH, batch_size=3, corrupt=log)
    batches = list(loader)
    assert [len(images) for images, _ in batches] == [1, 0]
    assert [len(masks) for _, masks in batches] == [1, 0]
    reasons = dict(log.entries())
    assert "the image has 8×8 pixels, its mask 8×4" in reasons["test.parquet[2]"]
    assert "8-bit grey or palette image, got mode 'RGB'" in reasons["test.parquet[3]"]
    assert "the row has no bytes" in reasons["test.parquet[4]"]
    strict = segmentation_loader(
        open_pets_trimaps(tmp_path), SQUASH, corrupt=CorruptLog(3, report=lambda message: None)
    )
    with pytest.raises(TooManyCorruptImages, match="4 images cannot be read"):
        list(strict)


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "..", "a/b", "-x", "\x00"])
def test_names_do_not_leave_the_folder(tmp_path, name):
    write_voc(tmp_path, ["2007_000033"])
    (tmp_path / "ImageSets/Segmentation/val.txt").write_text(f"2007_000033\n{name}\n")
    with pytest.raises(ValueError, match=r"val.txt, line 2: .* is not the name of an image"):
        open_voc(tmp_path)


def test_lists_have_limits(tmp_path):
    write_voc(tmp_path, ["2007_000033"])
    listing = tmp_path / "ImageSets/Segmentation/val.txt"
    listing.write_text("\n")
    with pytest.raises(ValueError, match=r"val.txt lists no image"):
        open_voc(tmp_path)
    os.truncate(listing, (16 << 20) + 1)
    with pytest.raises(ValueError, match=r"has more than 16777216 bytes: it is not a list of images"):
        open_voc(tmp_path)


def test_large_files_are_not_read(tmp_path):
    write_voc(tmp_path, ["2007_000033"])
    os.truncate(tmp_path / "SegmentationClass/2007_000033.png", 1 << 30)  # sparse
    with pytest.raises(ValueError, match="more than the limit"):
        open_voc(tmp_path).read(0)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no such folder"):
        open_voc(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"has no SegmentationClass/: give the folder of VOC2012"):
        open_voc(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no split 'test': found no Parquet file and no annotations"):
        open_pets_trimaps(tmp_path)
    write_voc(tmp_path, ["a"])
    with pytest.raises(FileNotFoundError, match=r"train.txt is missing: it lists the images of the split"):
        open_voc(tmp_path, "train")
    with pytest.raises(ValueError, match=r"split='../val' is not the name of a split"):
        open_voc(tmp_path, "../val")
    (tmp_path / "JPEGImages/a.jpg").unlink()
    with pytest.raises(FileNotFoundError):
        open_voc(tmp_path).read(0)


def test_parquet_without_masks(tmp_path):
    pq.write_table(pa.table({"image": pa.array([b"x"])}), tmp_path / "test.parquet")
    with pytest.raises(ValueError, match="is not a Parquet file with the columns image and mask"):
        open_pets_trimaps(tmp_path)
    (tmp_path / "test.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(ValueError, match="is not a Parquet file with the columns image and mask"):
        open_pets_trimaps(tmp_path)


def test_cropping_images_but_not_masks_is_refused(tmp_path):
    write_voc(tmp_path, ["a"])
    with pytest.raises(ValueError, match=r"data.resize='crop' cuts off .*use data.resize='squash'"):
        segmentation_loader(open_voc(tmp_path), DataConfig(img_size=8))


def test_real_pets():
    """The packed trimaps: all sizes fit, and the labels are 1, 2 and 3."""
    source = open_pets_trimaps(real_data("oxford-pets"))
    assert len(source) == 3669
    for index in (0, 1834, 3668):
        image, mask = source.read(index)
        assert mask.shape == (image.height, image.width)
        assert set(np.unique(mask)) == {1, 2, 3}
