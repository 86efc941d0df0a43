"""Images with masks kept on the device: augmented there as torchvision does it, the same every time."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torchvision.transforms.v2 import InterpolationMode, functional

from cbsa.data import (
    CorruptLog,
    MaskAugmentConfig,
    MaskDataConfig,
    TooManyCorruptImages,
    mask_batches,
    mask_eval_loader,
    mask_train_loader,
    open_segmentation,
    photometric,
)
from cbsa.data.joint import TRIES
from cbsa.data.joint_crops import (
    Crops,
    Stored,
    choose_corners,
    crop_images,
    crop_masks,
    first_varied,
    scaled_sizes,
)
from cbsa.data.label_sets import IGNORE
from tests.compare import DEVICES
from tests.data.samples import assert_same, join
from tests.segmentation.scenes import CLASSES, save, scene, write_folder

CPU = torch.device("cpu")


def stored(sizes, device="cpu"):
    """Noise with classes 0 to 4, images of several sizes on one canvas."""
    draw = torch.Generator().manual_seed(0)
    height, width = (max(side) for side in zip(*sizes, strict=True))
    images = torch.randint(256, (len(sizes), 3, height, width), dtype=torch.uint8, generator=draw)
    masks = torch.randint(5, (len(sizes), height, width), dtype=torch.uint8, generator=draw)
    return Stored(images.to(device), masks.to(device), torch.tensor(sizes, device=device))


def by_torchvision(content, crops, place, fill):
    """One crop, by the functions that the host's transform calls."""
    index = crops.index[place]
    height, width = content.sizes[index].tolist()
    image = content.images[index, :, :height, :width].float()
    mask = content.masks[index, :height, :width]
    size, (top, left) = crops.scaled[place].tolist(), crops.corners[place].tolist()
    image = functional.resize(image, size, InterpolationMode.BILINEAR, antialias=True)
    mask = functional.resize(mask[None], size, InterpolationMode.NEAREST_EXACT)[0]
    missing = [max(0, side - have) for side, have in zip(crops.size, size, strict=True)]
    image = torch.stack(
        [
            F.pad(channel, (0, missing[1], 0, missing[0]), value=value)
            for channel, value in zip(image, fill.tolist(), strict=True)
        ]
    )
    mask = F.pad(mask, (0, missing[1], 0, missing[0]), value=IGNORE)
    image, mask = (functional.crop(x, top, left, *crops.size) for x in (image, mask))
    return (image.flip(-1), mask.flip(-1)) if crops.flips[place] else (image, mask)


@pytest.mark.parametrize("device", DEVICES)
def test_crops_are_those_of_torchvision(device):
    """Larger, smaller, as they are, and smaller than the crop; images of two sizes; mirrored or not."""
    content = stored([(37, 52), (24, 60)], device)
    factors = torch.tensor([0.5, 0.61, 1.0, 1.7, 2.0, 0.83], device=device)
    index = torch.tensor([0, 1, 0, 1, 0, 1], device=device)
    scaled = scaled_sizes(content.sizes[index], factors, 0)
    draw = torch.Generator(device).manual_seed(1)
    uniform = torch.rand(6, 1, 2, generator=draw, dtype=torch.float64, device=device)
    corners = choose_corners(uniform, scaled, (20, 28))[:, 0]
    flips = torch.tensor([True, False, True, False, True, False], device=device)
    crops = Crops(index, scaled, corners, flips, (20, 28))
    fill = torch.tensor([124.0, 116.0, 104.0], device=device)
    images, masks = crop_images(content, crops, fill), crop_masks(content, crops)
    assert images.shape == (6, 3, 20, 28)
    assert masks.dtype == torch.uint8
    for place in range(6):
        image, mask = by_torchvision(content, crops, place, fill)
        assert torch.equal(masks[place], mask)
        torch.testing.assert_close(images[place], image, rtol=0, atol=0.01)


def test_sizes_are_those_of_the_transform():
    """Factor and short side together, rounded once; never nothing."""
    sizes = torch.tensor([[360, 480], [100, 30]])
    assert scaled_sizes(sizes, torch.tensor([1.0, 1.0]), 180).tolist() == [[180, 240], [600, 180]]
    assert scaled_sizes(sizes, torch.tensor([0.7, 0.001]), 0).tolist() == [[252, 336], [1, 1]]


