"""Kernels compiled for GPUs that are not there, as the package would launch them."""

import ast
import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="needs Triton, which comes with PyTorch on Linux")
from cbsa.bench.kernel_resources import GPUS, compiled_for, spills_in_loops

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Rows of ``benchmarks/compile_kernels.py --quick``, in a process without Triton's interpreter."""
    folder = tmp_path_factory.mktemp("compiled")
    command = [
        sys.executable,
        "benchmarks/compile_kernels.py",
        "--quick",
        "--gpus",
        "H200",
        "--out",
        str(folder),
    ]
    environment = {**os.environ, "TRITON_INTERPRET": "0", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with (folder / "kernels.csv").open() as file:
        return list(csv.DictReader(file))


def kernels_of_the_package():
    """Triton functions that none other calls: those that are launched."""
    defined, called = set(), set()
    for path in (ROOT / "src/cbsa/ops/kernels").glob("*.py"):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef) and "triton.jit" in map(
                ast.unparse, function.decorator_list
            ):
                defined.add(function.name)
                calls = (node for node in ast.walk(function) if isinstance(node, ast.Call))
                called |= {node.func.id for node in calls if isinstance(node.func, ast.Name)}
    return defined - called


def test_every_kernel_is_compiled_and_fits(rows):
    assert {row["kernel"] for row in rows} == kernels_of_the_package()
    assert [row for row in rows if row["fits"] != "True"] == []


def test_none_spills_much_where_it_costs_time(rows):
    """Wide heads do a little; outside of loops others do too, with all registers that a launch allows."""
    assert [row for row in rows if int(row["spills_in_loops"]) > 32] == []
    assert all(int(row["registers"]) >= 128 for row in rows if row["spilled_bytes"] != "0")


def test_spills_in_innermost_loops_are_counted():
    """STL before any loop, in an outer one, and twice in the one within; a forward branch is none."""
    code = """
        /*0000*/              STL [R1], R2 ;
.L_x_0:
        /*0010*/              STL [R1+0x4], R3 ;
        /*0020*/         @P0  BRA `(.L_x_2) ;
.L_x_1:
        /*0030*/              LDL R2, [R1] ;
        /*0040*/              FADD R2, R2, R3 ;
        /*0050*/              STL [R1], R2 ;
        /*0060*/         @P1  BRA `(.L_x_1) ;
.L_x_2:
        /*0070*/              LDL R3, [R1+0x4] ;
        /*0080*/         @P2  BRA `(.L_x_0) ;
        /*0090*/              EXIT ;
    """
    assert spills_in_loops(code) == 2
    assert spills_in_loops("        /*0000*/              STL [R1], R2 ;") == 0


def test_kernels_in_the_interpreter_are_refused(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with (
        pytest.raises(RuntimeError, match="start Python without TRITON_INTERPRET=1"),
        compiled_for(GPUS["H200"]),
    ):
        pass
