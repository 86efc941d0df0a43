"""The file of a benchmark: written after each row, so that a long run survives being killed."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cbsa._files import prepare_folder, write_text_atomically

Row = dict[str, Any]

DONE, REFUSED, NOT_RUN = "done", "refused", "not run"
# What a number depends on beside its row's key: rows of another machine, version or code are measured anew.
_ORIGIN = ("device", "cbsa", "torch", "triton", "timm", "code")


@dataclass
class Results:
    """Rows of a benchmark with their origin.

    Attributes:
        kind: which benchmark it is: ``"ops"``, ``"models"``, …
        key: fields of a row that say which number it is.
        environment: machine and versions.
        commands: the commands that measured the rows.
        ceilings: what the machine can do at most, where it was measured.
        rows: one number each, in the order in which they were measured.
    """

    kind: str
    key: tuple[str, ...]
    environment: dict[str, str]
    commands: list[str] = field(default_factory=list)
    ceilings: dict[str, Any] | None = None
    rows: list[Row] = field(default_factory=list)

    def find(self, wanted: Mapping[str, Any]) -> Row | None:
        """The row with this key, if it was measured."""
        return next((row for row in self.rows if all(row[k] == wanted[k] for k in self.key)), None)

    def put(self, row: Row) -> None:
        """Add a row, in the place of the one with the same key if there is one."""
        missing = [k for k in self.key if k not in row]
        if missing:
            raise ValueError(f"a row of {self.kind} lacks {', '.join(missing)}")
        for place, old in enumerate(self.rows):
            if all(old[k] == row[k] for k in self.key):
                self.rows[place] = row
                return
        self.rows.append(row)

    def save(self, path: Path) -> None:
        """Write all of it as JSON, whole or not at all."""
        payload = {
            "kind": self.kind,
            "command": self.commands[-1] if self.commands else "",
            "commands": self.commands,
            "environment": self.environment,
            "ceilings": self.ceilings,
            "key": list(self.key),
            "rows": self.rows,
        }
        write_text_atomically(path, json.dumps(payload, indent=1, allow_nan=False) + "\n")


def load_results(path: Path) -> Results:
    """Read a file of results."""
    try:
        data = json.loads(path.read_text())
        return Results(
            data["kind"],
            tuple(data["key"]),
            data["environment"],
            data["commands"],
            data["ceilings"],
            data["rows"],
        )
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} does not hold results of cbsa bench ({type(error).__name__}: {error})"
        ) from error


def open_results(
    path: Path, kind: str, key: tuple[str, ...], environment: dict[str, str], command: str, fresh: bool
) -> tuple[Results, str | None]:
    """Go on with a file, or start one; the second value says what became of a file that does not fit.

    Rows of another machine, version or code are not mixed with new ones: the old file is kept beside the new
    one as ``NAME.previous.json``.
    """
    prepare_folder(path.parent)
    new = Results(kind, key, environment, [command])
    if fresh or not path.exists():
        return new, None
    old = load_results(path)
    if old.kind != kind or old.key != key:
        raise ValueError(f"{path} holds results of another benchmark ({old.kind}): choose another --out")
    changed = [k for k in _ORIGIN if old.environment.get(k) != environment.get(k)]
    if changed:
        kept = path.with_suffix(".previous.json")
        old.save(kept)
        what = ", ".join(f"{k} {old.environment.get(k)} → {environment.get(k)}" for k in changed)
        return (
            new,
            f"{path} is from another state ({what}): it is kept as {kept}, and all rows are measured anew",
        )
    new.commands = [*(c for c in old.commands if c != command), command]
    new.rows, new.ceilings = old.rows, old.ceilings
    return new, None


def done(rows: Iterable[Row]) -> list[Row]:
    """Rows that hold a number."""
    return [row for row in rows if row["status"] == DONE]


def ratio(numerator: float | None, denominator: float | None) -> float | None:
    """A ratio, if both numbers are there."""
    return numerator / denominator if numerator is not None and denominator else None


def best(rows: Sequence[Row]) -> Row | None:
    """The fastest of some rows."""
    return min(done(rows), key=lambda row: float(row["median_ms"]), default=None)
