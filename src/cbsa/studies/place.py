"""Where a study lies on a machine, and how far its jobs are there."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from cbsa.studies.data_sets import Roots
from cbsa.studies.jobs import AnalysisJob, Job
from cbsa.studies.records import DONE, FAILED, Records
from cbsa.studies.tuning import rate_of

WAITING, BEGUN, TO_DO, NO_GPU = "waiting for others", "begun", "to do", "needs a GPU"
STATUSES = (DONE, FAILED, BEGUN, WAITING, TO_DO, NO_GPU)


@dataclass(frozen=True)
class Place:
    """Where a study lies, and what all its runs change.

    Attributes:
        out: folder of the results, which are small and can be committed.
        work: folder of the runs, with checkpoints and weights.
        settings: settings of all runs; they come last.
        data: where the data sets lie.
    """

    out: Path
    work: Path
    settings: tuple[str, ...] = ()
    data: Roots = field(default_factory=Roots)

    @property
    def records(self) -> Records:
        """The results."""
        return Records(self.out)

    def run(self, job: Job | AnalysisJob) -> Path:
        """The folder of a job's run."""
        return self.work / job.name

    def extra(self, job: Job) -> tuple[str, ...]:
        """What a run changes here: where data set and weights lie, and the settings of all runs."""
        start = [f"model.weights={self.run(needed)}" for needed in job.needs]
        return (*self.data.settings(job.data), *start, *self.settings)

    def waits_for(self, job: Job | AnalysisJob) -> tuple[Job, ...]:
        """Jobs that must be done first: those that choose its rate, and the runs whose weights it needs."""
        tuning = () if isinstance(job, AnalysisJob) else rate_of(job, self.records).waiting
        return (*tuning, *(run for run in job.needs if not self._is_done(run)))

    def _is_done(self, job: Job) -> bool:
        record = self.records.find(job)
        return record is not None and record.status == DONE

    def is_open(self, job: Job | AnalysisJob, retry: bool = False) -> bool:
        """Whether there is work to do for a job, now or after others."""
        if _needs_gpu(job):
            return False
        record = self.records.find(job)
        return record is None or (retry and record.status == FAILED)

    def status(self, job: Job | AnalysisJob) -> str:
        """How far a job is, one of :data:`STATUSES`."""
        record = self.records.find(job)
        if record is not None:
            return record.status
        if _needs_gpu(job):
            return NO_GPU
        if any((self.run(job) / "checkpoints").glob("step-*.pt")):
            return BEGUN
        return WAITING if self.waits_for(job) else TO_DO

    def check_weights(self, jobs: Sequence[Job | AnalysisJob]) -> None:
        """Raise if runs that jobs need are done, but their weights are not here."""
        needed = {run.name: run for job in jobs for run in job.needs if self._is_done(run)}
        gone = [
            run for run in needed.values() if not (self.run(run) / "model" / "model.safetensors").is_file()
        ]
        if gone:
            raise FileNotFoundError(
                f"the weights of {', '.join(run.name for run in gone)} are needed and not in {self.work}: "
                f"only their results are there. Copy the folders of these runs into it, or remove "
                f"{', '.join(str(self.records.path(run)) for run in gone)} to train them anew"
            )


def _needs_gpu(job: Job | AnalysisJob) -> bool:
    return isinstance(job, AnalysisJob) and job.analysis.gpu and not torch.cuda.is_available()