def test_corners_reach_both_ends():
    uniform = torch.tensor([[[0.0, 0.0], [0.999999, 0.999999]]], dtype=torch.float64)
    assert choose_corners(uniform, torch.tensor([[30, 50]]), (20, 28)).tolist() == [[[0, 0], [10, 22]]]
    assert choose_corners(uniform, torch.tensor([[15, 28]]), (20, 28)).tolist() == [[[0, 0], [0, 0]]]


def test_the_first_varied_crop_is_taken():
    content = stored([(40, 40)])
    content.masks.zero_()
    content.masks[:, :, :8] = 1
    index, scaled = torch.tensor([0]), torch.tensor([[40, 40]])
    corners = torch.tensor([[[0, 24], [0, 3], [0, 0]]])

    def chosen(ratio, corners=corners):
        return first_varied(content, index, scaled, corners, (16, 16), ratio, 5).tolist()

    assert chosen(0.75) == [[0, 3]]
    assert chosen(0.5) == [[0, 0]]
    assert chosen(0.3) == [[0, 0]]  # none: the last
    content.masks.fill_(IGNORE)
    assert chosen(0.75) == [[0, 0]]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("name", "factors"),
    [("brightness", (0.5, 1.4)), ("contrast", (0.5, 1.5)), ("saturation", (0.5, 1.5)), ("hue", (-0.05, 0.3))],
)
def test_colours_change_as_in_torchvision(name, factors, device):
    images = torch.rand(2, 3, 9, 11, generator=torch.Generator().manual_seed(2)).to(device)
    images[:, :, :2] = 0.3  # grey has no hue
    ours = getattr(photometric, f"adjust_{name}")(255 * images, torch.tensor(factors, device=device))
    adjust = getattr(functional, f"adjust_{name}")
    theirs = torch.stack([adjust(image, factor) for image, factor in zip(images, factors, strict=True)])
    torch.testing.assert_close(ours / 255, theirs, rtol=0, atol=2e-3)


def test_colours_stay_where_nothing_is_to_change():
    images = torch.randint(256, (2, 3, 8, 8), generator=torch.Generator().manual_seed(3)).float()
    for name in ("brightness", "contrast", "saturation", "hue"):
        same = torch.zeros(2) if name == "hue" else torch.ones(2)
        unchanged = getattr(photometric, f"adjust_{name}")(images, same)
        torch.testing.assert_close(unchanged, images, rtol=0, atol=1e-3)


# --- loaders -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("scenes"))


def config(root, **settings):
    settings = {"crop": (16, 16), "workers": 0, "store": "device"} | settings
    return MaskDataConfig("folder", str(root), **settings)


def train_loader(root, settings=None, augment=None, **options):
    data = config(root, **(settings or {}))
    source = open_segmentation(data, train=True)
    augment = MaskAugmentConfig(**(augment or {}))
    return mask_train_loader(data, augment, source, **({"batch_size": 4, "device": CPU} | options))


def test_batches_are_a_function_of_seed_and_epoch(root):
    loader = train_loader(root)
    assert loader.store == "device"
    first = list(loader.epoch(1))
    assert len(first) == 3
    assert first[0].images.shape == (4, 3, 16, 16)
    assert first[0].targets.shape == (4, 16, 16)
    assert first[0].targets.dtype == torch.uint8
    assert_same(first, train_loader(root).epoch(1))
    assert_same(first[1:], loader.epoch(1, start_step=1))
    assert not torch.equal(first[0].images, next(loader.epoch(2)).images)
    assert not torch.equal(first[0].images, next(train_loader(root, seed=1).epoch(1)).images)


def test_ranks_share_a_batch(root):
    whole = join(train_loader(root).epoch(0))
    shares = [list(train_loader(root, rank=rank, world_size=2).epoch(0)) for rank in range(2)]
    for step in range(3):
        together = join([share[step] for share in shares])
        assert torch.equal(together["targets"], whole["targets"][4 * step : 4 * step + 4])
        assert torch.equal(together["images"], whole["images"][4 * step : 4 * step + 4])


PLAIN = {"scale": (1.0, 1.0), "category_ratio": 1.0, "flip": 0.0, "photometric": 0.0}


def test_without_augmentation_the_images_are_the_images(root):
    loader = train_loader(root, {"crop": (24, 32)}, PLAIN)
    for batch in loader.epoch(0):
        for image, target, index in zip(batch.images, batch.targets, batch.indices.tolist(), strict=True):
            pixels, mask = scene(index)
            torch.testing.assert_close(image, torch.from_numpy(pixels).permute(2, 0, 1).float())
            assert np.array_equal(target.numpy(), mask)


