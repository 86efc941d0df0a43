"""The committed files that claims are judged by."""

import csv
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cbsa.studies.records import DONE, FAILED

RESULTS = "benchmarks/results"
STUDIES = f"{RESULTS}/studies"
_VARIANTS = ("seed", "rate", "speed", "analyse")  # how the names of records begin


class MissingError(LookupError):
    """A file that a claim needs is not there.

    Args:
        path: the file, relative to the repository.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


@dataclass(frozen=True)
class Failure:
    """A run of a study that failed."""

    job: str
    reason: str
    command: str


class Evidence:
    """Reads committed files, and remembers which.

    Args:
        root: the repository.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.used: list[str] = []

    def text(self, path: str) -> str:
        """A file of the repository.

        Raises:
            MissingError: if it is not there.
        """
        try:
            content = (self.root / path).read_text(encoding="utf-8")
        except FileNotFoundError as error:
            raise MissingError(path) from error
        self.used.append(path)
        return content

    def has(self, path: str) -> bool:
        """Whether a file is there; it does not count as read."""
        return (self.root / path).is_file()

    def json(self, path: str) -> Any:
        """A result, below ``benchmarks/results``."""
        return json.loads(self.text(f"{RESULTS}/{path}"))

    def table(self, path: str) -> list[dict[str, str]]:
        """The rows of a CSV file below ``benchmarks/results``."""
        return list(csv.DictReader(self.text(f"{RESULTS}/{path}").splitlines()))

    def test(self, path: str, name: str) -> None:
        """Make sure that a test is there: what passes in the suite is evidence, what was removed is not."""
        if not re.search(rf"^ *def {re.escape(name)}\(", self.text(path), re.MULTILINE):
            raise MissingError(f"{path}::{name}")

    def runs(self, study: str, entry: str) -> list[dict[str, Any]]:
        """The records of an entry's runs that were done, one for each seed.

        Raises:
            MissingError: if there is none.
        """
        folder = f"{STUDIES}/{study}/{entry}"
        paths = sorted((self.root / folder).glob("seed*.json"))
        records = [json.loads(self.text(f"{folder}/{path.name}")) for path in paths]
        done = [record for record in records if record["status"] == DONE]
        if not done:
            raise MissingError(f"{folder}/seed0.json")
        return done

    def top1(self, study: str, entry: str) -> list[float]:
        """Top-1 accuracy in % of each seed of an entry that was done."""
        return [float(record["result"]["top1"]) for record in self.runs(study, entry)]


def failures(root: Path) -> list[Failure]:
    """All runs of studies that failed, tuning and speed among them."""
    return [
        Failure(record["job"], record["reason"], record["command"])
        for record in _records(root)
        if record["status"] == FAILED
    ]


def counts(root: Path) -> dict[str, int]:
    """How many jobs of each study have a result, whatever it is."""
    found: dict[str, int] = {}
    for record in _records(root):
        study = record["job"].partition("/")[0]
        found[study] = found.get(study, 0) + 1
    return found


def _records(root: Path) -> Iterator[dict[str, Any]]:
    for path in sorted((root / STUDIES).glob("*/*/*.json")):
        if not path.stem.startswith(_VARIANTS):
            continue  # what an analysis of a study has written beside its record
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            _ = record["job"], record["status"], record["reason"], record["command"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is not a result of a study ({error!r})") from error
        yield record
