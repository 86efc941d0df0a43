"""Manifests of studies: readable TOML files, and the jobs they stand for."""

import shlex
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cbsa._checks import check_choice
from cbsa.train import TrainConfig, from_dict, override, recipe

FOLDER = Path(__file__).parent / "manifests"
TUNE, TRAIN, SPEED = "tune", "train", "speed"  # kinds of jobs, in the order in which they are done


@dataclass(frozen=True)
class Tuning:
    """How learning rates are chosen: by accuracy on a part of the training images that is held out.

    Attributes:
        rates: learning rates to try.
        settings: what these runs change, ``data.holdout`` among them.
        seed: their seed.
    """

    rates: tuple[float, ...]
    settings: tuple[str, ...] = ("data.holdout=0.1",)
    seed: int = 1000

    def __post_init__(self) -> None:
        if not any(setting.startswith("data.holdout=") for setting in self.settings):
            raise ValueError(
                "tuning.settings has no data.holdout=SHARE: rates must not be chosen by the images that the "
                "results are about"
            )


@dataclass(frozen=True)
class Entry:
    """A row of the study's table: one model, trained with one or several seeds.

    Attributes:
        name: name of its folder.
        label: what tables call it.
        model: name of the model; by default the recipe's.
        recipe: name of the recipe; by default the study's.
        settings: what it changes, as name=value.
        seeds: one run for each.
        group: rows of a group stand together, and its jobs come before those of the next one.
        rates: learning rates to try; by default the study's.
        tuned_like: take the rate that was chosen for another entry, times ``rate_factor``.
        rate_factor: see ``tuned_like``.
        of: the study whose entry of this name it is: its runs are shared, not repeated.
        beside: the entry it is compared with; by default the first of its group.
    """

    name: str
    label: str = ""
    model: str = ""
    recipe: str = ""
    settings: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0,)
    group: str = ""
    rates: tuple[float, ...] = ()
    tuned_like: str = ""
    rate_factor: float = 1.0
    of: str = ""
    beside: str = ""


@dataclass(frozen=True)
class Study:
    """What a manifest says.

    Attributes:
        name: name of the file.
        title: what it is about.
        recipe: recipe of all entries that name no other.
        entries: rows of the table.
        settings: what all runs change.
        classes: number of classes of the data set, for the costs of what has not run yet.
        tuning: how learning rates are chosen; without it they are the recipes'.
        speed: whether the speed of each entry is measured too.
    """

    name: str
    title: str
    recipe: str
    entries: tuple[Entry, ...]
    settings: tuple[str, ...] = ()
    classes: int = 1000
    tuning: Tuning | None = None
    speed: bool = False

    def entry(self, name: str) -> Entry:
        """The entry of a name."""
        known = {entry.name: entry for entry in self.entries}
        return known[check_choice(f"entry of the study {self.name}", name, known)]


@dataclass(frozen=True)
class Job:
    """One piece of work of a study: a run that tunes, a run that counts, or a measurement of speed.

    Attributes:
        study: the study it belongs to.
        entry: the row it belongs to.
        kind: one of :data:`TUNE`, :data:`TRAIN`, :data:`SPEED`.
        seed: seed of the run.
        rate: learning rate, where the job itself sets it.
        recipe: name of its recipe.
        settings: all it changes there, but for learning rate and seed.
    """

    study: Study
    entry: Entry
    kind: str
    seed: int
    rate: float | None
    recipe: str
    settings: tuple[str, ...]

    @property
    def variant(self) -> str:
        """What distinguishes it from the other jobs of its entry."""
        return {TUNE: f"rate{self.rate:g}" if self.rate else "", TRAIN: f"seed{self.seed}", SPEED: SPEED}[
            self.kind
        ]

    @property
    def name(self) -> str:
        """``STUDY/ENTRY/VARIANT``: where its files are, too."""
        return f"{self.study.name}/{self.entry.name}/{self.variant}"

    def assignments(self, rate: float | None, extra: Sequence[str] = ()) -> list[str]:
        """Everything it changes in its recipe; ``extra`` comes last."""
        chosen = [] if rate is None else [f"optimizer.lr={rate:g}"]
        return [*self.settings, *chosen, f"seed={self.seed}", *extra]

    def config(self, rate: float | None, extra: Sequence[str] = ()) -> TrainConfig:
        """Settings of its run, with the learning rate that was chosen for it."""
        return override(recipe(self.recipe), self.assignments(rate, extra))

    def command(self, rate: float | None, extra: Sequence[str] = (), out: str = "FOLDER") -> str:
        """The command that does the same alone; the folder of the data set is left open."""
        if self.kind == SPEED:
            return shlex.join(["cbsa", "study", self.study.name, "--only", f"{self.entry.name}/{SPEED}"])
        words = [a for a in self.assignments(rate, extra) if not a.startswith("data.root=")]
        return shlex.join(["cbsa", "train", self.recipe, "data.root=DATA", *words, "--out", out])


