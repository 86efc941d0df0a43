"""What a study keeps of its jobs: small files that can be committed, without weights."""

import csv
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cbsa._files import write_text_atomically
from cbsa.studies.jobs import WORK, AnalysisJob, Job
from cbsa.train.config import TrainConfig
from cbsa.train.fields import differences, from_dict, to_dict
from cbsa.train.run_folder import FREE

DONE, FAILED = "done", "failed"
# Of a run's summary: all but the names of the classes, which no number here is about.
_SUMMARY = (
    *("recipe", "model", "top1", "top5", "loss", "evaluated_images", "best_top1", "best_epoch", "epochs"),
    *("steps", "seconds", "images_per_second", "unreadable_images", "processes", "environment"),
)


@dataclass(frozen=True)
class Record:
    """The result of a job.

    Attributes:
        status: :data:`DONE` or :data:`FAILED`.
        config: settings of the run; an analysis has none but its command.
        result: accuracy and what else there is to say; empty if it failed.
        reason: why it failed.
        command: the command that does the same without a study.
    """

    status: str
    config: TrainConfig | None
    result: dict[str, Any]
    reason: str
    command: str


class Records:
    """The results of studies in a folder: ``STUDY/ENTRY/VARIANT.json``, and ``.csv`` with its epochs.

    Args:
        folder: the folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, job: Job | AnalysisJob) -> Path:
        """The file of a job's result."""
        return self.folder / f"{job.name}.json"

    def find(self, job: Job | AnalysisJob) -> Record | None:
        """The result of a job, if there is one."""
        path = self.path(job)
        if not path.is_file():
            return None
        try:
            content = json.loads(path.read_text())
            settings = content["config"]
            return Record(
                content["status"],
                None if settings is None else from_dict(TrainConfig, settings),
                content["result"],
                content["reason"],
                content["command"],
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} is not a result of a study ({error!r}): remove it to run anew"
            ) from error

    def expect(self, job: Job | AnalysisJob, config: TrainConfig | None, command: str) -> Record | None:
        """The result of a job; an error if it is one of other settings than those given.

        An analysis is compared by its command. The layout of a data set that the manifest names is free.
        """
        record = self.find(job)
        if record is None:
            return None
        if config is None or record.config is None:
            changed = [] if record.command == command else ["the command"]
        else:
            free = (*FREE, "data.dataset") if job.data else FREE
            given = from_dict(TrainConfig, _portable(job, config))
            changed = [name for name in differences(record.config, given) if not name.startswith(free)]
        if changed:
            raise ValueError(
                f"{self.path(job)} is a result of other settings ({', '.join(changed)} differ): remove it to "
                "run the job anew, or keep results apart with --out"
            )
        return record

    def put(
        self,
        job: Job | AnalysisJob,
        config: TrainConfig | None,
        command: str,
        run: Path,
        *,
        result: Mapping[str, Any] | None = None,
        reason: str = "",
    ) -> Record:
        """Keep the result of a job, or why it failed, and the epochs of its run."""
        status = FAILED if reason else DONE
        content: dict[str, Any] = {"job": job.name, "label": job.label, "status": status}
        content |= {"reason": reason, "command": command, "result": dict(result or {})}
        settings = None if config is None else _portable(job, config)
        content["config"] = settings
        write_text_atomically(self.path(job), json.dumps(content, indent=2, allow_nan=False) + "\n")
        if (run / "epochs.csv").is_file():
            keep(run, self.path(job).parent, {"epochs.csv": f"{job.variant}.csv"})
        kept = None if settings is None else from_dict(TrainConfig, settings)
        return Record(status, kept, content["result"], reason, command)


def _portable(job: Job | AnalysisJob, config: TrainConfig) -> dict[str, Any]:
    """Settings without the folders of a machine: no result depends on where data and weights lie."""
    settings = to_dict(config)
    settings["data"]["root"] = None
    if job.needs:
        settings["model"]["weights"] = f"{WORK}/{job.needs[0].name}"
    return settings


def result_of(summary: Mapping[str, Any], run: Path) -> dict[str, Any]:
    """What is kept of a run: its summary without the names of its classes, and the most memory it held."""
    result = {name: summary[name] for name in _SUMMARY} | {"num_classes": len(summary["classes"])}
    with open(run / "epochs.csv", newline="") as file:
        held = [float(row["memory_gib"]) for row in csv.DictReader(file) if row.get("memory_gib")]
    return result | {"memory_gib": max(held) if held else None}


def keep(folder: Path, to: Path, names: Mapping[str, str] | Sequence[str]) -> None:
    """Copy files of a run that are there, under other names if a mapping says so."""
    to.mkdir(parents=True, exist_ok=True)
    named = names if isinstance(names, Mapping) else {name: name for name in names}
    for name, new in named.items():
        if (folder / name).is_file():
            shutil.copyfile(folder / name, to / new)
