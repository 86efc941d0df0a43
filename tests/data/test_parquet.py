"""Images in Parquet files, written here as the Hugging Face hub has them."""

import json
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from cbsa.data import DataConfig, open_source
from tests.data.samples import encode, eval_loader, join, pixels

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def write(path, images, labels, names=None, image="image", label="label", kind=IMAGE):
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"bytes": data, "path": f"{i}.png"} for i, data in enumerate(images)]
    table = pa.table(
        {image: pa.array(rows if kind is IMAGE else images, kind), label: pa.array(labels, pa.int64())}
    )
    if names is not None:
        features = {image: {"_type": "Image"}, label: {"_type": "ClassLabel", "names": names}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, path, row_group_size=2)


def pngs(count, start=0):
    return [encode(pixels(start + i)) for i in range(count)]


def opened(root, train=True, **options):
    return open_source(DataConfig("parquet", str(root), **options), train)


def test_rows_over_files_and_row_groups(tmp_path):
    write(tmp_path / "train-00000-of-00002.parquet", pngs(5), [0, 1, 2, 0, 1], ["a", "b", "c"])
    write(tmp_path / "train-00001-of-00002.parquet", pngs(4, 5), [2, 2, 1, 0], ["a", "b", "c"])
    write(tmp_path / "validation.parquet", pngs(2, 20), [1, 0], ["a", "b", "c"])
    train, val = opened(tmp_path), opened(tmp_path, train=False)
    assert (len(train), len(val)) == (9, 2)
    assert list(train.classes) == list(val.classes) == ["a", "b", "c"]
    assert train.labels.tolist() == [0, 1, 2, 0, 1, 2, 2, 1, 0]
    for source, start in ((train, 0), (val, 20), (pickle.loads(pickle.dumps(train)), 0)):
        for i in range(len(source)):
            image, label = source.read(i)
            assert np.array_equal(np.array(image), pixels(start + i))
            assert label == source.labels[i]
    assert train.identify(4) == "train-00000-of-00002.parquet[4]"
    assert train.identify(5) == "train-00001-of-00002.parquet[5]"


def test_workers_read_the_rows_too(tmp_path):
    write(tmp_path / "test.parquet", pngs(9), [0] * 9)
    source = opened(tmp_path, train=False)
    found = join(eval_loader(source, config={"workers": 2}))
    expected = np.stack([pixels(i) for i in range(9)]).transpose(0, 3, 1, 2)
    assert np.array_equal(found["images"][found["valid"]].numpy(), expected)


def test_images_of_every_mode(tmp_path):
    rgb = Image.fromarray(pixels(0))
    deep = Image.fromarray((pixels(1, channels=1).astype(np.uint16)) * 257)
    images = [
        encode(rgb.convert("L")),
        encode(rgb.quantize(16)),
        encode(rgb.convert("CMYK"), "TIFF"),
        encode(deep),
        encode(rgb.convert("RGBA")),
    ]
    write(tmp_path / "test.parquet", images, [0, 1, 2, 3, 4])
    found = join(eval_loader(opened(tmp_path, train=False), batch_size=5))
    assert found["valid"].all()
    expected = [
        rgb.convert("L").convert("RGB"),
        rgb.quantize(16).convert("RGB"),
        rgb.convert("CMYK").convert("RGB"),
        Image.fromarray(pixels(1, channels=1)).convert("RGB"),
        rgb,
    ]
    for image, wanted in zip(found["images"], expected, strict=True):
        assert np.array_equal(image.permute(1, 2, 0).numpy(), np.array(wanted))


def test_other_layouts_of_the_hub(tmp_path):
    write(tmp_path / "data" / "train-00000-of-00001-abcdef.parquet", pngs(2), [0, 4], image="img")
    assert len(opened(tmp_path).classes) == 5  # no names: numbers up to the largest label
    write(tmp_path / "plain" / "trainval.parquet", pngs(2), [0, 1], kind=pa.binary(), label="fine_label")
    assert np.array_equal(np.array(opened(tmp_path / "plain").read(1)[0]), pixels(1))
    write(tmp_path / "old" / "train.parquet", pngs(2), [0, 1], {"0": "x", "1": "y"})
    assert list(opened(tmp_path / "old").classes) == ["x", "y"]


def test_without_names_the_training_split_tells_the_classes(tmp_path):
    write(tmp_path / "train.parquet", pngs(2), [0, 6])
    write(tmp_path / "test.parquet", pngs(2), [0, 1])
    assert len(opened(tmp_path, train=False).classes) == 7
    write(tmp_path / "test.parquet", pngs(2), [0, 7])
    with pytest.raises(ValueError, match="labels from 0 to 7, expected 0 to 6 for 7 classes"):
        opened(tmp_path, train=False)


def test_splits_can_be_named(tmp_path):
    for name, count in (("train", 4), ("extra", 3), ("test", 2)):
        write(tmp_path / f"{name}.parquet", pngs(count), [0] * count)
    assert len(opened(tmp_path, train_split="extra")) == 3
    assert len(opened(tmp_path, train=False)) == 2
    with pytest.raises(FileNotFoundError, match="no split 'vall'; found 'extra', 'test', 'train'"):
        opened(tmp_path, train=False, val_split="vall")


def test_what_cannot_be_used_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="found none"):
        opened(tmp_path)
    write(tmp_path / "a" / "train-00000-of-00003.parquet", pngs(1), [0])
    with pytest.raises(FileNotFoundError, match="1 of 3 files of 'train' are there"):
        opened(tmp_path / "a")
    write(tmp_path / "b" / "train.parquet", pngs(2), [0, -1], ["x"])
    with pytest.raises(ValueError, match="labels from -1 to 0"):
        opened(tmp_path / "b")
    write(tmp_path / "c" / "train.parquet", pngs(2), [0, None], ["x"])
    with pytest.raises(ValueError, match="1 rows have no label"):
        opened(tmp_path / "c")
    write(tmp_path / "d" / "train.parquet", pngs(1), [0], image="picture")
    with pytest.raises(ValueError, match="has the columns picture, label; expected one of image, img"):
        opened(tmp_path / "d")
    write(tmp_path / "e" / "train.parquet", [], [], ["x"])
    with pytest.raises(ValueError, match="holds no images"):
        opened(tmp_path / "e")
    write(tmp_path / "f" / "train.parquet", pngs(1), [0], ["x", "y"])
    write(tmp_path / "f" / "val.parquet", pngs(1), [0], ["y", "x"])
    with pytest.raises(ValueError, match="class names differ"):
        opened(tmp_path / "f", train=False)
    (tmp_path / "g").mkdir()
    (tmp_path / "g" / "train.parquet").write_bytes(b"PAR1 and nothing more")
    with pytest.raises(ValueError, match="truncated or not a Parquet file"):
        opened(tmp_path / "g")


def test_a_row_without_bytes_is_one_corrupt_image(tmp_path):
    write(tmp_path / "train.parquet", [*pngs(1), None], [0, 0])
    source = opened(tmp_path)
    source.read(0)
    with pytest.raises(ValueError, match="no bytes"):
        source.read(1)
