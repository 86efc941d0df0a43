"""Tables and pictures of made-up results, and the command line."""

import sys

import pytest
import torch
from typer.testing import CliRunner

from cbsa.bench import models, operators
from cbsa.bench.candidates import CANDIDATES
from cbsa.bench.geometry import MODES, Geometry
from cbsa.bench.model_forms import MODES as MODEL_MODES
from cbsa.bench.origin import command_line
from cbsa.bench.results import Results, load_results
from cbsa.bench.tables import grids, spread
from cbsa.cli import app

HERE = {"device": "a machine", "torch": "2"}
CEILINGS = {"device": "a machine", "copy_tb_s": 4.0, "matmul_tflops": 700.0, "matmul_dtype": "bfloat16"}


def made_up_operators():
    results = Results("ops", operators.KEY, HERE, ["cbsa bench ops"], CEILINGS)
    for tokens, batch in ((197, 4), (1025, 1)):
        for name, ms in (("triton", 0.1), ("sdpa-cudnn", 0.001 * tokens), ("flex", None)):
            for mode in MODES:
                geometry = Geometry(tokens, batch)
                row = operators.row_key(name, geometry, "bfloat16", mode)
                row |= {"label": CANDIDATES[name].label, "kind": CANDIDATES[name].kind, "errors": []}
                if ms is None:
                    row |= {"status": "refused", "reason": "dq errs by 0.3, allowed 0.01"}
                else:
                    row |= {"status": "done", "reason": None, "median_ms": ms, "p20_ms": ms, "p80_ms": ms}
                    row |= {"tb_s": 1.0, "floor_ms": 0.05, "of_floor": 0.05 / ms, "memory_ratio": 1.25}
                results.put(row)
    operators._compare(results.rows)
    return results


def made_up_models():
    results = Results("models", models.KEY, HERE, ["cbsa bench models"])
    names = ("cbt_small_patch16_224", "vit_small_patch16_224")
    for form in models.Config(names, torch.device("cpu"), (224, 512)).forms():
        rate = (4000 if form.name.startswith("cbt") else 1600) / (form.img_size / 224) ** 2
        ms = 1e3 * form.batch / rate
        row = {**models.row_key(form), "status": "done", "reason": None, "errors": [], "images_s": rate}
        results.put({**row, "median_ms": ms, "p20_ms": ms, "p80_ms": ms, "peak_bytes": 3 << 30})
    models._compare(results.rows)
    return results


def test_tables_of_operators():
    tables = grids(made_up_operators())
    assert len(tables) == 2 * len(MODES)
    ours, sdpa, flex = tables[-1].cells
    assert tables[-1].title.startswith("forward+backward: 1025 tokens × batch 1, 6 heads of 64, m = 64")
    assert ours == ("CBSA triton", "0.1 (0.1–0.1)", "1", "50%", "1.25×", "**10.2×**")
    assert (sdpa[0], sdpa[-1]) == ("SDPA cuDNN", "1×")
    assert flex[:2] == ("flex, compiled", "refused")
    assert tables[-1].notes == ("flex, compiled: refused: dq errs by 0.3, allowed 0.01",)


def test_tables_of_models():
    tables = grids(made_up_models())
    assert [t.title.split(":")[0] for t in tables] == list(MODEL_MODES)
    assert ": small patch16_224, " in tables[0].title  # what the names of the lines leave out
    lines = {line[:3]: line for line in tables[0].cells}
    assert lines["cbt", "224", "256"][3:] == ("4,000", "64 (64–64)", "3.22", "")
    assert lines["vit", "512", "1"][-1] == "**2.50×**"


def test_times_of_seconds_have_no_exponent():
    assert spread({"median_ms": 4660.4, "p20_ms": 999.6, "p80_ms": 0.05112}) == "4,660 (1,000–0.0511)"


@pytest.mark.parametrize(
    ("results", "pictures"),
    [(made_up_operators(), {"ops"}), (made_up_models(), {"models-large", "models-batch1"})],
)
def test_plot_command_draws_what_another_machine_measured(results, pictures, tmp_path):
    path = tmp_path / f"{results.kind}.json"
    results.save(path)
    ran = CliRunner().invoke(app, ["bench", "plot", str(path)])
    assert ran.exit_code == 0, ran.output
    for name in pictures:
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000
        assert "<svg" in (tmp_path / f"{name}.svg").read_text()[:2000]
    text = (tmp_path / f"{results.kind}.md").read_text()
    assert results.commands[0] in text
    assert "a machine" in text


