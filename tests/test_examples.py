"""The notebook in examples/ runs from a fresh folder, cell by cell, and its pictures can be drawn.

Its code runs as Python: Jupyter's own commands (%…) are left out, and the value of a cell's last line is
looked at as Jupyter would show it. So the suite needs no Jupyter.
"""

import ast
import json
from pathlib import Path

import pytest
from matplotlib.figure import Figure

NOTEBOOK = Path(__file__).parents[1] / "examples" / "look_inside.ipynb"


def code_cells():
    """The cells' code, and what it is that Jupyter would not accept."""
    notebook = json.loads(NOTEBOOK.read_text())
    assert (notebook["nbformat"], notebook["metadata"]["kernelspec"]["name"]) == (4, "python3")
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [], "clear the outputs before committing"
            assert cell["execution_count"] is None
            yield "".join(line for line in cell["source"] if not line.startswith("%"))


@pytest.mark.usefixtures("one_thread")
def test_look_inside_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    figures = []
    for number, code in enumerate(code_cells()):
        tree = ast.parse(code, f"cell {number}")
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, f"cell {number}", "exec"), names)
        if last is not None:
            shown = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)
            if isinstance(shown, Figure):
                shown.draw_without_rendering()
                figures.append(shown)
    assert len(figures) == 12
    assert names["result"].summary["top1"] > 90, "the notebook's model did not learn"
    assert "of the test images are right" in capsys.readouterr().out
    # What the text says of the results: learning brings both reductions together.
    assert names["reductions"]["trained"].correlation > names["reductions"]["untrained"].correlation
