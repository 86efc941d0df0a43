"""What the integers in masks mean: classes, pixels to ignore, and mistakes."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from cbsa.data import label_names as names

IGNORE = 255  # label of ignored pixels, whatever the files have
_MOST_NAMED = 5  # wrong labels that an error lists
Mask = npt.NDArray[np.uint8]
Colours = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class LabelSet:
    """The classes of a data set and how its masks write them.

    Attributes:
        classes: names.
        values: the mask's integer for each class.
        ignored: integers of pixels that count for nothing.
        colours: red, green and blue of each class, for pictures; by default those of VOC's colour map.
    """

    classes: tuple[str, ...]
    values: tuple[int, ...]
    ignored: tuple[int, ...] = (IGNORE,)
    colours: Colours = ()
    _table: Mask = field(init=False, repr=False, compare=False)
    _known: npt.NDArray[np.bool_] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 1 <= len(self.classes) < IGNORE:
            raise ValueError(f"there must be 1 to {IGNORE - 1} classes, got {len(self.classes)}")
        written = (*self.values, *self.ignored)
        if len(self.values) != len(self.classes) or len(set(written)) != len(written):
            raise ValueError(
                f"each of the {len(self.classes)} classes needs a value of its own, got {written}"
            )
        table, known = np.full(256, IGNORE, dtype=np.uint8), np.zeros(256, dtype=bool)
        table[list(self.values)] = np.arange(len(self.classes))
        known[list(written)] = True
        colours = self.colours or voc_colours(len(self.classes))
        for name, value in (("_table", table), ("_known", known), ("colours", colours)):
            object.__setattr__(self, name, value)

    def encode(self, mask: Mask) -> Mask:
        """Classes of a mask's pixels, from 0; 255 for those ignored. Raises at any other integer."""
        if not self._known[mask].all():
            wrong = [label for label in np.unique(mask) if not self._known[label]]
            shown = ", ".join(map(str, wrong[:_MOST_NAMED])) + (", …" if len(wrong) > _MOST_NAMED else "")
            raise ValueError(
                f"the mask has the labels {shown} outside of the {len(self.classes)} classes; expected "
                f"{_ranges(self.values)}"
                + (f", or {_ranges(self.ignored)} for pixels to ignore" if self.ignored else "")
            )
        classes: Mask = self._table[mask]
        return classes


def voc_colours(count: int) -> Colours:
    """The colour map of PASCAL VOC: the bits of a label spread over red, green and blue; 0 is black."""
    colours = []
    for label in range(count):
        channels = [0, 0, 0]
        for bit in range(8):
            for channel in range(3):
                channels[channel] |= (label >> (3 * bit + channel) & 1) << (7 - bit)
        colours.append((channels[0], channels[1], channels[2]))
    return tuple(colours)


def _ranges(values: Sequence[int]) -> str:
    """Integers in words, such as "0–10, 255"."""
    parts: list[list[int]] = []
    for value in sorted(values):
        if parts and value == parts[-1][1] + 1:
            parts[-1][1] = value
        else:
            parts.append([value, value])
    return ", ".join(str(low) if low == high else f"{low}–{high}" for low, high in parts)


def _spread(count: int) -> Colours:
    """VOC's colours without its black, for sets that have no background."""
    return voc_colours(count + 1)[1:]


def _hex(listed: str) -> Colours:
    """Colours in the notation of web pages."""
    return tuple((int(c[:2], 16), int(c[2:4], 16), int(c[4:], 16)) for c in listed.split())


_CITYSCAPES_COLOURS = _hex(
    "804080 f423e8 464646 66669c be9999 999999 faaa1e dcdc00 6b8e23 98fb98 4682b4 dc143c "
    "ff0000 00008e 000046 003c64 005064 0000e6 770b20"
)
_CAMVID_COLOURS = _hex("808080 800000 c0c080 804080 3c28de 808000 c08080 404080 400080 404000 0080c0")
_CITYSCAPES_IDS = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
_CITYSCAPES_VOID = (0, 1, 2, 3, 4, 5, 6, 9, 10, 14, 15, 16, 18, 29, 30, 255)  # 255 is -1, licence plates

ADE20K = LabelSet(names.ADE20K, tuple(range(1, 151)), (0,), _spread(150))
CITYSCAPES = LabelSet(names.CITYSCAPES, _CITYSCAPES_IDS, _CITYSCAPES_VOID, _CITYSCAPES_COLOURS)
CITYSCAPES_TRAIN_IDS = LabelSet(names.CITYSCAPES, tuple(range(19)), (255,), _CITYSCAPES_COLOURS)
PASCAL_CONTEXT = LabelSet(names.PASCAL_CONTEXT, tuple(range(1, 60)), (0, 255), _spread(59))
PASCAL_CONTEXT_60 = LabelSet(("background", *names.PASCAL_CONTEXT), tuple(range(60)))
VOC = LabelSet(names.VOC, tuple(range(21)))
CAMVID = LabelSet(names.CAMVID, tuple(range(11)), (11, 255), _CAMVID_COLOURS)
PETS = LabelSet(names.PETS, (1, 2, 3), (), _hex("e66101 283c6e fde082"))
