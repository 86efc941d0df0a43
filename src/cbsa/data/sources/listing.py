"""Image files below a folder."""

import os
from collections.abc import Iterator
from pathlib import Path

from cbsa.data.decode import EXTENSIONS

_COMPANION = "._"  # how names of the files begin that macOS writes beside others on foreign disks


def image_files(folder: Path) -> Iterator[str]:
    """Paths of the image files below a folder, relative to it, in the order of torchvision's ``ImageFolder``.

    Links are followed, but not one that leads back to a folder it lies in.
    """
    above = {os.fspath(folder): {os.path.realpath(folder)}}  # folder: the real places on the way to it
    found = []
    for parent, inside, files in os.walk(folder, onerror=_refuse, followlinks=True):
        way = above.pop(parent)
        reals = {name: os.path.realpath(os.path.join(parent, name)) for name in inside}
        inside[:] = [name for name in inside if not any(_holds(reals[name], place) for place in way)]
        above |= {os.path.join(parent, name): way | {reals[name]} for name in inside}
        found.append((parent, files))
    for parent, files in sorted(found):
        for name in sorted(files):
            if name.lower().endswith(EXTENSIONS) and not name.startswith(_COMPANION):
                yield os.path.normpath(os.path.join(os.path.relpath(parent, folder), name))


def _holds(folder: str, place: str) -> bool:
    """Whether a place is a folder or lies below it."""
    return os.path.join(place, "").startswith(os.path.join(folder, ""))


def _refuse(error: OSError) -> None:
    """Folders that cannot be looked into would else be passed over."""
    raise ValueError(f"cannot look into {error.filename}: {error.strerror}") from error
