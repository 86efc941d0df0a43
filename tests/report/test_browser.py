"""The page in a real browser: it shows something, at any width, in light and dark."""

import shutil
import subprocess

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from cbsa.report import Picture, Section, write_page

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs Chromium (Debian: apt-get install chromium)")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    figure = Figure(figsize=(8, 3))
    figure.subplots().plot([0, 1, 2], [0, 1, 4], color="red", linewidth=6)
    sections = [Section("A section", "Some text. " * 40, [Picture(figure, "A caption", "A red curve")])] * 2
    return write_page(
        tmp_path_factory.mktemp("page"), "A title", [("accuracy", "98 %")] * 5, sections, lead="A lead."
    )


def screenshot(page, folder, width, *options):
    """Pixels (height, width, 3) of the page in a window of that width."""
    path = folder / "page.png"
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", *options]
    command += [
        f"--user-data-dir={folder / 'profile'}",
        f"--screenshot={path}",
        f"--window-size={width},1600",
    ]
    subprocess.run([*command, page.as_uri()], check=True, capture_output=True, timeout=120)
    return np.asarray(Image.open(path).convert("RGB")).astype(int)


@pytest.mark.parametrize("width", [1200, 600])
def test_text_and_figures_are_there(page, tmp_path, width):
    pixels = screenshot(page, tmp_path, width)
    assert pixels.shape[:2] == (1600, width)
    red = (pixels[..., 0] > 200) & (pixels[..., 1:].max(-1) < 80)
    assert red.sum() > 500  # the curve
    rows = (pixels.sum(-1) < 200).any(1)
    assert rows[: 1600 // 4].any()  # dark letters of the title


def test_nothing_touches_the_right_edge(page, tmp_path):
    """On a narrow screen too: wide figures scroll within their sheet, the page itself does not."""
    for width in (1200, 600):
        edge = screenshot(page, tmp_path, width)[60:, -3:]  # below the coloured bar at the top
        other = (edge != edge[0, 0]).any(axis=(1, 2))
        assert other.sum() <= 2  # the line above the footer goes from edge to edge


def test_dark_mode_is_dark(page, tmp_path):
    light = screenshot(page, tmp_path, 900)[-1, 0].mean()
    dark = screenshot(page, tmp_path, 900, "--blink-settings=preferredColorScheme=0")[-1, 0].mean()
    assert light > 200
    assert dark < 80


def test_nothing_is_fetched(page):
    text = page.read_text()
    for mark in ("http://", "https://", "<script", "@import"):
        assert mark not in text.replace("http://www.w3.org/", "")
