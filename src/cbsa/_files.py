"""Files that are whole or not there, and folders that can hold them."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import IO


def write_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file so that ``path`` holds either its old content or all of the new one, whatever happens.

    The content goes to a temporary file beside it, reaches the disk (fsync), and is renamed. If anything
    fails, a full disk say, the temporary file is removed and the old content stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the rename too
    finally:
        os.close(folder)


def write_text_atomically(path: Path, text: str) -> None:
    """Write a text file whole or not at all; see :func:`write_atomically`."""
    write_atomically(path, lambda file: file.write(text.encode()))


def prepare_file(path: Path) -> None:
    """Create the folder of a file for results, and refuse a path that is a folder itself, likewise."""
    if path.is_dir():
        raise ValueError(f"cannot write to {path}: it is a folder; give the name of a file")
    prepare_folder(path.parent)


def prepare_folder(folder: Path) -> None:
    """Create the folder for results, before work is done that would be lost without it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ValueError(f"cannot write into {folder}: {error.strerror}; choose another folder") from error
