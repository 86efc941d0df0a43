"""Augmentation that moves image and mask together, and batches that depend on seed and epoch alone."""

import numpy as np
import pytest
import torch
from PIL import Image

from cbsa.data import (
    CorruptLog,
    MaskAugmentConfig,
    MaskDataConfig,
    TooManyCorruptImages,
    mask_eval_loader,
    mask_train_loader,
    open_segmentation,
    seeded,
)
from cbsa.data.joint import EvalImage, JointTransform
from cbsa.data.label_sets import IGNORE
from tests.data.samples import assert_same, join
from tests.segmentation.scenes import COLOURS, save, scene, write_folder

CPU = torch.device("cpu")


def augmented(image, mask, seed=0, crop=(16, 20), short_side=0, **settings):
    plain = {"scale": (1.0, 1.0), "category_ratio": 1.0, "flip": 0.0, "photometric": 0.0}
    transform = JointTransform(
        MaskDataConfig(crop=crop, short_side=short_side), MaskAugmentConfig(**(plain | settings))
    )
    with seeded("test", seed):
        return transform(Image.fromarray(image), mask)


def pure(seed, height=24, width=32):
    """A scene without noise: a pixel's colour says its class."""
    mask = scene(seed, height, width)[1]
    mask[mask == IGNORE] = 0
    return COLOURS[mask], mask


def classes_by_colour(pixels):
    """(h, w) the class of the nearest colour."""
    distance = (pixels.permute(1, 2, 0)[:, :, None].float() - torch.from_numpy(COLOURS).float()).abs().sum(-1)
    return distance.argmin(-1)


@pytest.mark.parametrize("seed", range(4))
def test_crops_and_flips_move_both(seed):
    pixels, labels = augmented(*pure(seed), seed, flip=0.5)
    assert pixels.shape == (3, 16, 20)
    assert pixels.dtype == labels.dtype == torch.uint8
    assert type(pixels) is type(labels) is torch.Tensor
    assert torch.equal(classes_by_colour(pixels), labels.long())


@pytest.mark.parametrize("seed", range(4))
def test_resizing_moves_both(seed):
    """Bilinear and nearest differ at contours alone."""
    pixels, labels = augmented(*pure(seed, 48, 64), seed, crop=(40, 40), scale=(1.3, 2.0))
    agree = (classes_by_colour(pixels) == labels).float().mean()
    assert agree > 0.9
    assert set(labels.unique().tolist()) <= {0, 1, 2}


def test_flips_happen_as_often_as_asked():
    image, mask = pure(1, 16, 20)
    flipped = [
        torch.equal(augmented(image, mask, seed, flip=0.5)[1], torch.from_numpy(mask).flip(-1))
        for seed in range(60)
    ]
    assert 15 < sum(flipped) < 45
    assert torch.equal(augmented(image, mask, flip=1.0)[1], torch.from_numpy(mask).flip(-1))


def test_scales_are_in_the_range():
    """A small crop of a ramp: its slope tells the factor."""
    image = np.repeat(np.arange(0, 128, dtype=np.uint8)[None, :, None], 64, 0).repeat(3, 2)
    slopes = []
    for seed in range(40):
        pixels, _ = augmented(image, np.zeros((64, 128), np.uint8), seed, crop=(8, 32), scale=(0.5, 2.0))
        slopes.append((float(pixels[0, 0, 31]) - float(pixels[0, 0, 0])) / 31)
    factors = 1 / np.array(slopes)
    assert factors.min() > 0.45
    assert factors.max() < 2.2
    assert factors.min() < 0.7
    assert factors.max() > 1.6


def test_short_sides_come_before_the_scale():
    image, mask = pure(0, 24, 48)
    pixels, labels = augmented(image, mask, crop=(12, 24), short_side=12)
    assert (classes_by_colour(pixels) == labels).float().mean() > 0.85
    assert IGNORE not in labels


def test_small_images_are_padded():
    """With the mean colour, which normalisation makes 0, and pixels that count for nothing."""
    image, mask = pure(0, 10, 12)
    pixels, labels = augmented(image, mask, crop=(16, 20))
    assert torch.equal(labels[:10, :12], torch.from_numpy(mask))
    assert (labels[10:] == IGNORE).all()
    assert (labels[:, 12:] == IGNORE).all()
    assert pixels[:, 12, 15].tolist() == [124, 116, 104]


def test_crops_of_one_class_are_avoided():
    """A strip of class 1: one crop in five has enough of it by chance, nine of ten if ten are tried."""
    mask = np.zeros((40, 40), np.uint8)
    mask[:, :8] = 1
    image = COLOURS[mask]

    def varied(ratio):
        crops = [augmented(image, mask, seed, (16, 16), category_ratio=ratio)[1] for seed in range(60)]
        return np.mean([np.bincount(crop.ravel().numpy()).max() <= 0.75 * 256 for crop in crops])

    assert varied(1.0) < 0.35
    assert varied(0.75) > 0.75


