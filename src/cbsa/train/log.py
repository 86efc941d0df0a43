"""The log of a run: every entry as a JSON line, the epochs as CSV, and TensorBoard where it is installed."""

import csv
import io
import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cbsa._files import write_text_atomically


class RunLog:
    """Writes ``log.jsonl``, ``epochs.csv`` and ``tensorboard/`` into a run's folder.

    A disk that is full stops no run: the first entry that is lost is reported.

    Args:
        folder: folder of the run.
        tell: called with a message when entries are lost.
    """

    def __init__(self, folder: Path, tell: Callable[[str], object]) -> None:
        self.folder, self.tell = folder, tell
        self.path = folder / "log.jsonl"
        self._reported = self._torn = False
        self._board: Any = None

    def rewind(self, step: int) -> None:
        """Forget entries after ``step``: the run goes on from there, and will write them again."""
        if self.path.is_file():
            kept = [json.dumps(r) for r in read_log(self.folder) if r["step"] <= step]
            write_text_atomically(self.path, "".join(f"{line}\n" for line in kept))
        if find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(  # type: ignore[no-untyped-call]
                self.folder / "tensorboard", purge_step=step + 1
            )

    def add(self, kind: str, record: dict[str, Any]) -> None:
        """Add an entry of a kind, ``"step"`` or ``"epoch"``; it has a ``step``."""
        try:
            with self.path.open("a") as file:
                begin = "\n" if self._torn else ""  # a full disk may have cut off the last line
                file.write(f"{begin}{json.dumps({'kind': kind, **record})}\n")
            self._torn = False
            if kind == "epoch":
                write_text_atomically(self.folder / "epochs.csv", _as_csv(read_epochs(self.folder)))
            if self._board is not None:
                for name, value in record.items():
                    if isinstance(value, (int, float)) and name != "step":
                        self._board.add_scalar(f"{kind}/{name}", value, record["step"])
        except OSError as error:
            self._torn = True
            if not self._reported:
                self.tell(f"the log could not be written ({error}); the run goes on without it")
            self._reported = True

    def close(self) -> None:
        """Finish writing."""
        if self._board is not None:
            self._board.close()


def read_log(folder: Path) -> list[dict[str, Any]]:
    """All entries of a run's log; a line torn by a crash is left out."""
    records = []
    for line in (folder / "log.jsonl").read_text(errors="replace").splitlines():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(record, dict) and isinstance(record.get("step"), int):
            records.append(record)
    return records


def read_epochs(folder: Path) -> list[dict[str, Any]]:
    """The entries of a run's log that describe an epoch."""
    if not (folder / "log.jsonl").is_file():
        raise FileNotFoundError(f"{folder} has no log.jsonl: it is not the folder of a run")
    return [r for r in read_log(folder) if r.get("kind") == "epoch"]


def _as_csv(records: list[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(name for r in records for name in r if name != "kind"))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()
