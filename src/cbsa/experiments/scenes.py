"""A few images of coloured rectangles with their masks, drawn: a stand-in where a data set is wanted."""

from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("ground", "red", "green")
_COLOURS = np.array([(90, 90, 110), (220, 40, 30), (40, 200, 60)], dtype=np.uint8)
_TRAIN, _VAL, _SIDE = 8, 4, 24  # images of the splits, and their side in pixels
_RECTANGLES, _NOISE = 3, 20  # in an image; largest change of a colour


def write_scenes(root: Path) -> Path:
    """Write ``images/SPLIT``, ``masks/SPLIT`` and ``classes.txt`` into a folder, and return it."""
    for split, count, first in (("train", _TRAIN, 0), ("val", _VAL, _TRAIN)):
        for index in range(count):
            image, mask = _draw(first + index, _SIDE)
            for folder, pixels in (("images", image), ("masks", mask)):
                path = root / folder / split / f"{index:03d}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(path)
    (root / "classes.txt").write_text("".join(f"{name}\n" for name in CLASSES))
    return root


def _draw(seed: int, side: int) -> tuple[np.ndarray, np.ndarray]:
    """Image (side, side, 3) and its classes (side, side)."""
    draw = np.random.default_rng(seed)
    mask = np.zeros((side, side), dtype=np.uint8)
    for _ in range(_RECTANGLES):
        top, left = draw.integers(0, side // 2, 2)
        height, width = draw.integers(side // 4, side // 2, 2)
        mask[top : top + height, left : left + width] = draw.integers(1, len(CLASSES))
    noise = draw.integers(-_NOISE, _NOISE + 1, (side, side, 3))
    return np.clip(_COLOURS[mask].astype(int) + noise, 0, 255).astype(np.uint8), mask
