"""Rows prepared side by side and timed one after another, in real processes on the CPU."""

import itertools
import os
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from cbsa.bench import models
from cbsa.bench.crew import Crew
from tests.bench.test_models import CONFIG


def measure(folder, name, *, alone=nullcontext):
    """Write down when this was prepared, and from when to when it had its turn."""
    prepared = time.monotonic()
    with alone():
        begin = time.monotonic()
        time.sleep(0.05)
        end = time.monotonic()
    (Path(folder) / name).write_text(f"{os.getpid()} {prepared} {begin} {end}")
    return {"name": name, "status": "done"}


def fail_in_company(folder, name, *, alone=nullcontext):
    """Fail the first time, as for want of memory that others hold; one of them ends its process."""
    tried = Path(folder) / name
    if tried.exists():
        return {"name": name, "status": "done"}
    tried.touch()
    if name == "ends":
        os._exit(3)
    return {"name": name, "status": "not run"}


def always_end(*_, alone=nullcontext):
    """A process that a broken driver kills."""
    os._exit(3)


def test_all_are_prepared_before_the_first_takes_its_time_alone(tmp_path):
    names = ["a", "b", "c"]
    with Crew(measure, 3) as crew:
        rows = list(crew.measure([(str(tmp_path), name) for name in names]))
        again = list(crew.measure([(str(tmp_path), "d")]))
    assert [row["name"] for row in rows + again] == [*names, "d"]
    times = [[float(x) for x in (tmp_path / name).read_text().split()] for name in names]
    assert len({pid for pid, *_ in times}) == 3
    turns = sorted((begin, end) for _, _, begin, end in times)
    assert max(prepared for _, prepared, _, _ in times) <= turns[0][0]
    assert all(first[1] <= second[0] for first, second in itertools.pairwise(turns))


def test_what_fails_in_company_is_tried_alone_and_an_ended_process_is_replaced(tmp_path):
    with Crew(fail_in_company, 2) as crew:
        rows = list(crew.measure([(str(tmp_path), "short"), (str(tmp_path), "ends")]))
        assert [(row["name"], row["status"]) for row in rows] == [("short", "done"), ("ends", "done")]
        with pytest.raises(ValueError, match="3 tasks for 2 processes"):
            list(crew.measure([()] * 3))
    with Crew(always_end, 2) as crew:
        assert list(crew.measure([(), ()])) == [None, None]


def test_a_benchmark_of_models_by_several_processes(tmp_path):
    said, ticks = [], []
    config = replace(CONFIG, modes=("inference",))
    results = models.run(config, tmp_path, jobs=4, say=said.append, advance=lambda: ticks.append(1))
    assert [(r["model"], r["status"]) for r in results.rows] == [(name, "done") for name in CONFIG.models]
    assert all(r["images_s"] == pytest.approx(2000 / r["median_ms"]) for r in results.rows)
    assert results.rows[1]["cbt_over_this"] is not None
    assert len(ticks) == 2
    assert said == ["cbt_tiny_patch4_32, 32 px, inference, batch 2 and 1 more side by side"]
