"""Real data sets, where they are present."""

import numpy as np
import torch

from cbsa.data import DataConfig, open_source
from cbsa.data.transforms import EvalTransform
from tests.data.real import real_data
from tests.data.samples import train_loader


def test_tiny_imagenet():
    root = str(real_data("tiny-imagenet"))
    train, val = (open_source(DataConfig("parquet", root), train) for train in (True, False))
    assert (len(train), len(val), len(train.classes)) == (100_000, 10_000, 200)
    assert np.bincount(train.labels).tolist() == [500] * 200
    assert np.bincount(val.labels).tolist() == [50] * 200
    held = open_source(DataConfig("parquet", root, holdout=0.1), train=False)
    assert np.bincount(held.labels).tolist() == [50] * 200
    config = {"img_size": 64, "workers": 2}
    batch = next(train_loader(train, batch_size=64, config=config).epoch(0))
    assert batch.images.shape == (64, 3, 64, 64)
    assert batch.targets.tolist() == train.labels[batch.indices].tolist()
    grey = next(i for i in range(len(val)) if val.read(i)[0].mode == "L")
    image = EvalTransform(DataConfig(img_size=64, crop_pct=1.0))(val.read(grey)[0])
    expected = torch.from_numpy(np.array(val.read(grey)[0]))
    assert all(torch.equal(channel, expected) for channel in image)


def test_pets():
    root = str(real_data("oxford-pets"))
    train, test = (open_source(DataConfig("parquet", root), train) for train in (True, False))
    assert (len(train), len(test), len(train.classes)) == (3680, 3669, 37)
    assert train.classes[0] == "Abyssinian"
    loader = train_loader(train, batch_size=16, config={"img_size": 96, "workers": 2})
    assert next(loader.epoch(0)).images.shape == (16, 3, 96, 96)