def study_names() -> list[str]:
    """The studies of the package, in the order in which they are meant to be run."""
    order = {"fair": 0, "gap": 1, "ablations": 2}
    return sorted((path.stem for path in FOLDER.glob("*.toml")), key=lambda name: (order.get(name, 9), name))


def read_study(name: str) -> Study:
    """Read a manifest: one of the package by its name, or a file of your own by its path."""
    path = Path(name)
    if path.suffix != ".toml":
        path = FOLDER / f"{check_choice('study', name, study_names())}.toml"
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileNotFoundError(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from error
    try:
        study = from_dict(Study, {"name": path.stem, **values})
        _check(study)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
    return study


def _check(study: Study) -> None:
    names = [entry.name for entry in study.entries]
    if not names:
        raise ValueError("it has no entries")
    for name in names:
        if names.count(name) > 1 or not name.replace("-", "").replace("_", "").replace(".", "").isalnum():
            raise ValueError(f"entry {name!r}: names are unique, of letters, digits, '-', '_' and '.'")
    for entry in study.entries:
        if entry.tuned_like:
            study.entry(entry.tuned_like)
        if entry.beside:
            study.entry(entry.beside)
    for job in jobs_of(study):
        job.config(job.rate)  # every setting is known


def jobs_of(study: Study) -> list[Job]:
    """The jobs of a study in order: group by group tuning, then one seed after another; speeds last."""
    entries = [_shared(entry) if entry.of else (study, entry) for entry in study.entries]
    jobs: list[Job] = []
    for group in dict.fromkeys(entry.group for entry in study.entries):
        rows = [row for row, entry in zip(entries, study.entries, strict=True) if entry.group == group]
        jobs += [job for owner, entry in rows for job in _tuning(owner, entry)]
        for place in range(max(len(entry.seeds) for _, entry in rows)):
            jobs += [
                _job(owner, entry, TRAIN, entry.seeds[place])
                for owner, entry in rows
                if place < len(entry.seeds)
            ]
    return jobs + [_job(owner, entry, SPEED, 0) for owner, entry in entries if study.speed]


def runs_of(study: Study, entry: Entry) -> list[Job]:
    """The runs that an entry's row is about, one for each seed."""
    owner, entry = _shared(entry) if entry.of else (study, entry)
    return [_job(owner, entry, TRAIN, seed) for seed in entry.seeds]


def speed_of(study: Study, entry: Entry) -> Job:
    """The job that measures the speed of an entry."""
    owner, entry = _shared(entry) if entry.of else (study, entry)
    return _job(owner, entry, SPEED, 0)


def tuning_of(job: Job) -> list[Job]:
    """The jobs whose results choose the learning rate of a job; none if it is the recipe's."""
    study, entry = job.study, job.entry
    return _tuning(study, study.entry(entry.tuned_like) if entry.tuned_like else entry)


def _shared(entry: Entry) -> tuple[Study, Entry]:
    """The study that owns an entry, and the entry as that has it, with the seeds that are wanted here."""
    owner = read_study(entry.of)
    return owner, replace(owner.entry(entry.name), seeds=entry.seeds)


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
    model = (f"model.name={entry.model}",) if entry.model else ()
    settings = (*study.settings, *model, *entry.settings, *more)
    return Job(study, entry, kind, seed, rate, entry.recipe or study.recipe, settings)
