"""All jobs of studies as plain values: what they are, how far they are, and how long they take."""

import json
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cbsa._files import write_text_atomically
from cbsa.studies.analyses import command_of
from cbsa.studies.data_sets import DATA_SETS
from cbsa.studies.jobs import SPEED, AnalysisJob, Job
from cbsa.studies.manifest import jobs_of
from cbsa.studies.place import Place
from cbsa.studies.records import DONE, Record
from cbsa.studies.tuning import rate_of
from cbsa.train import TrainConfig


def describe_jobs(jobs: Sequence[Job | AnalysisJob], place: Place) -> list[dict[str, Any]]:
    """All jobs as plain values: model, recipe, settings, seed, command, result file, status."""
    rows = []
    for job in jobs:
        record = place.records.find(job)
        found: dict[str, Any] = {"job": job.name, "label": job.label, "kind": job.kind}
        if isinstance(job, AnalysisJob):
            found |= {"models": [run.name for run in job.needs], "data": job.data}
            command = command_of(job)
        else:
            rate = rate_of(job, place.records).value
            settings = (*job.settings, *place.settings)
            found |= {"model": job.config(rate).model.name, "recipe": job.recipe, "data": job.data}
            found |= {"settings": [s for s in settings if not s.startswith("data.root=")]}
            found |= {"learning_rate": rate, "seed": job.seed}
            found |= {"start_from": job.start.name if job.start else None}
            command = job.command(rate, place.extra(job))
        found |= {"command": command if record is None else record.command}
        rows.append(found | {"result": f"{job.name}.json", "status": place.status(job)})
    return rows


def write_manifest(jobs: Sequence[Job | AnalysisJob], place: Place) -> Path:
    """Write ``manifest.json``: all jobs of the studies that these jobs are of, and what it has of others."""
    path = place.out / "manifest.json"
    studies = list(dict.fromkeys(job.study for job in jobs))
    names = {study.name for study in studies}
    others = [row for row in _known(path) if row["job"].partition("/")[0] not in names]
    own = [job for study in studies for job in jobs_of(study) if job.study == study]
    text = json.dumps({"jobs": [*others, *describe_jobs(own, place)]}, indent=2)
    write_text_atomically(path, text + "\n")
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


# --- time --------------------------------------------------------------------------------------------------


def seconds_taken(record: Record | None) -> float | None:
    """How long a job took, if its result says so."""
    found = None if record is None else record.result.get("seconds")
    return None if found is None else float(found)


def expected_seconds(jobs: Sequence[Job | AnalysisJob], place: Place) -> dict[str, float]:
    """How long runs that are not done will train, by name, where the speed of their model is recorded.

    Speeds are those of other runs of the model, else of its forward and backward pass alone; the time is that
    of the training images alone.
    """
    runs = [job for job in jobs if isinstance(job, Job)]
    found = {job.name: place.records.find(job) for job in runs}
    measured: defaultdict[tuple[str, ...], list[float]] = defaultdict(list)
    alone: dict[tuple[str, ...], float] = {}
    for job in runs:
        record = found[job.name]
        if record is None or record.status != DONE or record.config is None:
            continue
        if job.kind == SPEED:
            alone[_model_of(record.config)] = record.result["training"]["images_s"]
        else:
            measured[_model_of(record.config)].append(record.result["images_per_second"])
    speeds = alone | {model: statistics.median(values) for model, values in measured.items()}
    expected = {}
    for job in runs:
        if found[job.name] is not None or job.kind == SPEED or job.data not in DATA_SETS:
            continue
        config = job.config(job.rate, place.extra(job))
        speed = speeds.get(_model_of(config))
        if speed:
            images = DATA_SETS[job.data].train_images * (1 - config.data.holdout)
            expected[job.name] = config.epochs * images / speed
    return expected


def _model_of(config: TrainConfig) -> tuple[str, ...]:
    """What the speed of a run depends on most: model and size of the images."""
    return config.model.name, json.dumps(config.model.kwargs, sort_keys=True), str(config.data.img_size)
