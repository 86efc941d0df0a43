"""``cbsa reproduce all --scale smoke``: every experiment runs end to end."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cbsa.cli import app, everything, reproduce
from cbsa.cli.inside import run_inside
from cbsa.cli.smoke import Step, smoke_steps


def test_no_experiment_is_left_out(tmp_path):
    commands = {command.name for command in reproduce.app.registered_commands}
    steps = [step.name for step in smoke_steps(tmp_path, tmp_path)]
    assert commands - {"all"} == {step for step in steps if " " not in step}
    assert len(set(steps)) == len(steps)


def invoke(*arguments):
    ran = CliRunner().invoke(
        app, ["reproduce", "all", *map(str, arguments)], env={"COLUMNS": "200", "TERM": "dumb"}
    )
    return ran.exit_code, " ".join(ran.output.split())


def test_everything_runs(tmp_path):
    code, output = invoke("--scale", "smoke", "--out", tmp_path / "all")
    log = (tmp_path / "all" / "log.txt").read_text()
    assert code == 0, f"{output}\n{log[-5000:]}"
    steps = json.loads((tmp_path / "all" / "all.json").read_text())["steps"]
    assert {step["status"] for step in steps} == {"ran"}
    for step in steps:
        assert any(path.is_file() for path in Path(step["folder"]).rglob("*"))
    assert "$ cbsa reproduce fig-rank --model" in log
    assert "Traceback" not in log


def test_failures_are_reported_and_what_needs_them_is_left_out(tmp_path, monkeypatch):
    steps = [
        Step(("train", "no_such_recipe", "--out", tmp_path / "cbt"), tmp_path / "cbt"),
        Step(("reproduce", "fig-rank", "--model", tmp_path / "cbt"), tmp_path / "fig-rank", "cbt"),
        Step(("models", "cbt_tiny_patch4_32"), tmp_path / "models"),
    ]
    monkeypatch.setattr(everything, "smoke_steps", lambda out, scenes: steps)
    code, output = invoke("--out", tmp_path)
    assert code == 1
    assert "Not run to the end: train cbt, fig-rank, models models" in output  # the last wrote nothing
    statuses = [step["status"] for step in json.loads((tmp_path / "all.json").read_text())["steps"]]
    assert statuses == ["failed", "left out", "failed"]
    assert "no_such_recipe" in (tmp_path / "log.txt").read_text()


def test_unknown_scales_are_named(tmp_path):
    code, output = invoke("--scale", "smok", "--out", tmp_path)
    assert code == 2
    assert "did you mean 'smoke'" in output


@pytest.mark.parametrize(("words", "code"), [(("models", "cbt_tiny"), 0), (("models", "nothing-like-it"), 2)])
def test_commands_run_inside(tmp_path, words, code):
    assert run_inside(words, tmp_path / "log.txt") == code
    assert f"$ cbsa {' '.join(words)}" in (tmp_path / "log.txt").read_text()


def test_an_unexpected_error_is_in_the_log(tmp_path, monkeypatch):
    def broken(*arguments):
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("cbsa.cli.app", broken)
    assert run_inside(["models"], tmp_path / "log.txt") == 1
    assert "ZeroDivisionError: oh" in (tmp_path / "log.txt").read_text()
