"""The folder of a run: its settings, its lock, and what it leaves behind."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cbsa._files import prepare_folder, write_text_atomically
from cbsa.train.config import RunConfig, TrainConfig
from cbsa.train.fields import differences, from_dict, to_dict
from cbsa.train.kinds import config_of, expect

# Settings that change how a run is carried out but not what it is: they may differ when it goes on.
FREE = ("runtime.", "checkpoint.", "data.root", "data.workers", "data.store", "data.download", "log_every")


class FolderInUseError(RuntimeError):
    """Another process is training in the folder."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep a second run out of the folder; the lock goes with the process, however it ends."""
    prepare_folder(folder)
    with (folder / ".lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise FolderInUseError(
                f"{folder} is in use by another run (process {file.read().strip() or 'unknown'}); wait for "
                "it, or choose another folder with --out"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def settle_config(folder: Path, config: RunConfig) -> None:
    """Store the settings of a new run; for one that goes on, see that they are the ones it began with.

    A run without a checkpoint, stopped by a mistyped setting say, has nothing to go on from: it begins anew.
    One that has come to its end keeps its settings, also where its checkpoints were deleted for their space.
    """
    path = folder / "config.json"
    kept = any((folder / "checkpoints").glob("*.pt")) or (folder / "summary.json").is_file()
    if path.is_file() and kept:
        given = from_dict(type(config), to_dict(config))  # as it is read back, with lists for tuples
        before = expect(type(config), read_run_config(folder), str(folder), exactly=True)
        changed = [n for n in differences(before, given) if not n.startswith(FREE)]
        if changed:
            raise ValueError(
                f"{folder} holds a run with other settings ({', '.join(changed)} differ); go on with the "
                "same settings, or choose another folder with --out"
            )
    write_text_atomically(path, json.dumps(to_dict(config), indent=2) + "\n")


def read_config(folder: Path) -> TrainConfig:
    """The settings stored with a run that trains a classifier."""
    return expect(TrainConfig, read_run_config(folder), str(folder))


def read_run_config(folder: Path) -> RunConfig:
    """The settings stored with a run of any task."""
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{folder} has no config.json: it is not the folder of a run")
    try:
        return config_of(json.loads(path.read_text()))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not the configuration of a run: {error}") from error


def write_summary(folder: Path, summary: dict[str, Any]) -> None:
    """Write the result of a run."""
    write_text_atomically(folder / "summary.json", json.dumps(summary, indent=2) + "\n")


def read_summary(folder: Path) -> dict[str, Any] | None:
    """The result of a run that has come to its end."""
    path = folder / "summary.json"
    if not path.is_file():
        return None
    try:
        summary: dict[str, Any] = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is not the summary of a run: {error}") from error
    return summary
