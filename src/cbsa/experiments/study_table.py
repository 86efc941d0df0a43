"""Tables of studies: accuracies over seeds, costs, and what is missing."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from cbsa._files import prepare_folder, write_text_atomically
from cbsa.bench.tables import Grid
from cbsa.experiments.goals import goal_verdicts
from cbsa.experiments.report import save_results, save_rows
from cbsa.models import Transformer
from cbsa.models.costs import closed_form_macs, pairwise_similarities
from cbsa.studies.manifest import Entry, Job, Study, runs_of, speed_of, tuned_like
from cbsa.studies.records import DONE, FAILED, Record, Records
from cbsa.studies.tuning import rate_of
from cbsa.train import TrainConfig
from cbsa.train.initial import build_model


@dataclass(frozen=True)
class Line:
    """A row of a study's table; accuracies in percent, by seed."""

    name: str
    label: str
    paper: str  # the paper's row that it stands beside, where the paper has it
    group: str
    top1: dict[int, float]
    top5: dict[int, float]
    difference: dict[int, float]  # of top-1 to the entry it stands beside, seed by seed
    beside: str  # name of that entry; empty for itself
    learning_rate: float | None
    rate_at_edge: bool
    parameters: int
    gflops: float  # of one image, by the paper's rule
    similarities: int
    run_images_s: float | None  # of training runs, everything included
    run_memory_gib: float | None
    training_images_s: float | None  # forward and backward alone
    inference_images_s: float | None
    missing: tuple[str, ...]  # jobs without a result
    failed: dict[str, str]  # jobs that failed, and why


def lines_of(study: Study, records: Records) -> list[Line]:
    """The rows of a study, from the results there are."""
    found = {entry.name: _found(study, entry, records) for entry in study.entries}
    return [_line(study, entry, records, found) for entry in study.entries]


def _found(study: Study, entry: Entry, records: Records) -> dict[Job, Record | None]:
    return {job: records.find(job) for job in runs_of(study, entry)}


def _line(study: Study, entry: Entry, records: Records, found: dict[str, dict[Job, Record | None]]) -> Line:
    runs = found[entry.name]
    done = {job.seed: record for job, record in runs.items() if record is not None and record.status == DONE}
    top1 = {seed: record.result["top1"] for seed, record in done.items()}
    first = next(e.name for e in study.entries if e.group == entry.group)
    beside = study.entry(entry.beside or first)
    other = {job.seed: record for job, record in found[beside.name].items() if record is not None}
    difference = {
        seed: value - other[seed].result["top1"]
        for seed, value in top1.items()
        if beside is not entry and seed in other and other[seed].status == DONE
    }
    job = next(iter(runs))
    rate = rate_of(job, records)
    known = next((record.config for record in done.values()), None)
    model = _model(known or job.config(rate.value), job.study.classes_of(job.entry))
    speed = speed_of(study, entry)
    timed = records.find(speed)
    results = [record.result for record in done.values()]
    every = {**runs, **({speed: timed} if study.speed else {})}
    absent = [job for job, record in every.items() if record is None and not job.is_extra]
    size = int(model.img_size[0])
    return Line(
        entry.name,
        entry.label or entry.name,
        entry.paper or entry.label,
        entry.group,
        top1,
        {seed: record.result["top5"] for seed, record in done.items()},
        difference,
        "" if beside is entry else beside.name,
        rate.value,
        rate.at_edge,
        sum(p.numel() for p in model.parameters()),
        2e-9 * closed_form_macs(model, size),
        pairwise_similarities(model, size),
        _median([r["images_per_second"] for r in results]),
        _median([r["memory_gib"] for r in results]),
        _images_s(timed, "training"),
        _images_s(timed, "inference"),
        tuple(job.name for job in absent),
        {job.name: r.reason for job, r in every.items() if r is not None and r.status == FAILED},
    )


def _model(config: TrainConfig, classes: int) -> Transformer:
    """The model of a run, without memory for its weights, and without those it started from."""
    with torch.device("meta"):
        model = build_model(replace(config, model=replace(config.model, weights=None)), classes)
    if not isinstance(model, Transformer):
        raise TypeError(f"{config.model.name}: costs are known of this package's transformers alone")
    return model


def _images_s(timed: Record | None, mode: str) -> float | None:
    return timed.result[mode]["images_s"] if timed is not None and timed.status == DONE else None


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


# --- cells -----------------------------------------------------------------------------------------------


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Mean and standard deviation over seeds, and how many; one value alone; empty without any."""
    if not values:
        return ""
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    return f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"


def signed_spread(values: Sequence[float]) -> str:
    """A mean difference with its sign, and its standard deviation over seeds."""
    text = spread(values)
    return f"+{text}" if values and statistics.mean(values) >= 0 else text


def number(value: float | None, form: str) -> str:
    """A number, or nothing where there is none."""
    return "" if value is None else format(value, form)


def remarks(lines: Sequence[Line], study: Study) -> tuple[str, ...]:
    """What a reader must know: goals, missing and failed jobs, rates that were not tuned, or at the edge."""
    missing = [name for line in lines for name in line.missing]
    notes = [*goal_verdicts(study, lines)]
    notes += [f"{name} failed: {why}" for line in lines for name, why in line.failed.items()]
    borrowed = []
    for entry in study.entries:
        if entry.tuned_like:
            _, source = tuned_like(study, entry)
            factor = f"{entry.rate_factor:g} × that of {source.label or source.name}"
            borrowed.append(f"{entry.label or entry.name} ({factor})")
    if borrowed:
        notes.append(f"Rates not tuned for themselves: {', '.join(dict.fromkeys(borrowed))}")
    edges = [line.label for line in lines if line.rate_at_edge]
    if edges:
        notes.append(f"Best rate at the edge of those tried: {', '.join(edges)}")
    if missing:
        shown = ", ".join(missing[:6]) + (", …" if len(missing) > 6 else "")
        notes.append(f"Missing {len(missing)} of the jobs: {shown} (cbsa study {study.reference} --data …)")
    return tuple(notes)


def save_table(
    study: Study, lines: Sequence[Line], grids: Sequence[Grid], out: Path, name: str, **more: Any
) -> list[Path]:
    """Write the table as Markdown, its rows as CSV, and everything as JSON; the first is to be looked at."""
    prepare_folder(out)
    text, table, numbers = (out / f"{name}.{suffix}" for suffix in ("md", "csv", "json"))
    write_text_atomically(text, "\n".join(grid.markdown() for grid in grids))
    rows = [
        {
            "entry": line.name,
            "model": line.label,
            "seeds": len(line.top1),
            "top1": statistics.mean(line.top1.values()) if line.top1 else None,
            "top5": statistics.mean(line.top5.values()) if line.top5 else None,
            "learning_rate": line.learning_rate,
            "parameters": line.parameters,
            "gflops": line.gflops,
            "similarities": line.similarities,
        }
        for line in lines
    ]
    save_rows(table, rows)
    save_results(numbers, {"study": study.name, "lines": [asdict(line) for line in lines], **more})
    return [text, table, numbers]
