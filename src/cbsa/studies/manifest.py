"""Manifests of studies: readable TOML files, and the jobs they stand for."""

import tomllib
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from cbsa._checks import check_choice
from cbsa.studies.analyses import check_analysis
from cbsa.studies.data_sets import DATA_SETS
from cbsa.studies.description import MANIFESTS, Entry, Study
from cbsa.studies.jobs import SPEED, TRAIN, TUNE, AnalysisJob, Job
from cbsa.train import from_dict

__all__ = [
    "FOLDER",
    "SPEED",
    "TRAIN",
    "TUNE",
    "AnalysisJob",
    "Entry",
    "Job",
    "Study",
    "find_run",
    "jobs_of",
    "read_studies",
    "read_study",
    "runs_of",
    "scale_names",
    "speed_of",
    "study_names",
    "tuned_like",
    "tuning_of",
]
FOLDER = MANIFESTS


def study_names(folder: Path = FOLDER) -> list[str]:
    """The studies in a folder, by default the package's: those that belong together first, in order."""
    studies = [_load(path) for path in folder.glob("*.toml")]
    if not studies:
        raise ValueError(f"{folder} holds no manifest (*.toml)")
    return [study.name for study in sorted(studies, key=lambda s: (s.order or len(studies), s.name))]


def read_study(name: str, folder: Path = FOLDER) -> Study:
    """Read a manifest: one of the package, or of another folder, by its name; or any file by its path.

    ``SCALE/STUDY`` names one of the package at another scale, see :func:`scale_names`.
    """
    path = Path(name)
    if path.suffix != ".toml":
        scale, slash, study_name = name.partition("/")
        if slash and scale in scale_names():
            name, folder = study_name, FOLDER / scale
        path = folder / f"{check_choice('study', name, study_names(folder))}.toml"
    study = _load(path)
    try:
        _check(study)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
    return study


def read_studies(name: str) -> list[Study]:
    """One study, or several that belong together.

    Args:
        name: a study of the package; ``all`` or one of :func:`scale_names` for those of the package that
            belong together; a manifest of yours (``FILE.toml``), or a folder of them.
    """
    folder = FOLDER if name == "all" else FOLDER / name if name in scale_names() else Path(name)
    if name != "all" and not folder.is_dir():
        if "/" not in name and Path(name).suffix != ".toml":
            check_choice("study", name, [*study_names(), "all", *scale_names()])
        return [read_study(name)]
    studies = [read_study(found, folder) for found in study_names(folder)]
    return [study for study in studies if study.order] or studies


def scale_names() -> list[str]:
    """Folders of the package's manifests: the same studies at another scale."""
    return sorted(path.name for path in FOLDER.iterdir() if path.is_dir() and any(path.glob("*.toml")))


