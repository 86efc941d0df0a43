"""The command line as a user meets it: in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import cbsa

PROGRAM = Path(sys.executable).with_name("cbsa")
COMMAND = [str(PROGRAM)] if PROGRAM.exists() else [sys.executable, "-c", "from cbsa.cli import app; app()"]


def run(*arguments, cwd=None):
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, cwd=cwd, check=False)


def test_version():
    assert run("--version").stdout == f"cbsa {cbsa.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--help",), ["reproduce", "--version"]),
        (("reproduce", "--help"), ["fig-3d"]),
        (("reproduce", "fig-3d", "-h"), ["--out", "--seed", "--iterations", "--noise"]),
    ],
)
def test_help(arguments, words):
    result = run(*arguments)
    assert result.returncode == 0
    assert all(word in result.stdout for word in words)


def test_reproduce_fig_3d_says_where_to_look(tmp_path):
    result = run("reproduce", "fig-3d", "--iterations", "3", "--points", "20", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "Look at outputs/fig-3d/fig-3d.png" in result.stdout
    assert (tmp_path / "outputs/fig-3d/fig-3d.png").stat().st_size > 10_000
    numbers = json.loads((tmp_path / "outputs/fig-3d/fig-3d.json").read_text())
    assert numbers["command"].endswith("reproduce fig-3d --iterations 3 --points 20")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("reproduce", "fig-3e"), "fig-3d"),  # the nearest name
        (("reproduce", "fig-3d", "--points", "many"), "Invalid value for '--points'"),
        (("reproduce", "fig-3d", "--noise", "-1"), "noise must be finite and above 0, got -1.0"),
        (("reproduce", "fig-3d", "--classes", "99"), "classes must be at most 12, got 99"),
        (("train-me",), "train-me"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    result = run(*arguments)
    assert result.returncode == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())
    assert "Traceback" not in result.stderr
