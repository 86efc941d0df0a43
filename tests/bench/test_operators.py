"""``cbsa bench ops`` as a function: bytes, ratios, refusals, and going on after an interruption."""

from dataclasses import replace

import pytest
import torch

from cbsa.bench import candidates, operators, problems
from cbsa.bench.candidates import OURS, Candidate
from cbsa.bench.geometry import BOTH, FORWARD, Geometry, parse_size
from cbsa.bench.listing import listing
from cbsa.bench.results import load_results
from cbsa.bench.warm import compile_ahead, compile_candidate

SMALL = Geometry(tokens=26, batch=2, heads=2, head_dim=8, representatives=4)
CONFIG = operators.Config(
    (SMALL,), ("auto", "sdpa-default", "sdpa-default-tied"), torch.device("cpu"), "float32", seconds=1e-3
)


@pytest.fixture
def entry(monkeypatch):
    """Enter a candidate for one test."""

    def add(name, build):
        candidate = Candidate(name, name, OURS, problems.CBSA, build)
        monkeypatch.setitem(candidates.CANDIDATES, name, candidate)

    return add


def test_fewest_bytes_by_hand():
    """4·N·D·B forward and 16·N·D·B with the backward in 16 bits; D = 6·64."""
    geometry = Geometry(tokens=197, batch=256)
    assert geometry.least_bytes(FORWARD, torch.bfloat16) == 4 * 197 * 384 * 256 == 77_463_552
    assert geometry.least_bytes(BOTH, torch.bfloat16) == 16 * 197 * 384 * 256
    assert geometry.least_bytes(FORWARD, torch.float32) == 8 * 197 * 384 * 256
    assert (geometry.grid(), geometry.windows()) == ((14, 14), (8, 8))
    assert Geometry(5, 1, representatives=12).windows() == (3, 4)
    with pytest.raises(ValueError, match="199 patches after CLS do not form a square"):
        Geometry(tokens=200, batch=1).grid()


@pytest.mark.parametrize(("text", "size"), [("1025x64", (1025, 64)), (" 5×1 ", (5, 1))])
def test_sizes_are_read(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["1025", "x", "0x4", "10x-1", "axb"])
def test_bad_sizes_are_named(text):
    with pytest.raises(ValueError, match=r"size|at least 1"):
        parse_size(text)


def test_rows_hold_rates_and_ratios(tmp_path):
    results = operators.run(CONFIG, tmp_path)
    assert [(row["candidate"], row["mode"]) for row in results.rows] == [
        (name, mode) for name in CONFIG.candidates for mode in (FORWARD, BOTH)
    ]
    copy = results.ceilings["copy_tb_s"] * 1e12
    for row in results.rows:
        assert row["status"] == "done"
        assert row["least_bytes"] == (2 if row["mode"] == FORWARD else 8) * 26 * 16 * 2 * 4
        assert row["tb_s"] == pytest.approx(row["least_bytes"] / row["median_ms"] * 1e-9)
        assert row["floor_ms"] == pytest.approx(row["least_bytes"] / copy * 1e3)
        assert row["of_floor"] == pytest.approx(row["floor_ms"] / row["median_ms"])
        rivals = [r for r in results.rows if r["candidate"].startswith("sdpa") and r["mode"] == row["mode"]]
        best = min(r["median_ms"] for r in rivals)
        assert row["times_best_sdpa"] == pytest.approx(best / row["median_ms"])
    found = load_results(tmp_path / "ops.json")
    assert found.rows == results.rows
    assert {"device", "torch", "code", "threads"} <= set(found.environment)


def test_a_wrong_operator_gets_no_speed(tmp_path, entry):
    entry("wrong", lambda g: lambda *x: listing(*x) * 1.1)
    entry("broken", lambda g: lambda *x: 1 / 0)
    config = replace(CONFIG, candidates=("wrong", "broken", "sdpa-cudnn"))
    rows = operators.run(config, tmp_path).rows
    assert [r["status"] for r in rows] == ["refused"] * 2 + ["not run"] * 4
    assert rows[0]["reason"].startswith("output errs by 0.1")
    assert "dstep_out" in rows[1]["reason"]
    assert rows[2]["reason"] == "ZeroDivisionError: division by zero"
    assert "median_ms" not in rows[0]


def test_what_is_there_is_not_measured_again(tmp_path, entry):
    calls = []

    def build(geometry):
        calls.append(geometry)
        return listing

    entry("counted", build)
    config = replace(CONFIG, candidates=("counted",))
    first = operators.run(config, tmp_path)
    ticks, seen = [], len(calls)
    again = operators.run(config, tmp_path, advance=lambda: ticks.append(1))
    assert len(calls) == seen
    assert len(ticks) == 2
    assert again.rows == first.rows
    larger = replace(config, geometries=(SMALL, replace(SMALL, batch=1)))
    assert len(operators.run(larger, tmp_path).rows) == 4
    assert {g.batch for g in calls[seen:]} == {1}
    operators.run(config, tmp_path, fresh=True)
    assert calls[-1].batch == 2
    assert len(load_results(tmp_path / "ops.json").rows) == 2


def test_compiling_ahead_counts_what_works_and_survives_what_does_not():
    task = (SMALL, torch.float32, "cpu")
    said = []
    tasks = [("listing", *task, FORWARD), ("listing", *task, BOTH), ("nothing", *task, BOTH)]
    assert compile_ahead(compile_candidate, tasks, 1, said.append) == 2
    assert said == ["compiling ahead: 3 pieces in 1 process"]
    assert compile_ahead(compile_candidate, tasks, 0) == compile_ahead(compile_candidate, [], 2) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "float8"}, "dtype='float8'"),
        ({"candidates": ("sdpa-cudn",)}, "did you mean 'sdpa-cudnn'"),
        ({"candidates": ()}, "no candidates"),
        ({"modes": ("backward",)}, "mode='backward'"),
    ],
)
def test_bad_settings_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        replace(CONFIG, **change)
