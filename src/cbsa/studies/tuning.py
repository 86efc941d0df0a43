"""The learning rate of a job, chosen by the runs that tuned it."""

from dataclasses import dataclass

from cbsa.studies.jobs import TRAIN, Job
from cbsa.studies.manifest import tuning_of
from cbsa.studies.records import DONE, Records


@dataclass(frozen=True)
class Rate:
    """What is known of a learning rate.

    Attributes:
        value: the rate; None for that of the recipe, or if it is not known yet.
        waiting: jobs that must be done first.
        at_edge: whether the best rate is the smallest or largest that was tried.
    """

    value: float | None = None
    waiting: tuple[Job, ...] = ()
    at_edge: bool = False


def rate_of(job: Job, records: Records) -> Rate:
    """The learning rate of a job: its own, the recipe's, or the best of those that were tried for its entry.

    Best is the highest accuracy on the images held out. Runs that failed have none; if all did, their job
    waits for them.
    """
    if job.kind != TRAIN:
        return Rate(job.rate)
    jobs = tuning_of(job)
    found = {other: records.find(other) for other in jobs}
    waiting = tuple(other for other, record in found.items() if record is None)
    if waiting or not jobs:
        return Rate(waiting=waiting)
    scores = {
        other.rate: record.result["top1"]
        for other, record in found.items()
        if record is not None and record.status == DONE and other.rate is not None
    }
    if not scores:
        return Rate(waiting=tuple(jobs))
    best = max(scores, key=lambda rate: scores[rate])
    tried = [other.rate for other in jobs if other.rate is not None]
    edge = len(tried) > 1 and best in (min(tried), max(tried))
    return Rate(best * (job.entry.rate_factor if job.entry.tuned_like else 1.0), at_edge=edge)
