"""Images from outside: those that cannot be shown are refused with a reason, all others come out right."""

import io
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from cbsa.data import DataConfig
from cbsa.explain import ImageError, open_image, write_explorer
from cbsa.explain.images import data_uri, see
from tests.explain.pages import picture, subject

DATA = DataConfig(img_size=24, crop_pct=1.0)


def png_header(width, height):
    """A PNG that claims a size, with almost nothing in it."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")


def encoded(image, kind="PNG", **options):
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8))
BAD = {
    "not an image": (
        b"#!/bin/sh\necho hello\n" * 20,
        r"is not an image of a known kind: give one of JPEG, PNG",
    ),
    "empty": (b"", "the file is empty"),
    "truncated jpeg": (encoded(NOISE, "JPEG")[:900], "is damaged or truncated"),
    "truncated png": (encoded(NOISE)[:3000], "is damaged or truncated"),
    "bomb": (png_header(60_000, 60_000), "more than 89 million pixels: make it smaller first"),
    "10,000 px square": (png_header(10_000, 10_000), "more than 89 million pixels"),
    "vector": (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "is not an image of a known kind"),
    "floating": (encoded(Image.new("F", (30, 30)), "TIFF"), "floating-point pixels"),
}


@pytest.mark.parametrize("kind", BAD)
def test_refused_with_name_and_reason(kind, tmp_path):
    data, message = BAD[kind]
    path = tmp_path / "photo.png"
    path.write_bytes(data)
    with pytest.raises(ImageError, match=message) as caught:
        write_explorer([path], [subject(depth=1)], tmp_path / "page.html")
    assert "photo.png" in str(caught.value)
    assert not (tmp_path / "page.html").exists()


def test_a_file_above_the_limit_is_not_read(tmp_path):
    path = tmp_path / "large.jpg"
    with path.open("wb") as file:
        file.truncate(300 << 20)  # sparse: takes no space
    with pytest.raises(ImageError, match="more than the limit of 268435456"):
        open_image(path)


def test_a_missing_file_and_a_folder(tmp_path):
    with pytest.raises(ImageError, match=r"nowhere\.png: no such file"):
        open_image(tmp_path / "nowhere.png")
    with pytest.raises(ImageError, match="cannot be read"):
        open_image(tmp_path)


def test_too_long_to_be_resized(tmp_path):
    path = tmp_path / "line.png"
    Image.new("RGB", (20_000, 1)).save(path)
    with pytest.raises(ImageError, match=r"line\.png: the image is too long to be resized: 20000×1"):
        see(open_image(path), DataConfig(img_size=224), path.name)


@pytest.mark.parametrize("size", [(1, 1), (10_000, 30), (3, 500)])
def test_any_other_size_is_shown(size, tmp_path):
    path = tmp_path / "odd.png"
    Image.new("RGB", size, (10, 200, 30)).save(path)
    shown, pixels = see(open_image(path), DATA, "odd")
    assert shown.size == (24, 24)
    assert pixels.shape == (1, 3, 24, 24)
    assert np.abs(np.asarray(shown).astype(int) - (10, 200, 30)).max() <= 1
    assert write_explorer([path], [subject(depth=1)], tmp_path / "page.html").is_file()


def modes():
    grey = Image.linear_gradient("L").resize((24, 24))
    colour = Image.merge(
        "RGB", (grey, grey.transpose(Image.Transpose.ROTATE_90), Image.new("L", (24, 24), 90))
    )
    deep = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257)
    with_alpha = colour.copy()
    with_alpha.putalpha(grey)
    return {
        "CMYK": (colour.convert("CMYK"), "TIFF", colour, 0),
        "grey": (grey, "PNG", grey, 0),
        "grey and alpha": (grey.convert("LA"), "PNG", grey, 0),
        "alpha": (with_alpha, "PNG", colour, 0),
        "16 bits": (deep, "PNG", grey, 0),
        "palette": (colour.quantize(256), "PNG", colour, 40),
        "one bit": (
            grey.point(lambda v: 255 * (v > 127)).convert("1"),
            "PNG",
            grey.point(lambda v: 255 * (v > 127)),
            0,
        ),
    }


@pytest.mark.parametrize("mode", modes())
def test_modes_come_out_as_8_bit_colours(mode, tmp_path):
    image, kind, expected, tolerance = modes()[mode]
    path = tmp_path / "image"
    path.write_bytes(encoded(image, kind))
    shown, pixels = see(open_image(path), DATA, "image")
    difference = np.asarray(shown).astype(int) - np.asarray(expected.convert("RGB")).astype(int)
    assert np.abs(difference).max() <= tolerance
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (DATA.mean, DATA.std))
    back = ((pixels[0] * std + mean) * 255).permute(1, 2, 0).numpy()
    assert np.abs(back - np.asarray(shown)).max() < 1e-2


# By the orientation: where EXIF says that the first row and column meet, and the first row's other end.
ENDS = {
    1: ("top left", "top right"),
    2: ("top right", "top left"),
    3: ("bottom right", "bottom left"),
    4: ("bottom left", "bottom right"),
    5: ("top left", "bottom left"),
    6: ("top right", "bottom right"),
    7: ("bottom right", "top right"),
    8: ("bottom left", "top left"),
}
CORNERS = {
    f"{row} {column}": (y, x)
    for row, y in (("top", slice(12)), ("bottom", slice(12, None)))
    for column, x in (("left", slice(12)), ("right", slice(12, None)))
}


@pytest.mark.parametrize("orientation", ENDS)
def test_turned_upright_by_its_exif_orientation(orientation, tmp_path):
    lying = Image.new("RGB", (24, 24), "white")
    lying.paste((255, 0, 0), (0, 0, 12, 12))  # red where the first row begins, blue where it ends
    lying.paste((0, 0, 255), (12, 0, 24, 12))
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / "phone.jpg"
    lying.save(path, quality=98, exif=exif)
    shown = np.asarray(see(open_image(path), DATA, "phone")[0]).astype(int)
    for corner, (y, x) in CORNERS.items():
        red, green, blue = shown[y, x].mean((0, 1))
        assert (red - blue > 150) == (corner == ENDS[orientation][0])
        assert (blue - red > 150) == (corner == ENDS[orientation][1])
        assert (green > 150) == (corner not in ENDS[orientation])


def test_grey_models_see_grey(tmp_path):
    path = picture(tmp_path / "colour.png")
    shown, pixels = see(
        open_image(path), DataConfig(img_size=24, in_chans=1, mean=(0.5,), std=(0.5,)), "colour"
    )
    assert shown.mode == "L"
    assert pixels.shape == (1, 1, 24, 24)


def test_small_pictures_are_stored_without_loss():
    small, large = NOISE.crop((0, 0, 32, 32)), NOISE.resize((200, 200))
    assert data_uri(small).startswith("data:image/png;base64,")
    assert data_uri(large).startswith("data:image/jpeg;base64,")
