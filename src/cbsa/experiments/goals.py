"""Goals of studies: by how many points an entry is to beat its twin, and whether it does."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from cbsa.studies.description import Entry, Study

if TYPE_CHECKING:
    from cbsa.experiments.study_table import Line


def goal_verdicts(study: Study, lines: "Sequence[Line]") -> tuple[str, ...]:
    """A sentence for each entry that has a goal."""
    found = {line.name: line for line in lines}
    return tuple(_verdict(entry, found) for entry in study.entries if entry.goal and entry.name in found)


def _verdict(entry: Entry, lines: "Mapping[str, Line]") -> str:
    line = lines[entry.name]
    twin = lines[line.beside]
    told = f"Goal: {line.label} beats {twin.label} by {entry.goal:g} points over {len(entry.seeds)} seeds"
    values = [line.difference[seed] for seed in entry.seeds if seed in line.difference]
    if len(values) < len(entry.seeds):
        return f"{told}: open, {len(values)} of {len(entry.seeds)} pairs of runs are there"
    mean = statistics.mean(values)
    reached = "reached" if mean >= entry.goal else "not reached"
    if len(values) == 1:
        return f"{told}: {reached} at one seed, {mean:+.2f}"
    error = standard_error(values)
    close = ", closer to the goal than its standard error" if abs(mean - entry.goal) < error else ""
    return f"{told}: {reached}, {mean:+.2f} ± {error:.2f} (standard error){close}{_speeds(line, twin)}"


def standard_error(values: Sequence[float]) -> float:
    """Standard error of the mean of two or more values."""
    return statistics.stdev(values) / math.sqrt(len(values))


def _speeds(line: "Line", twin: "Line") -> str:
    """How fast it is beside its twin, where that was measured."""
    pairs = {
        "forward and backward": (line.training_images_s, twin.training_images_s),
        "inference": (line.inference_images_s, twin.inference_images_s),
    }
    known = [f"{own / other:.2f}× in {what}" for what, (own, other) in pairs.items() if own and other]
    return f"; its speed is {' and '.join(known)}" if known else ""
