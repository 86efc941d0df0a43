"""Images to tensors, against Pillow, torchvision and timm used directly."""

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from cbsa.data import AugmentConfig, DataConfig, normalise, seeded
from cbsa.data.decode import MAX_BYTES, check_encoded_size, decode_image, to_channels
from cbsa.data.transforms import EvalTransform, TrainTransform
from tests.compare import assert_close
from tests.data.samples import encode, pixels

FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def tensor(image):
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


@pytest.mark.parametrize("interpolation", FILTERS)
@pytest.mark.parametrize(("height", "width"), [(40, 60), (60, 40), (20, 21), (28, 28)])
def test_evaluation_resizes_the_shorter_side_and_takes_the_centre(interpolation, height, width):
    image = Image.fromarray(pixels(0, height, width))
    found = EvalTransform(DataConfig(img_size=28, crop_pct=0.875, interpolation=interpolation))(image)
    shorter = 32
    size = (shorter * width // min(height, width), shorter * height // min(height, width))
    resized = image.resize(size, FILTERS[interpolation])
    left, top = round((size[0] - 28) / 2), round((size[1] - 28) / 2)
    assert torch.equal(found, tensor(resized.crop((left, top, left + 28, top + 28))))


def test_evaluation_may_squash():
    image = Image.fromarray(pixels(0, 40, 60))
    found = EvalTransform(DataConfig(img_size=28, resize="squash"))(image)
    assert torch.equal(found, tensor(image.resize((28, 28), Image.Resampling.BICUBIC)))


def test_an_image_that_fits_may_be_kept():
    image = Image.fromarray(pixels(0, 28, 28))
    config = DataConfig(img_size=28, crop_pct=0.875)
    assert torch.equal(EvalTransform(config, keep_fitting=True)(image), tensor(image))
    assert not torch.equal(EvalTransform(config)(image), tensor(image))


def test_a_very_long_image_is_an_error_not_a_very_large_one():
    with pytest.raises(ValueError, match="too long to be resized: 20000×1 pixels"):
        EvalTransform(DataConfig(img_size=224))(Image.new("RGB", (20_000, 1)))


def test_the_resized_crop_is_torchvisions():
    image = Image.fromarray(pixels(0, 40, 60))
    transform = TrainTransform(DataConfig(img_size=16), AugmentConfig())
    theirs = v2.Compose(
        [
            v2.RandomResizedCrop(16, (0.08, 1.0), interpolation=v2.InterpolationMode.BICUBIC),
            v2.RandomHorizontalFlip(),
            v2.PILToTensor(),
        ]
    )
    for epoch in range(5):
        with seeded(epoch):
            found = transform(image)
        with seeded(epoch):
            assert torch.equal(found, theirs(image))


@pytest.mark.parametrize("in_chans", [1, 3])
def test_randaugment_is_timms(in_chans):
    from timm.data.auto_augment import rand_augment_transform

    image = Image.fromarray(pixels(0, 32, 32))
    image = image if in_chans == 3 else image.convert("L")
    mean = (0.5,) * in_chans
    config = DataConfig(img_size=32, crop_pct=1.0, in_chans=in_chans, mean=mean, std=mean)
    augment = AugmentConfig(crop="none", flip=0.0, randaugment="rand-m9-mstd0.5-p1.0")
    transform = TrainTransform(config, augment)
    fill = (128,) * 3 if in_chans == 3 else 128
    theirs = rand_augment_transform(augment.randaugment, {"translate_const": 14, "img_mean": fill})
    for epoch in range(20):
        with seeded(epoch):
            found = transform(image)
        with seeded(epoch):
            assert torch.equal(found, v2.functional.pil_to_tensor(theirs(image)))


def test_erasing_puts_normal_noise_into_a_box():
    image = Image.new("RGB", (64, 64), (10, 20, 30))
    config = DataConfig(img_size=64, crop_pct=1.0, mean=(0.5,) * 3, std=(0.1,) * 3)
    transform = TrainTransform(config, AugmentConfig(crop="none", flip=0.0, erase=1.0))
    noise = []
    for seed in range(20):
        with seeded(seed):
            found = transform(image)
        changed = (found != tensor(image)).any(0)
        rows, cols = changed.any(1).nonzero(), changed.any(0).nonzero()
        box = found[:, rows.min() : rows.max() + 1, cols.min() : cols.max() + 1]
        assert 0.01 < box[0].numel() / 64**2 < 0.35
        assert changed.sum() > 0.99 * box[0].numel()  # a full box
        noise.append(box.double().flatten())
    noise = torch.cat(noise)
    assert_close(noise.mean() / 255, torch.tensor(0.5), 0.01)
    assert_close(noise.std() / 255, torch.tensor(0.1), 0.02)


def test_nonsense_for_randaugment_is_refused():
    with pytest.raises(ValueError, match=r"augment\.randaugment='augmix-m3' is not RandAugment"):
        TrainTransform(DataConfig(img_size=8), AugmentConfig(randaugment="augmix-m3"))


def test_normalising():
    images = torch.randint(0, 256, (2, 3, 4, 4), dtype=torch.uint8)
    mean, std = (0.4, 0.5, 0.6), (0.1, 0.2, 0.3)
    found = normalise(images, mean, std)
    assert found.dtype == torch.float32
    assert_close(found, v2.functional.normalize(images.float() / 255, list(mean), list(std)), 1e-5)
    assert_close(normalise(images.float(), list(mean), list(std)), found, 0)
    with pytest.raises(ValueError, match=r"images must have shape \(…, 3, H, W\).* got \(2, 1, 4, 4\)"):
        normalise(images[:, :1], mean, std)


def test_normalising_within_inference_does_not_spoil_gradients():
    mean, std = (0.41, 0.5, 0.6), (0.1, 0.2, 0.3)
    with torch.inference_mode():
        normalise(torch.zeros(3, 2, 2), mean, std)
    images = torch.zeros(3, 2, 2, requires_grad=True)
    normalise(images, mean, std).sum().backward()
    assert_close(images.grad[:, 0, 0], 1 / (255 * torch.tensor(std)), 1e-7)


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "LA", "CMYK", "1", "YCbCr"])
@pytest.mark.parametrize("in_chans", [1, 3])
def test_any_mode_becomes_grey_or_rgb(mode, in_chans):
    image = Image.fromarray(pixels(0)).convert(mode)
    expected = image.convert("RGB").convert("L") if mode == "P" else image.convert("L")
    expected = expected if in_chans == 1 else image.convert("RGB")
    found = to_channels(image, in_chans)
    assert found.mode == ("L" if in_chans == 1 else "RGB")
    assert np.array_equal(np.array(found), np.array(expected))


