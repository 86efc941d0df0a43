"""Checkpoints of a run on disk: written whole or not at all, the newest readable one is used."""

import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from cbsa._files import write_atomically
from cbsa.models.checkpoints import MAX_BYTES, CheckpointError
from cbsa.train.config import RunConfig, TrainConfig
from cbsa.train.fields import to_dict
from cbsa.train.kinds import config_of, expect

FORMAT = "cbsa-run-1"
_NAME = re.compile(r"step-(\d+)\.pt")


class CheckpointFolder:
    """The newest checkpoints of a run (``step-….pt``) and the best one (``best.pt``).

    Args:
        folder: where they lie.
        keep: how many of the newest to keep.
        tell: called with a message when a checkpoint could not be written or read.
    """

    def __init__(self, folder: Path, keep: int, tell: Callable[[str], object]) -> None:
        self.folder, self.keep, self.tell = folder, keep, tell

    def numbered(self) -> list[Path]:
        """Checkpoints by step, the newest first."""
        found = [path for path in self.folder.glob("*.pt") if _NAME.fullmatch(path.name)]
        return sorted(found, key=_step_of, reverse=True)

    def save(self, state: dict[str, Any], step: int, config: RunConfig) -> bool:
        """Write a checkpoint and remove old ones; False, and a message, if it could not be written.

        A full disk stops nothing: older checkpoints stay, and the next one is tried in its turn.
        """
        if not self._write(self.folder / f"step-{step:09d}.pt", state, config):
            return False
        # Later ones could not be read when the run went on from before them; they must not crowd out this.
        later = [path for path in self.numbered() if _step_of(path) > step]
        for path in [*later, *self.numbered()[len(later) + self.keep :]]:
            path.unlink(missing_ok=True)
        return True

    def save_best(self, state: dict[str, Any], config: RunConfig) -> bool:
        """Write ``best.pt``; False, and a message, if it could not be written."""
        return self._write(self.folder / "best.pt", state, config)

    def newest(self) -> dict[str, Any] | None:
        """The newest checkpoint that can be read; unreadable ones are named to the user and passed over."""
        paths = self.numbered()
        for path in paths:
            try:
                return read_run_checkpoint(path)
            except (CheckpointError, OSError) as error:
                last = path == paths[-1]
                self.tell(
                    f"{error}. "
                    + ("There is none before it." if last else "The checkpoint before it is used instead.")
                )
        return None

    def _write(self, path: Path, state: dict[str, Any], config: RunConfig) -> bool:
        content = {"format": FORMAT, "config": json.dumps(to_dict(config)), **state}
        try:
            write_atomically(path, lambda file: torch.save(content, file))
        except (OSError, RuntimeError) as error:  # PyTorch's writer makes RuntimeErrors of the disk's
            left = ", ".join(p.name for p in self.numbered()) or "none"
            self.tell(f"{path} could not be written ({error}). Older checkpoints are intact: {left}.")
            return False
        return True


def read_run_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint of a run: tensors and plain values, no code (``weights_only``)."""
    if path.stat().st_size > 4 * MAX_BYTES:
        raise CheckpointError(
            f"{path} has {path.stat().st_size} bytes, more than the limit of {4 * MAX_BYTES}"
        )
    try:
        with zipfile.ZipFile(path) as archive:  # PyTorch stores checksums but does not look at them
            damaged = archive.testzip()
        if damaged is not None:
            raise zipfile.BadZipFile(f"{damaged} does not have its checksum")
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a torn file may break its reader in any way
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise CheckpointError(f"{path} is torn or not a checkpoint ({reason})") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT or "model" not in content:
        raise CheckpointError(f"{path} is not a checkpoint of a run of cbsa (format {FORMAT})")
    return content


def _step_of(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else -1


def stored_config(content: dict[str, Any]) -> TrainConfig:
    """The settings inside a checkpoint of a classifier."""
    return expect(TrainConfig, config_of(json.loads(content["config"])), "the checkpoint")