def test_settings_do_what_they_say(root):
    """Flips all or none of the images, colours as often as asked, the short side before the scale."""
    plain = join(train_loader(root, {"crop": (24, 32)}, PLAIN).epoch(0))
    flipped = join(train_loader(root, {"crop": (24, 32)}, PLAIN | {"flip": 1.0}).epoch(0))
    assert torch.equal(flipped["targets"], plain["targets"].flip(-1))
    coloured = join(train_loader(root, {"crop": (24, 32)}, PLAIN | {"photometric": 0.3}).epoch(0))
    assert torch.equal(coloured["targets"], plain["targets"])
    changed = (coloured["images"] - plain["images"]).abs().flatten(1).amax(1) > 1
    assert 0 < changed.sum() < len(changed)
    small = join(train_loader(root, {"crop": (12, 16), "short_side": 12}, PLAIN).epoch(0))
    halved = F.interpolate(plain["images"], (12, 16), mode="bilinear", antialias=True)
    torch.testing.assert_close(small["images"], halved, rtol=0, atol=0.01)
    assert small["targets"].shape == (12, 12, 16)


def test_images_of_several_sizes(tmp_path):
    root = write_folder(tmp_path)
    for i, size in enumerate([(10, 12), (40, 20)]):
        image, mask = scene(i, *size)
        save(root / f"images/train/{i:03d}.png", image)
        save(root / f"masks/train/{i:03d}.png", mask)
    for epoch in range(3):
        batch = join(train_loader(root).epoch(epoch))
        assert set(batch["targets"].unique().tolist()) <= {*range(len(CLASSES)), IGNORE}
    tiny = join(train_loader(root, {"crop": (24, 32)}, PLAIN).epoch(0))
    at = tiny["indices"].tolist().index(0)
    assert (tiny["targets"][at, 10:] == IGNORE).all()
    assert tiny["images"][at, :, 20, 20].tolist() == [124, 116, 104]


def test_wrong_masks_are_recorded_and_replaced(tmp_path):
    root = write_folder(tmp_path)
    save(root / "masks/train/003.png", np.full((24, 32), 9, np.uint8))
    log = CorruptLog(10, report=lambda message: None)
    batches = join(train_loader(root, corrupt=log).epoch(0))
    assert 3 not in batches["indices"]
    assert 4 in batches["indices"]
    assert "labels 9 outside of the 3 classes" in log.entries()[0][1]
    for path in (root / "masks/train").iterdir():
        save(path, np.full((24, 32), 9, np.uint8))
    with pytest.raises(TooManyCorruptImages, match="none of the 12 training images can be read"):
        train_loader(root, corrupt=CorruptLog(20, report=lambda message: None))


def test_evaluation_sees_the_same_images(root):
    data = config(root, short_side=12)
    source = open_segmentation(data, train=False)
    seen = []
    kept = mask_eval_loader(data, source, device=CPU, progress=lambda done, total: seen.append((done, total)))
    assert kept.store == "device"
    assert seen == [(i, 5) for i in range(1, 6)]
    for _ in range(2):
        assert_same(kept, mask_eval_loader(config(root, store="host", short_side=12), source, device=CPU))


def test_the_store_is_chosen_by_size(root, monkeypatch):
    data, gpu = config(root, store="auto"), SimpleNamespace(type="cuda")
    source = open_segmentation(data, train=True)
    asked = []
    monkeypatch.setattr(mask_batches, "fits_on_gpu", lambda size, device: asked.append(size) or size < 40_000)
    assert mask_batches.choose_mask_store(data, source, CPU) == "host"
    assert mask_batches.choose_mask_store(data, source, gpu) == "device"
    assert asked == [4 * 24 * 32 * 12]
    monkeypatch.setattr(mask_batches, "fits_on_gpu", lambda size, device: False)
    assert mask_batches.choose_mask_store(data, source, gpu) == "host"
    assert mask_batches.choose_mask_store(config(root), source, gpu) == "device"
    with pytest.raises(ValueError, match=r"data.store='gpu'"):
        config(root, store="gpu")


def test_ten_crops_are_tried(root):
    assert train_loader(root)._draw(torch.Generator()).shape == (12, 2 + 2 * TRIES + 9)