def test_an_ignored_image_passes():
    pixels, labels = augmented(pure(0)[0], np.full((24, 32), IGNORE, np.uint8), category_ratio=0.75)
    assert pixels.shape == (3, 16, 20)
    assert (labels == IGNORE).all()


def test_photometric_distortion_leaves_the_mask_and_small_changes_of_colour():
    image, mask = pure(2)
    plain = augmented(image, mask, 5)
    changed = 0
    for seed in range(20):
        pixels, labels = augmented(image, mask, seed, crop=(24, 32), photometric=0.5)
        assert torch.equal(labels, torch.from_numpy(mask))
        changed += not torch.equal(pixels, torch.from_numpy(image).permute(2, 0, 1))
    assert 12 < changed <= 20
    assert torch.equal(plain[0], augmented(image, mask, 5)[0])


def test_images_of_any_mode():
    grey = Image.fromarray(np.full((24, 32), 77, np.uint8))
    transform = JointTransform(MaskDataConfig(crop=(8, 8)), MaskAugmentConfig(photometric=0))
    pixels, _ = transform(grey, np.zeros((24, 32), np.uint8))
    assert (pixels == 77).all()
    assert EvalImage(MaskDataConfig(short_side=12))(grey).shape == (3, 12, 16)


def test_huge_images_are_not_made():
    long = Image.new("RGB", (60000, 1))
    with pytest.raises(ValueError, match="too large to be resized: 60000×1 pixels to 30720000×512"):
        EvalImage(MaskDataConfig(short_side=512))(long)


# --- loaders -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("scenes"))


def config(root, **settings):
    return MaskDataConfig("folder", str(root), **({"crop": (16, 16), "workers": 0} | settings))


def train_loader(root, settings=None, **options):
    data = config(root, **(settings or {}))
    source = open_segmentation(data, train=True)
    return mask_train_loader(
        data, MaskAugmentConfig(), source, **({"batch_size": 4, "device": CPU} | options)
    )


def test_batches_do_not_depend_on_workers_or_where_they_begin(root):
    plain = list(train_loader(root).epoch(1))
    assert len(plain) == 3
    assert plain[0].images.shape == (4, 3, 16, 16)
    assert plain[0].targets.shape == (4, 16, 16)
    assert_same(plain, train_loader(root, {"workers": 2}).epoch(1))
    assert_same(plain[1:], train_loader(root).epoch(1, start_step=1))
    assert not torch.equal(plain[0].images, next(train_loader(root).epoch(2)).images)


def test_ranks_share_a_batch(root):
    whole = join(train_loader(root).epoch(0))
    shares = [list(train_loader(root, rank=rank, world_size=2).epoch(0)) for rank in range(2)]
    for step in range(3):
        together = join([share[step] for share in shares])
        assert torch.equal(together["targets"], whole["targets"][4 * step : 4 * step + 4])


def test_whole_images_in_order(root):
    source = open_segmentation(config(root), train=False)
    batches = list(mask_eval_loader(config(root, short_side=12), source, device=CPU))
    assert len(batches) == 5
    for i, batch in enumerate(batches):
        assert batch.images.shape == (1, 3, 12, 16)
        assert np.array_equal(batch.targets[0].numpy(), scene(1000 + i)[1])  # of its own size
    for rank in range(2):
        mine = list(mask_eval_loader(config(root), source, device=CPU, rank=rank, world_size=2))
        assert [bool(b.valid.all()) for b in mine] == [True, True, rank == 0]


def test_wrong_masks_are_recorded_and_replaced(root, tmp_path):
    broken = write_folder(tmp_path)
    save(broken / "masks/train/003.png", np.full((24, 32), 9, np.uint8))
    save(broken / "masks/val/001.png", np.zeros((3, 3), np.uint8))
    log = CorruptLog(10, report=lambda message: None)
    batches = join(train_loader(broken, {"workers": 0}, corrupt=log).epoch(0))
    assert batches["valid"].all()
    assert 3 not in batches["indices"]
    (entry,) = log.entries()
    assert "labels 9 outside of the 3 classes" in entry[1]
    source = open_segmentation(config(broken), train=False)
    whole = list(mask_eval_loader(config(broken), source, device=CPU, corrupt=log))
    assert [bool(b.valid.all()) for b in whole] == [True, False, True, True, True]
    assert "its mask 3×3" in log.entries()[1][1]
    strict = train_loader(broken, {"max_corrupt": 0}, corrupt=CorruptLog(0, report=lambda message: None))
    with pytest.raises(TooManyCorruptImages, match=r"1 images cannot be read, more than data.max_corrupt=0"):
        list(strict.epoch(0))
