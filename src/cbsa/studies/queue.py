"""Working through the jobs of a study: one after another, within a limit of time, again and again."""

import fnmatch
import gc
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape

from cbsa._files import prepare_folder, write_text_atomically
from cbsa.bench.timing import describe, recover
from cbsa.data import keep_decoded
from cbsa.studies.clock import Clock
from cbsa.studies.manifest import SPEED, TRAIN, Job, Study, jobs_of
from cbsa.studies.records import DONE, FAILED, Record, Records, result_of
from cbsa.studies.speed import measure_speed
from cbsa.studies.tuning import rate_of
from cbsa.train import StoppedError, TrainConfig, train
from cbsa.train.run_folder import FolderInUseError

WAITING, BEGUN, TO_DO = "waiting for its rate", "begun", "to do"
STATUSES = (DONE, FAILED, BEGUN, WAITING, TO_DO)


@dataclass(frozen=True)
class Place:
    """Where a study lies, and what all its runs change.

    Attributes:
        out: folder of the results, which are small and can be committed.
        work: folder of the runs, with checkpoints and weights.
        settings: settings of all runs, ``data.root`` among them; they come last.
    """

    out: Path
    work: Path
    settings: tuple[str, ...] = ()

    @property
    def records(self) -> Records:
        """The results."""
        return Records(self.out)

    def run(self, job: Job) -> Path:
        """The folder of a job's run."""
        return self.work / job.name

    def status(self, job: Job) -> str:
        """How far a job is, one of :data:`STATUSES`."""
        record = self.records.find(job)
        if record is not None:
            return record.status
        if any((self.run(job) / "checkpoints").glob("step-*.pt")):
            return BEGUN
        return WAITING if rate_of(job, self.records).waiting else TO_DO


def choose_jobs(studies: Sequence[Study], only: Sequence[str] = (), seeds: int = 0) -> list[Job]:
    """The jobs of studies, or some of them; those that studies share come once.

    Args:
        studies: the studies.
        only: patterns of ``ENTRY/VARIANT``, such as ``cbsa-*`` or ``*/seed0``; all jobs by default. A pattern
            without a slash is one of entries.
        seeds: how many seeds of each entry; 0 for all of the manifest.
    """
    jobs = list({job.name: job for study in studies for job in jobs_of(study)}.values())
    if seeds:
        jobs = [job for job in jobs if job.kind != TRAIN or job.seed in job.entry.seeds[:seeds]]
    for pattern in only:
        if not any(_matches(job, pattern) for job in jobs):
            names = ", ".join(dict.fromkeys(job.entry.name for job in jobs))
            raise ValueError(f"--only {pattern}: no job is called so; the entries are {names}")
    return [job for job in jobs if not only or any(_matches(job, pattern) for pattern in only)]


def _matches(job: Job, pattern: str) -> bool:
    return fnmatch.fnmatch(f"{job.entry.name}/{job.variant}", pattern if "/" in pattern else f"{pattern}/*")


def work_through(
    jobs: Sequence[Job],
    place: Place,
    *,
    seconds: float = 0,
    retry: bool = False,
    console: Console | None = None,
) -> bool:
    """Do the jobs that are not done yet, in order; returns whether none is left.

    A run that the end of the time finds at work saves its state, and the next call goes on with it. Runs that
    fail (a loss that is not finite, no memory) are kept as such, and not tried again unless ``retry``.

    Args:
        jobs: see :func:`choose_jobs`.
        place: where results and runs lie.
        seconds: time after which to stop; 0 for no limit.
        retry: try again what failed before.
        console: where to show progress.
    """
    for folder in (place.out, place.work):
        prepare_folder(folder)
    console = console or Console(quiet=True)
    clock = Clock(seconds)
    _check_results(jobs, place)
    try:
        with clock.running(), keep_decoded():
            for number, job in enumerate(jobs, 1):
                if not _is_open(job, place, retry):
                    continue
                if clock.is_over:
                    break
                console.print(f"[bold]{escape(job.name)}[/bold] ({number} of {len(jobs)})", highlight=False)
                record = _do(job, place, console)
                _say(record, console)
                write_manifest(jobs, place)
    except StoppedError as stop:
        console.print(escape(str(stop)), highlight=False, soft_wrap=True)
    write_manifest(jobs, place)
    return not any(_is_open(job, place, retry=False) for job in jobs)