def _load(path: Path) -> Study:
    """Read a file."""
    try:
        return _parse(path, path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileNotFoundError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not TOML: {error}") from error


@lru_cache(maxsize=32)
def _parse(path: Path, text: str) -> Study:
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is not TOML: {error}") from error
    try:
        return replace(from_dict(Study, {"name": path.stem, **values}), folder=str(path.parent))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error


def _check(study: Study) -> None:
    names = [entry.name for entry in study.entries] + [analysis.name for analysis in study.analyses]
    if not names:
        raise ValueError("it has no entries and no analyses")
    for name in names:
        if names.count(name) > 1 or not name.replace("-", "").replace("_", "").replace(".", "").isalnum():
            raise ValueError(f"entry {name!r}: names are unique, of letters, digits, '-', '_' and '.'")
    for entry in study.entries:
        if entry.tuned_like:
            tuned_like(study, entry)
        if entry.beside:
            study.entry(entry.beside)
    named = {study.data, *(e.data for e in study.entries), *(a.data for a in study.analyses)}
    for name in named - {""}:
        check_choice("data", name, DATA_SETS)
    for job in jobs_of(study):
        if isinstance(job, AnalysisJob):
            check_analysis(job)
        else:
            job.config(job.rate)  # every setting is known


def jobs_of(study: Study) -> list[Job | AnalysisJob]:
    """The jobs of a study in order.

    Group by group tuning, then one seed after another; speeds, analyses, and extra seeds last.
    """
    rows = [_owned(study, entry) for entry in study.entries]
    jobs: list[Job | AnalysisJob] = []
    for group in dict.fromkeys(entry.group for entry in study.entries):
        members = [row for row, entry in zip(rows, study.entries, strict=True) if entry.group == group]
        jobs += [job for owner, entry in members for job in _tuning(owner, entry)]
        jobs += _by_seed([(owner, entry, entry.seeds) for owner, entry in members])
    if study.speed:
        jobs += [_job(owner, entry, SPEED, 0) for owner, entry in rows]
    for analysis in study.analyses:
        jobs.append(AnalysisJob(study, analysis, tuple(find_run(study, name) for name in analysis.models)))
    return jobs + _by_seed([(owner, entry, entry.extra_seeds) for owner, entry in rows])


def _by_seed(rows: Sequence[tuple[Study, Entry, tuple[int, ...]]]) -> list[Job]:
    """The first seed of all, the second of all, and so on."""
    most = max((len(seeds) for _, _, seeds in rows), default=0)
    return [
        _job(study, entry, TRAIN, seeds[place])
        for place in range(most)
        for study, entry, seeds in rows
        if place < len(seeds)
    ]


def runs_of(study: Study, entry: Entry) -> list[Job]:
    """The runs that an entry's row is about, one for each seed."""
    owner, entry = _owned(study, entry)
    return [_job(owner, entry, TRAIN, seed) for seed in (*entry.seeds, *entry.extra_seeds)]


def speed_of(study: Study, entry: Entry) -> Job:
    """The job that measures the speed of an entry."""
    owner, entry = _owned(study, entry)
    return _job(owner, entry, SPEED, 0)


def tuning_of(job: Job) -> list[Job]:
    """The jobs whose results choose the learning rate of a job; none if it is the recipe's."""
    return _tuning(*(tuned_like(job.study, job.entry) if job.entry.tuned_like else (job.study, job.entry)))


def tuned_like(study: Study, entry: Entry) -> tuple[Study, Entry]:
    """The entry whose learning rate another one takes, and the study it belongs to."""
    owner, source, variant = _find_entry(study, entry.tuned_like)
    if variant or source.tuned_like or owner.tuning is None:
        raise ValueError(
            f"entry {entry.name!r}: tuned_like={entry.tuned_like!r} must name an entry whose rate is tuned"
        )
    return owner, source


def find_run(study: Study, name: str, seed: int | None = None) -> Job:
    """The run that a name in a manifest stands for.

    Args:
        study: the study whose manifest has the name.
        name: ``STUDY/ENTRY``, ``STUDY/ENTRY/seed1``, or ``ENTRY`` of the same study.
        seed: the seed to prefer; by default the first.
    """
    owner, entry, variant = _find_entry(study, name)
    runs = runs_of(owner, entry)
    if variant:
        known = {run.variant: run for run in runs}
        return known[check_choice(f"run of {owner.name}/{entry.name}", variant, known)]
    return next((run for run in runs if run.seed == seed), runs[0])


def _find_entry(study: Study, name: str) -> tuple[Study, Entry, str]:
    """The entry that a name in a manifest stands for, its study, and which run, if the name says so."""
    words = name.split("/") if "/" in name else [study.name, name]
    if len(words) not in (2, 3):
        raise ValueError(f"{name!r}: expected STUDY/ENTRY, STUDY/ENTRY/seed0, or ENTRY of the same study")
    owner = study if words[0] == study.name else _beside(study, words[0])
    return owner, owner.entry(words[1]), "".join(words[2:])


def _beside(study: Study, name: str) -> Study:
    """A study that a manifest refers to: of its own folder, or of the package."""
    path = Path(study.folder) / f"{name}.toml"
    return (
        _load(path)
        if path.is_file()
        else _load(FOLDER / f"{check_choice('study', name, study_names())}.toml")
    )


def _owned(study: Study, entry: Entry) -> tuple[Study, Entry]:
    """The study that owns an entry, and the entry as that has it, with the seeds that are wanted here."""
    if not entry.of:
        return study, entry
    owner = _beside(study, entry.of)
    shared = replace(owner.entry(entry.name), seeds=entry.seeds, extra_seeds=entry.extra_seeds)
    return owner, shared


def _tuning(study: Study, entry: Entry) -> list[Job]:
    if study.tuning is None or entry.tuned_like:
        return []
    return [
        _job(study, entry, TUNE, study.tuning.seed, rate, study.tuning.settings)
        for rate in entry.rates or study.tuning.rates
    ]


def _job(
    study: Study, entry: Entry, kind: str, seed: int, rate: float | None = None, more: Sequence[str] = ()
) -> Job:
    start = _start(study, entry, seed) if entry.start_from else None
    model = () if start is None else _model_settings(start)
    model = (f"model.name={entry.model}",) if entry.model else model
    settings = (*study.settings, *model, *entry.settings, *more)
    return Job(study, entry, kind, seed, rate, entry.recipe or study.recipe, settings, start)


def _start(study: Study, entry: Entry, seed: int) -> Job:
    """The run whose weights an entry starts from."""
    if _find_entry(study, entry.start_from)[1].start_from:
        raise ValueError(f"entry {entry.name!r}: {entry.start_from} itself starts from another entry")
    return find_run(study, entry.start_from, seed)


def _model_settings(start: Job) -> tuple[str, ...]:
    """The model of a run, as settings of another recipe."""
    kwargs = [setting for setting in start.settings if setting.startswith("model.kwargs.")]
    return f"model.name={start.config(start.rate).model.name}", *kwargs
