"""The committed files that claims are judged by."""

import csv
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cbsa.studies.records import DONE, FAILED

RESULTS = "benchmarks/results"
STUDIES = f"{RESULTS}/studies"
POCKET = f"{RESULTS}/pocket"
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


@dataclass(frozen=True)
class Scale:
    """A scale at which studies have run.

    Attributes:
        folder: where its results lie.
        words: data, size and budget, as rows of the page say it.
        other_names: what it calls an entry of the larger scale.
        is_small: whether its models are smaller than any of the paper's.
    """

    folder: str
    words: str
    other_names: Mapping[str, str] = field(default_factory=dict)
    is_small: bool = False


SCALES = (
    Scale(STUDIES, "Tiny-ImageNet, 64 px, 20 epochs"),
    Scale(
        POCKET,
        "CIFAR-10, 32 px, width 64, four layers, four epochs on a CPU",
        {"gap/cbsa": "fair/cbsa-t"},  # its studies share the unchanged model
        is_small=True,
    ),
)


@dataclass(frozen=True)
class Runs:
    """Runs of some entries, all of one scale.

    Attributes:
        scale: the scale.
        top1: top-1 accuracy in % of each seed that was done, by ``STUDY/ENTRY`` as it was asked for.
    """

    scale: Scale
    top1: dict[str, list[float]]


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

    def runs(self, study: str, entry: str, folder: str = STUDIES) -> list[dict[str, Any]]:
        """The records of an entry's runs that were done, one for each seed.

        Raises:
            MissingError: if there is none.
        """
        folder = f"{folder}/{study}/{entry}"
        paths = sorted((self.root / folder).glob("seed*.json"))
        records = [json.loads(self.text(f"{folder}/{path.name}")) for path in paths]
        done = [record for record in records if record["status"] == DONE]
        if not done:
            raise MissingError(f"{folder}/seed0.json")
        return done

    def top1(self, study: str, entry: str, folder: str = STUDIES) -> list[float]:
        """Top-1 accuracy in % of each seed of an entry that was done."""
        return [float(record["result"]["top1"]) for record in self.runs(study, entry, folder)]

    def compared(self, *entries: str) -> Runs:
        """Accuracies of entries that are compared with each other, at the largest scale that has all of them.

        Args:
            entries: ``STUDY/ENTRY``, by the names of the largest scale.

        Raises:
            MissingError: if no scale has all; it names what is missing at the largest.
        """
        missing: list[MissingError] = []
        read = list(self.used)
        for scale in SCALES:
            try:
                found = {name: self._top1_at(scale, name) for name in entries}
            except MissingError as error:
                missing.append(error)
                self.used = list(read)  # what was read of an incomplete scale decides nothing
                continue
            return Runs(scale, found)
        raise missing[0]

    def _top1_at(self, scale: Scale, name: str) -> list[float]:
        study, _, entry = scale.other_names.get(name, name).partition("/")
        return self.top1(study, entry, scale.folder)


def failures(root: Path) -> list[Failure]:
    """All runs of studies that failed, tuning and speed among them."""
    return [
        Failure(record["job"], record["reason"], record["command"])
        for scale in SCALES
        for record in _records(root, scale)
        if record["status"] == FAILED
    ]


def counts(root: Path) -> dict[str, int]:
    """How many jobs of each study have a result, whatever it is; those of a smaller scale by its folder."""
    found: dict[str, int] = {}
    for scale in SCALES:
        place = f"{Path(scale.folder).name}/" if scale.is_small else ""
        for record in _records(root, scale):
            study = place + record["job"].partition("/")[0]
            found[study] = found.get(study, 0) + 1
    return found


def _records(root: Path, scale: Scale) -> Iterator[dict[str, Any]]:
    for path in sorted((root / scale.folder).glob("*/*/*.json")):
        if not path.stem.startswith(_VARIANTS):
            continue  # what an analysis of a study has written beside its record
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            _ = record["job"], record["status"], record["reason"], record["command"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is not a result of a study ({error!r})") from error
        yield record
