"""Working through the jobs of a study: one after another, within a limit of time, again and again."""

import fnmatch
import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape

from cbsa._files import prepare_folder
from cbsa.bench.timing import describe, recover
from cbsa.data import keep_decoded
from cbsa.studies.analyses import Runner, analyse, command_of
from cbsa.studies.clock import Clock
from cbsa.studies.description import Study
from cbsa.studies.jobs import SPEED, TRAIN, AnalysisJob, Job
from cbsa.studies.manifest import jobs_of
from cbsa.studies.overview import write_manifest
from cbsa.studies.place import Place
from cbsa.studies.records import FAILED, Record, result_of
from cbsa.studies.speed import measure_speed
from cbsa.studies.tuning import rate_of
from cbsa.train import StoppedError, TrainConfig, train
from cbsa.train.run_folder import FolderInUseError


def choose_jobs(
    studies: Sequence[Study], only: Sequence[str] = (), seeds: int = 0
) -> list[Job | AnalysisJob]:
    """The jobs of studies, or some of them; those that studies share come once, extra seeds after all else.

    Args:
        studies: the studies.
        only: patterns of ``ENTRY/VARIANT``, such as ``cbsa-*`` or ``*/seed0``; all jobs by default. A pattern
            without a slash is one of entries.
        seeds: how many seeds of each entry; 0 for all of the manifest.
    """
    every = {job.name: job for study in studies for job in jobs_of(study)}
    jobs = sorted(every.values(), key=lambda job: job.is_extra)
    if seeds:
        jobs = [job for job in jobs if not (isinstance(job, Job) and _is_more(job, seeds))]
    for pattern in only:
        if not any(_matches(job, pattern) for job in jobs):
            names = ", ".join(dict.fromkeys(job.row for job in jobs))
            raise ValueError(f"--only {pattern}: no job is called so; the entries are {names}")
    return [job for job in jobs if not only or any(_matches(job, pattern) for pattern in only)]


def _is_more(job: Job, seeds: int) -> bool:
    """Whether it is a run of another seed than the first ones."""
    return job.kind == TRAIN and job.seed not in job.entry.seeds[:seeds]


def _matches(job: Job | AnalysisJob, pattern: str) -> bool:
    return fnmatch.fnmatch(f"{job.row}/{job.variant}", pattern if "/" in pattern else f"{pattern}/*")


def data_needed(jobs: Sequence[Job | AnalysisJob], place: Place, retry: bool = False) -> list[str]:
    """Names of the data sets of the jobs that are left to do."""
    return list(dict.fromkeys(job.data for job in jobs if place.is_open(job, retry)))


def work_through(
    jobs: Sequence[Job | AnalysisJob],
    place: Place,
    *,
    seconds: float = 0,
    retry: bool = False,
    console: Console | None = None,
    runner: Runner | None = None,
) -> bool:
    """Do the jobs that are not done yet, in order; returns whether none is left.

    Those that wait for others are passed over, and tried again after the rest.

    A run that the end of the time finds at work saves its state, and the next call goes on with it. Runs that
    fail (a loss that is not finite, no memory) are kept as such, and not tried again unless ``retry``.

    Args:
        jobs: see :func:`choose_jobs`.
        place: where results and runs lie.
        seconds: time after which to stop; 0 for no limit.
        retry: try again what failed before.
        console: where to show progress.
        runner: what runs the commands of analyses; without it there must be none.
    """
    for folder in (place.out, place.work):
        prepare_folder(folder)
    console = console or Console(quiet=True)
    clock = Clock(seconds)
    _check_results(jobs, place)
    place.check_weights([job for job in jobs if place.is_open(job, retry)])
    left = [job for job in jobs if place.is_open(job, retry)]
    try:
        with clock.running(), keep_decoded():
            while left and not clock.is_over:
                before, left = (
                    left,
                    [job for job in left if not _try(job, jobs, place, console, clock, runner)],
                )
                if len(left) == len(before):
                    break
    except StoppedError as stop:
        console.print(escape(str(stop)), highlight=False, soft_wrap=True)
        left = []
    for job in left if not clock.is_over else ():
        names = ", ".join(other.name for other in place.waits_for(job))
        console.print(f"{escape(job.name)} waits for {escape(names)}", highlight=False, soft_wrap=True)
    write_manifest(jobs, place)
    return not any(place.is_open(job) for job in jobs)


def _try(
    job: Job | AnalysisJob,
    jobs: Sequence[Job | AnalysisJob],
    place: Place,
    console: Console,
    clock: Clock,
    runner: Runner | None,
) -> bool:
    """Do a job, unless the time is over or others must be done first; returns whether it was done."""
    if clock.is_over or place.waits_for(job):
        return False
    number = f"({jobs.index(job) + 1} of {len(jobs)})"
    console.print(f"[bold]{escape(job.name)}[/bold] {number}", highlight=False)
    _say(_do(job, place, console, clock, runner), console)
    write_manifest(jobs, place)
    return True


def _check_results(jobs: Sequence[Job | AnalysisJob], place: Place) -> None:
    """Refuse to begin beside results of other settings, before time is spent."""
    for job in jobs:
        if isinstance(job, AnalysisJob):
            place.records.expect(job, None, command_of(job))
            continue
        rate = rate_of(job, place.records) if place.records.find(job) is not None else None
        if rate is not None and not rate.waiting:
            place.records.expect(job, job.config(rate.value, place.extra(job)), "")


def _do(
    job: Job | AnalysisJob, place: Place, console: Console, clock: Clock, runner: Runner | None
) -> Record:
    """Do one job, and keep its result or why it failed."""
    if isinstance(job, AnalysisJob):
        config, command = None, command_of(job)
    else:
        rate, extra = rate_of(job, place.records).value, place.extra(job)
        config, command = job.config(rate, extra), job.command(rate, extra)
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    try:
        result = _result(job, config, place, console, clock, runner)
    except (StoppedError, FolderInUseError, ValueError, TypeError, OSError):
        raise  # not the job's failure: the end of the time, settings, data, disk
    except Exception as error:  # whatever a model, a compiler or a GPU raises costs this job alone
        record = place.records.put(job, config, command, place.run(job), reason=describe(error))
        recover()  # or raise, if the GPU is lost
        return record
    finally:
        torch.compiler.reset()  # the next model must not count as one recompilation too many
        gc.collect()  # images and graphs of this run
    return place.records.put(job, config, command, place.run(job), result=result)


def _result(
    job: Job | AnalysisJob,
    config: TrainConfig | None,
    place: Place,
    console: Console,
    clock: Clock,
    runner: Runner | None,
) -> dict[str, Any]:
    if isinstance(job, AnalysisJob):
        if runner is None:
            raise TypeError(f"{job.name} is an analysis: work_through needs a runner of commands")
        with clock.interrupting(job.name):
            return analyse(job, place, runner)
    assert config is not None
    if job.kind == SPEED:
        return measure_speed(config, job.study.classes_of(job.entry))
    run: Path = place.run(job)
    return result_of(train(config, run, console=console).summary, run)


def _say(record: Record, console: Console) -> None:
    if record.status == FAILED:
        console.print(f"[red]Failed:[/red] {escape(record.reason)}", highlight=False, soft_wrap=True)
    elif "top1" in record.result:
        found = record.result
        console.print(f"top-1 {found['top1']:.2f} %, {found['seconds']:.0f} s", highlight=False)
    elif "files" in record.result:
        console.print(f"{', '.join(record.result['files'])}", highlight=False)
