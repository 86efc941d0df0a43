"""Goals of a study: points by which an entry is to beat its twin."""

import dataclasses

import pytest

from cbsa.experiments.goals import goal_verdicts, standard_error
from cbsa.experiments.study_table import Line
from cbsa.studies.description import Entry, Study

EMPTY = {field.name: None for field in dataclasses.fields(Line)}
STUDY = Study("s", "", entries=(Entry("twin"), Entry("own", seeds=(0, 1, 2), beside="twin", goal=1.0)))


def verdict(differences, **more):
    twin = Line(**EMPTY | {"name": "twin", "label": "MSSA"})
    line = {"name": "own", "label": "CBSA", "beside": "twin", "difference": differences}
    return goal_verdicts(STUDY, [twin, Line(**EMPTY | line | more)])[0].partition(": ")[2]


def test_the_standard_error_is_that_of_the_mean():
    assert standard_error([1.0, 2.0, 4.5]) == pytest.approx((6.5 / 2 / 3) ** 0.5)  # Σ(x − x̄)² = 6.5


def test_verdicts():
    wish = "CBSA beats MSSA by 1 points over 3 seeds: "
    assert verdict({0: 1.0, 1: 1.4, 2: 1.8}) == f"{wish}reached, +1.40 ± 0.23 (standard error)"
    assert verdict({0: -1.0, 1: -0.9, 2: -1.1}) == f"{wish}not reached, -1.00 ± 0.06 (standard error)"
    close = verdict({0: 0.0, 1: 1.0, 2: 1.7})
    assert (
        close
        == f"{wish}not reached, +0.90 ± 0.49 (standard error), closer to the goal than its standard error"
    )
    assert verdict({0: 3.0, 2: 3.0}) == f"{wish}open, 2 of 3 pairs of runs are there"


def test_speeds_are_told_where_they_are_known():
    study = dataclasses.replace(STUDY)
    twin = Line(**EMPTY | {"name": "twin", "label": "MSSA", "training_images_s": 100.0})
    values = {"name": "own", "label": "CBSA", "beside": "twin", "difference": {0: 1.0, 1: 1.2, 2: 1.1}}
    (told,) = goal_verdicts(study, [twin, Line(**EMPTY | values | {"training_images_s": 120.0})])
    assert told.endswith("; its speed is 1.20× in forward and backward")