def _check_results(jobs: Sequence[Job], place: Place) -> None:
    """Refuse to begin beside results of other settings, before time is spent."""
    for job in jobs:
        rate = rate_of(job, place.records) if place.records.find(job) is not None else None
        if rate is not None and not rate.waiting:
            place.records.expect(job, job.config(rate.value, place.settings))


def _is_open(job: Job, place: Place, retry: bool) -> bool:
    """Whether there is work to do for a job, now or after others."""
    record = place.records.find(job)
    return record is None or (retry and record.status == FAILED)


def _do(job: Job, place: Place, console: Console) -> Record | None:
    """Do one job; None if its learning rate is not known yet."""
    rate = rate_of(job, place.records)
    if rate.waiting:
        names = ", ".join(other.name for other in rate.waiting)
        console.print(f"Waiting for {escape(names)}", highlight=False, soft_wrap=True)
        return None
    config, run = job.config(rate.value, place.settings), place.run(job)
    command = job.command(rate.value, place.settings)
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    try:
        result = _result(job, config, run, console)
    except (StoppedError, FolderInUseError, ValueError, TypeError, OSError):
        raise  # not the job's failure: the end of the time, settings, data, disk
    except Exception as error:  # whatever a model, a compiler or a GPU raises costs this job alone
        record = place.records.put(job, config, command, run, reason=describe(error))
        recover()  # or raise, if the GPU is lost
        return record
    finally:
        torch.compiler.reset()  # the next model must not count as one recompilation too many
        gc.collect()  # images and graphs of this run
    return place.records.put(job, config, command, run, result=result)


def _result(job: Job, config: TrainConfig, run: Path, console: Console) -> dict[str, Any]:
    if job.kind == SPEED:
        return measure_speed(config, job.study.classes)
    return result_of(train(config, run, console=console).summary, run)


def _say(record: Record | None, console: Console) -> None:
    if record is None:
        return
    if record.status == FAILED:
        console.print(f"[red]Failed:[/red] {escape(record.reason)}", highlight=False, soft_wrap=True)
    elif "top1" in record.result:
        found = record.result
        console.print(f"top-1 {found['top1']:.2f} %, {found['seconds']:.0f} s", highlight=False)


def describe_jobs(jobs: Sequence[Job], place: Place) -> list[dict[str, Any]]:
    """All jobs as plain values: model, recipe, settings, seed, command, result file, status."""
    rows = []
    for job in jobs:
        rate = rate_of(job, place.records)
        settings = [s for s in (*job.settings, *place.settings) if not s.startswith("data.root=")]
        rows.append(
            {
                "job": job.name,
                "label": job.entry.label,
                "kind": job.kind,
                "model": job.config(rate.value).model.name,
                "recipe": job.recipe,
                "settings": settings,
                "learning_rate": rate.value,
                "seed": job.seed,
                "command": job.command(rate.value, place.settings),
                "result": f"{job.name}.json",
                "status": place.status(job),
            }
        )
    return rows


def write_manifest(jobs: Sequence[Job], place: Place) -> Path:
    """Write ``manifest.json``: all jobs of the studies that these jobs are of, and what it has of others."""
    path = place.out / "manifest.json"
    studies = list(dict.fromkeys(job.study for job in jobs))
    names = {study.name for study in studies}
    others = [row for row in _known(path) if row["job"].partition("/")[0] not in names]
    rows = describe_jobs([job for job in choose_jobs(studies) if job.study in studies], place)
    write_text_atomically(path, json.dumps({"jobs": [*others, *rows]}, indent=2) + "\n")
    return path


def _known(path: Path) -> list[dict[str, Any]]:
    """Jobs that an earlier call has written."""
    if not path.is_file():
        return []
    try:
        rows = json.loads(path.read_text())["jobs"]
        return [row for row in rows if isinstance(row["job"], str)]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not the manifest of a study ({error!r}): remove it") from error
