"""The command line as a user meets it: in a process of its own, but for what can be told without one."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

import cbsa
from cbsa.cli import app
from cbsa.cli.models import cost_table
from cbsa.experiments.complexity import Cost
from cbsa.models import MODELS

PROGRAM = Path(sys.executable).with_name("cbsa")
COMMAND = [str(PROGRAM)] if PROGRAM.exists() else [sys.executable, "-c", "from cbsa.cli import app; app()"]


def run(*arguments, cwd=None):
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, cwd=cwd, check=False)


def test_version():
    assert run("--version").stdout == f"cbsa {cbsa.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--help",), ["reproduce", "models", "export", "convert", "--version"]),
        (
            ("reproduce", "--help"),
            ["fig-3d", "table-complexity", "fig-complexity", "fig-coding-rate", "fig-perturb"],
        ),
        (("reproduce", "table-zero-shot-layers", "-h"), ["--model", "--weights", "--data", "--untrained"]),
        (("reproduce", "fig-3d", "-h"), ["--out", "--seed", "--iterations", "--noise"]),
    ],
)
def test_help(arguments, words):
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0
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
        (("reproduce", "fig-3d", "--noise", "-1"), "noise must be between 1e-6 and 1e6, got -1.0"),
        (("reproduce", "fig-3d", "--classes", "99"), "classes must be at most 12, got 99"),
        (("reproduce", "fig-3d", "--step-size", "1e6", "--noise", "1e-3"), "the points diverge at iteration"),
        (("reproduce", "fig-3d", "--out", __file__), "cannot write into"),
        (("reproduce", "fig-complexity", "--out", "/proc/nothing"), "cannot write into /proc/nothing"),
        (("models", "cbt_tny_patch4_32"), "did you mean 'cbt_tiny_patch4_32'"),
        (("models", "nothing-like-it"), "no model's name contains 'nothing-like-it'"),
        (("export", "-m", "cbt_tiny_patch4_32", "-o", "x.zip"), "x.zip must end in .onnx or .pt2"),
        (("export", "-m", "cbt_tyny_patch4_32", "-o", "x.pt2"), "did you mean 'cbt_tiny_patch4_32'"),
        (("export", "-m", "cbt_tiny_patch4_32", "-o", "/proc/nothing/x.pt2"), "into /proc/nothing"),
        (("export", "-m", "cbt_tiny_patch4_32", "-o", "x.pt2", "--max-size", "8"), "less than the 32 px"),
        (("export", "-m", "tost_cab_tiny_12_patch16_224", "-o", "x.pt2"), "is a ToST, which `cbsa export`"),
        (("convert", "nowhere.pth", "-m", "cbt_tiny_patch4_32", "-o", "x"), "nowhere.pth: no such file"),
        (("convert", __file__, "-m", "cbt_tiny_patch4_32", "-o", "x"), "it was not loaded"),
        (("train-me",), "train-me"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())
    assert isinstance(result.exception, SystemExit)  # a message, and no traceback


@pytest.mark.parametrize("pattern", ["crate_cbt_tiny_patch4_32", "crate_cbt*patch4_32"])
def test_names_of_models_can_be_read_from_a_pipe(pattern):
    result = CliRunner().invoke(app, ["models", pattern])
    assert result.exit_code == 0
    assert "crate_cbt_tiny_patch4_32" in result.stdout
    assert ("crate_cbt_small_patch4_32" in result.stdout) == ("*" in pattern)


def test_a_bad_argument_in_a_process_of_its_own():
    result = run("reproduce", "fig-3d", "--noise", "-1")
    assert result.returncode == 2
    assert "noise must be between 1e-6 and 1e6, got -1.0" in " ".join(result.stderr.replace("│", " ").split())
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(("width", "counted"), [(80, False), (120, True)])
def test_costs_of_models_fit_the_terminal(width, counted):
    """Names stay whole: they are there to be copied."""
    costs = [Cost(name, 224, 160_287_000, 59.659, 59.7, 14_903_000, 83.1, 47.3, 0.53) for name in MODELS]
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(cost_table(costs, width))
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= width
    assert [line.split()[0] for line in lines if "patch" in line] == list(MODELS)
    assert any("counted" in line and "GFLOPs" in line for line in lines) == counted
