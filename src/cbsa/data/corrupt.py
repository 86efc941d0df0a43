"""Images that cannot be read: reported, counted, and too many of them an error."""

import json
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

from cbsa._checks import check_int

_MOST_NAMED = 5  # images that the error lists


class TooManyCorruptImages(RuntimeError):  # noqa: N818
    """More images could not be read than ``data.max_corrupt`` allows."""


class CorruptLog:
    """Keeps account of unreadable images.

    Args:
        limit: how many are tolerated.
        path: file that each is appended to, as a JSON object on a line.
        report: called with a message for each; by default a warning.
    """

    def __init__(
        self, limit: int, path: Path | None = None, report: Callable[[str], None] | None = None
    ) -> None:
        self.limit = check_int("data.max_corrupt", limit, at_least=0)
        self.path = path
        self._report = report or _warn
        self._errors: dict[str, str] = {}

    @property
    def count(self) -> int:
        """Number of distinct images recorded."""
        return len(self._errors)

    def entries(self) -> list[tuple[str, str]]:
        """Images recorded, with their errors."""
        return list(self._errors.items())

    def record(self, identity: str, error: str) -> None:
        """Record an image, once; raise :class:`TooManyCorruptImages` if there are more than ``limit``."""
        if identity in self._errors:
            return
        self._errors[identity] = error
        self._write(identity, error)
        self._report(f"cannot read {identity}: {error}")
        if self.count > self.limit:
            last = "; ".join(f"{name} ({why})" for name, why in list(self._errors.items())[-_MOST_NAMED:])
            raise TooManyCorruptImages(
                f"{self.count} images cannot be read, more than data.max_corrupt={self.limit}; the last: "
                f"{last}. Mend or remove them, or raise data.max_corrupt"
            )

    def _write(self, identity: str, error: str) -> None:
        """Append to the file; a disk that is full loses the line, which is reported all the same."""
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps({"image": identity, "error": error}) + "\n")
        except OSError as problem:
            self._report(f"{self.path} could not be written ({problem})")

    def record_all(self, failures: Iterable[tuple[str, str]]) -> None:
        """Record pairs of an image and its error."""
        for identity, error in failures:
            self.record(identity, error)


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=3)