def test_16_bit_greys_are_scaled():
    values = np.array([[0, 128, 257, 65535], [1000, 32896, 40000, 65278]], dtype=np.uint16)
    expected = np.round(values / 257)
    for form in ("PNG", "TIFF"):
        image = decode_image(encode(Image.fromarray(values), form))
        assert np.array_equal(np.array(to_channels(image, 1)), expected)
        assert np.array_equal(np.array(to_channels(image, 3))[..., 2], expected)


def test_pixels_of_unknown_range_are_refused():
    with pytest.raises(ValueError, match="unknown range"):
        to_channels(Image.fromarray(np.ones((2, 2), dtype=np.float32)), 3)
    with pytest.raises(ValueError, match="16 bits"):
        to_channels(Image.fromarray(np.full((2, 2), 70_000, dtype=np.int32)), 3)


@pytest.mark.parametrize("form", ["PNG", "WEBP", "BMP", "TIFF", "PPM"])
def test_lossless_formats_are_decoded_to_their_pixels(form):
    options = {"lossless": True} if form == "WEBP" else {}
    assert np.array_equal(np.array(decode_image(encode(pixels(0), form, **options))), pixels(0))


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM"])
def test_truncated_files_are_errors(form):
    data = encode(pixels(0, 64, 64), form)
    decode_image(data)
    with pytest.raises((OSError, SyntaxError, ValueError, EOFError)):
        decode_image(data[: len(data) // 2])


def test_formats_sizes_and_bombs_are_refused(monkeypatch):
    for form in ("ICO", "TGA", "PCX"):
        with pytest.raises(OSError, match="cannot identify"):
            decode_image(encode(pixels(0, 16, 16), form))
    with pytest.raises(ValueError, match="empty"):
        decode_image(b"")
    with pytest.raises(ValueError, match="more than the limit"):
        check_encoded_size(MAX_BYTES + 1)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 150)
    with pytest.raises(Image.DecompressionBombWarning):
        decode_image(encode(pixels(0, 16, 16)))  # 256 pixels, of which Pillow alone would warn
    assert decode_image(encode(pixels(0, 10, 15))).size == (15, 10)