def test_without_matplotlib_the_numbers_are_there_and_the_reason(tmp_path, monkeypatch):
    path = tmp_path / "ops.json"
    made_up_operators().save(path)
    for name in [m for m in sys.modules if m.startswith(("matplotlib", "cbsa.bench.plots", "cbsa.report"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    ran = CliRunner().invoke(app, ["bench", "plot", str(path)])
    assert ran.exit_code == 0, ran.output
    assert "No pictures" in ran.output
    assert "cbsa bench plot" in ran.output
    assert (tmp_path / "ops.md").exists()


@pytest.mark.parametrize("program", ["/somewhere/bin/cbsa", "/somewhere/cbsa/__main__.py"])
def test_the_command_is_written_as_one_would_type_it(program, monkeypatch):
    monkeypatch.setattr(
        sys, "argv", [program, "bench", "models", "--models", "cbt_small*", "--out", "/else/where"]
    )
    assert command_line() == "cbsa bench models --models 'cbt_small*' --out /else/where"


def test_ops_command(tmp_path):
    arguments = ["--device", "cpu", "--sizes", "26x2", "--heads", "2", "--head-dim", "8", "--no-plots"]
    arguments += ["--representatives", "4", "--candidates", "auto,sdpa-default,flex", "--seconds", "0.001"]
    arguments += ["--modes", "forward+backward", "--out", str(tmp_path)]
    ran = CliRunner().invoke(app, ["bench", "ops", *arguments])
    assert ran.exit_code == 0, ran.output
    rows = load_results(tmp_path / "ops.json").rows
    assert [row["status"] for row in rows] == ["done", "done", "not run"]
    assert "FlexAttention" in ran.output or "flex" in ran.output
    assert not list(tmp_path.glob("*.png"))


def test_models_command(tmp_path):
    arguments = ["--device", "cpu", "--models", "cbt_tiny_patch4_32", "--sizes", "16", "--batch", "1"]
    arguments += ["--modes", "inference", "--no-compile", "--precision", "fp32", "--seconds", "0.001"]
    ran = CliRunner().invoke(app, ["bench", "models", *arguments, "--out", str(tmp_path)])
    assert ran.exit_code == 0, ran.output
    (row,) = load_results(tmp_path / "models.json").rows
    assert (row["status"], row["img_size"], row["compilation"]) == ("done", 16, "none")
    assert (tmp_path / "models-large.png").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ops", "--sizes", "12"), "size '12': expected TOKENSxBATCH"),
        (("ops", "--candidates", "tritn"), "did you mean 'triton'"),
        (("ops", "--device", "tpu"), "--device='tpu'"),
        (("ops", "--seconds", "0"), "--seconds must be above 0"),
        (("ops", "--heads", "0"), "heads must be at least 1, got 0"),
        (("ops", "--out", __file__), "cannot write into"),
        (("models", "--models", "cbt_smoll_patch16_224"), "did you mean 'cbt_small_patch16_224'"),
        (
            ("models", "--sizes", "8"),
            "size 8 px: cbt_tiny_patch16_224 needs a multiple of its patch of 16 px",
        ),
        (("models", "--sizes", "big"), "--sizes 'big': expected a number above 0"),
        (("models", "--batch", "0"), "--batch '0': expected a number above 0"),
        (("models", "--modes", "sleep"), "mode='sleep'"),
        (("plot", "nowhere.json"), "cannot read nowhere.json"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    ran = CliRunner().invoke(app, ["bench", *arguments])
    assert ran.exit_code == 2
    assert message in " ".join(ran.output.replace("│", " ").split())


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about a machine without a GPU")
def test_no_gpu_is_said():
    for command in (["bench", "ops"], ["bench", "models"], ["reproduce", "table-throughput"]):
        ran = CliRunner().invoke(app, [*command, "--device", "cuda"])
        assert ran.exit_code == 2
        assert "PyTorch finds no CUDA device here" in " ".join(ran.output.replace("│", " ").split())


def test_candidates_are_listed():
    ran = CliRunner().invoke(app, ["bench", "ops", "--candidates", "list"])
    assert ran.exit_code == 0
    assert all(name in ran.output for name in ("triton", "sdpa-cudnn", "listing-compiled"))
