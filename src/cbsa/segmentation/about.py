"""What a segmenter's weights do not tell and its users need to know; stored beside them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cbsa._checks import check_int
from cbsa.segmentation.windows import WindowConfig

_LONGEST_NAME = 200  # characters of a class's name


@dataclass(frozen=True)
class About:
    """What the classes are, and how images are to be looked at; empty where it is not known.

    Attributes:
        classes: name of each class.
        colours: red, green and blue of each, for pictures.
        short_side: shorter side that images are resized to; 0 leaves them as they are.
        windows: size and stride of the windows.
    """

    classes: tuple[str, ...] = ()
    colours: tuple[tuple[int, int, int], ...] = ()
    short_side: int = 0
    windows: WindowConfig | None = None

    def stored(self) -> dict[str, Any]:
        """What is known, as values for JSON."""
        windows = asdict(self.windows) if self.windows is not None else {}
        values = {
            "classes": list(self.classes),
            "colours": [list(colour) for colour in self.colours],
            "short_side": self.short_side,
            "windows": {key: list(windows[key]) for key in ("size", "stride") if key in windows},
        }
        return {key: value for key, value in values.items() if value}

    @classmethod
    def of_stored(cls, content: Mapping[str, Any], num_classes: int) -> "About":
        """Read what :meth:`stored` gave; it is not trusted. Raises ValueError or TypeError."""
        windows = content.get("windows")
        return cls(
            tuple(_name(name) for name in _one_each("classes", content, num_classes)),
            tuple(_colour(colour) for colour in _one_each("colours", content, num_classes)),
            check_int("short_side", content.get("short_side", 0), at_least=0),
            WindowConfig(tuple(windows["size"]), tuple(windows["stride"])) if windows else None,
        )


def _one_each(key: str, content: Mapping[str, Any], num_classes: int) -> Sequence[Any]:
    values = content.get(key, [])
    if not isinstance(values, list) or (values and len(values) != num_classes):
        found = f"{len(values)} of them" if isinstance(values, list) else repr(values)
        raise ValueError(f"{key} must be a list with an entry for each of {num_classes} classes, got {found}")
    return values


def _name(name: Any) -> str:
    """A name that a terminal can show."""
    if not isinstance(name, str):
        raise TypeError(f"the name of a class must be a text, got {name!r}")
    return "".join(c if c.isprintable() else "\ufffd" for c in name[:_LONGEST_NAME])


def _colour(colour: Any) -> tuple[int, int, int]:
    red, green, blue = (check_int("a colour", channel, at_least=0) for channel in colour)
    if max(red, green, blue) > 255:
        raise ValueError(f"a colour must be red, green and blue from 0 to 255, got {colour}")
    return red, green, blue
