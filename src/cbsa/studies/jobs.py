"""The jobs of studies: runs that tune, runs that count, measurements of speed, and analyses."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from cbsa.studies.description import Analysis, Entry, Study
from cbsa.train import TrainConfig, override, recipe

TUNE, TRAIN, SPEED, ANALYSE = "tune", "train", "speed", "analyse"  # kinds of jobs
_OF_THE_MACHINE = ("data.root=", "model.weights=")  # settings that say where something lies
DATA, WORK = "DATA", "WORK"  # what commands call the folders of a data set and of the runs


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
        start: the run whose weights it starts from.
    """

    study: Study
    entry: Entry
    kind: str
    seed: int
    rate: float | None
    recipe: str
    settings: tuple[str, ...]
    start: "Job | None" = None

    @property
    def row(self) -> str:
        """Name of the entry."""
        return self.entry.name

    @property
    def label(self) -> str:
        """What tables call the entry."""
        return self.entry.label

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

    @property
    def data(self) -> str:
        """Name of the data set it reads; empty if it has none, or reads none."""
        return "" if self.kind == SPEED else self.entry.data or self.study.data

    @property
    def is_extra(self) -> bool:
        """Whether it comes after everything else."""
        return self.kind == TRAIN and self.seed in self.entry.extra_seeds

    @property
    def needs(self) -> "tuple[Job, ...]":
        """Runs whose weights must be there."""
        return () if self.start is None or self.kind == SPEED else (self.start,)

    def assignments(self, rate: float | None, extra: Sequence[str] = ()) -> list[str]:
        """Everything it changes in its recipe; ``extra`` comes last."""
        chosen = [] if rate is None else [f"optimizer.lr={rate:g}"]
        return [*self.settings, *chosen, f"seed={self.seed}", *extra]

    def config(self, rate: float | None, extra: Sequence[str] = ()) -> TrainConfig:
        """Settings of its run, with the learning rate that was chosen for it."""
        return override(recipe(self.recipe), self.assignments(rate, extra))

    def command(self, rate: float | None, extra: Sequence[str] = (), out: str = "FOLDER") -> str:
        """The command that does the same alone; the folders of data set and runs are left open."""
        if self.kind == SPEED:
            return shlex.join(["cbsa", "study", self.study.name, "--only", f"{self.entry.name}/{SPEED}"])
        words = [a for a in self.assignments(rate, extra) if not a.startswith(_OF_THE_MACHINE)]
        start = [] if self.start is None else [f"model.weights={WORK}/{self.start.name}"]
        return shlex.join(["cbsa", "train", self.recipe, f"data.root={DATA}", *start, *words, "--out", out])


@dataclass(frozen=True)
class AnalysisJob:
    """A command that looks at models which other jobs have trained.

    Attributes:
        study: the study it belongs to.
        analysis: what to do.
        needs: the runs it looks at, in order.
    """

    study: Study
    analysis: Analysis
    needs: tuple[Job, ...] = ()

    kind = variant = ANALYSE
    is_extra = False

    @property
    def row(self) -> str:
        """Name of the analysis."""
        return self.analysis.name

    @property
    def label(self) -> str:
        """The command."""
        return self.analysis.command

    @property
    def name(self) -> str:
        """``STUDY/ANALYSIS/analyse``: where its files are, too."""
        return f"{self.study.name}/{self.row}/{self.variant}"

    @property
    def data(self) -> str:
        """Name of the data set it reads; empty if it looks at no model, and so at no image."""
        return (self.analysis.data or self.study.data) if self.needs else ""
