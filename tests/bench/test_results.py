"""The file of a benchmark: whole, its own, and never a mixture of two machines."""

import json

import pytest

from cbsa.bench.results import Results, load_results, open_results
from cbsa.bench.tables import Grid

KEY = ("name", "size")
HERE = {"device": "a", "cbsa": "1", "torch": "2", "triton": "3", "timm": "4", "code": "5", "python": "3.11"}


def row(name, size, **values):
    return {"name": name, "size": size, "status": "done", **values}


def test_round_trip(tmp_path):
    results = Results("ops", KEY, HERE, ["one", "two"], {"copy_tb_s": 4.3}, [row("a", 1, median_ms=0.5)])
    results.save(tmp_path / "x.json")
    assert load_results(tmp_path / "x.json") == results
    data = json.loads((tmp_path / "x.json").read_text())
    assert data["command"] == "two"
    assert {"kind", "commands", "environment", "ceilings", "key", "rows"} <= set(data)


def test_a_row_takes_the_place_of_the_one_with_its_key():
    results = Results("ops", KEY, HERE)
    for values in (row("a", 1, v=1), row("b", 1, v=2), row("a", 1, v=3)):
        results.put(values)
    assert [r["v"] for r in results.rows] == [3, 2]
    assert results.find({"name": "b", "size": 1})["v"] == 2
    assert results.find({"name": "b", "size": 2}) is None
    with pytest.raises(ValueError, match="lacks size"):
        results.put({"name": "a"})


def test_not_a_number_is_not_written(tmp_path):
    results = Results("ops", KEY, HERE, rows=[row("a", 1, median_ms=float("nan"))])
    with pytest.raises(ValueError, match="not JSON compliant"):
        results.save(tmp_path / "x.json")
    assert not (tmp_path / "x.json").exists()


def test_rows_of_another_state_are_kept_apart(tmp_path):
    path = tmp_path / "ops.json"
    Results("ops", KEY, HERE, ["old"], rows=[row("a", 1)]).save(path)
    same, note = open_results(path, "ops", KEY, {**HERE, "python": "3.12"}, "new", fresh=False)
    assert (same.rows, same.commands, note) == ([row("a", 1)], ["old", "new"], None)
    other, note = open_results(path, "ops", KEY, {**HERE, "code": "6"}, "new", fresh=False)
    assert other.rows == []
    assert "code 5 → 6" in note
    assert load_results(tmp_path / "ops.previous.json").rows == [row("a", 1)]
    fresh, note = open_results(path, "ops", KEY, HERE, "new", fresh=True)
    assert (fresh.rows, note) == ([], None)
    with pytest.raises(ValueError, match="results of another benchmark"):
        open_results(path, "models", KEY, HERE, "new", fresh=False)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"kind": "ops"}'])
def test_other_files_are_named(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"x\.json does not hold results"):
        load_results(path)
    with pytest.raises(ValueError, match="cannot read"):
        load_results(tmp_path / "nothing.json")


def test_a_grid_as_markdown():
    grid = Grid("T", ("a", "b"), [("x|y", "**2×**")], ("why",))
    assert grid.markdown() == "### T\n\n| a | b |\n| --- | ---: |\n| x\\|y | **2×** |\n\n- why\n"
    assert grid.rich().row_count == 1
