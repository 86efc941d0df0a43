"""``cbsa bench decoders``: decoders alone, through the machinery that times models, small on the CPU."""

import json

import pytest
import torch
from typer.testing import CliRunner

from cbsa.bench import decoders, models
from cbsa.bench.model_forms import MODES, prepare
from cbsa.bench.origin import code_fingerprint
from cbsa.bench.results import load_results
from cbsa.bench.tables import grids
from cbsa.cli import app
from tests.compare import DEVICES


def form(name, mode, compilation="none", precision="bf16"):
    return decoders.DecoderForm(f"{name}_tiny_patch16", 64, 2, mode, precision, compilation, 5)


def test_names_say_decoder_and_width():
    assert decoders.names(("cbt", "segmenter"), ("small", "large")) == (
        "cbt_small_patch16",
        "segmenter_small_patch16",
        "cbt_large_patch16",
        "segmenter_large_patch16",
    )
    with pytest.raises(ValueError, match="did you mean 'depict'"):
        decoders.names(("depct",))
    with pytest.raises(ValueError, match="width='giant'"):
        decoders.names(widths=("giant",))


def test_all_decoders_see_the_same_tokens():
    """150 classes, the authors' widths, and as many images as models of that size get."""
    config = decoders.Config(decoders.names(), torch.device("cpu"))
    forms = list(config.forms())
    assert {f.num_classes for f in forms} == {150}
    assert {(f.img_size, f.grid, f.batch) for f in forms if f.batch > 1} == {
        (512, (32, 32), 64),
        (1024, (64, 64), 16),
        (2048, (128, 128), 4),
    }
    made = {f.name: f.create() for f in forms}
    sizes = {name: sum(p.numel() for p in model.parameters()) for name, model in made.items()}
    assert sizes["cbt_small_patch16"] == pytest.approx(0.753e6, rel=1e-3)
    assert sizes["cbt-tied_small_patch16"] < sizes["cbt_small_patch16"] < sizes["segmenter_small_patch16"]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", decoders.DECODERS)
def test_decoders_pass_their_own_gate_in_half_precision(name, mode, device):
    call, checks = prepare(form(name, mode), torch.device(device))
    assert call().shape == (2, 5, 4, 4)
    assert all(check.passed for check in checks)
    assert [check.what.split()[0] for check in checks] == ["output", "gradient"][: 1 + (mode == "training")]


def test_a_training_step_reaches_the_patch_tokens(monkeypatch):
    """What the encoder would learn from is part of the step, and of what the gate looks at."""
    tokens = []
    draw = decoders.DecoderForm.draw

    def remember(self, *arguments):
        tokens.append(draw(self, *arguments))
        return tokens[-1]

    monkeypatch.setattr(decoders.DecoderForm, "draw", remember)
    call, _ = prepare(form("cbt", "training", precision="fp32"), torch.device("cpu"))
    first = tokens[0].grad
    assert first.abs().sum() > 0
    call()
    assert torch.equal(tokens[0].grad, first)  # made anew, not added up


def test_results_depend_on_the_code_of_the_decoders():
    assert decoders.Config.code == ("ops", "layers", "models", "segmentation")
    assert code_fingerprint(decoders.Config.code) != code_fingerprint(models.Config.code)


def test_decoders_command(tmp_path):
    arguments = ["--device", "cpu", "--widths", "tiny", "--sizes", "64", "--batch", "1", "--classes", "5"]
    arguments += ["--no-compile", "--precision", "fp32", "--seconds", "0.001", "--out", str(tmp_path)]
    ran = CliRunner().invoke(app, ["bench", "decoders", *arguments])
    assert ran.exit_code == 0, ran.output
    results = load_results(tmp_path / "decoders.json")
    assert results.kind == "decoders"
    assert [row["status"] for row in results.rows] == ["done"] * 8
    rate = {(r["model"], r["mode"]): r["images_s"] for r in results.rows}
    for row in results.rows:
        ours = rate["cbt_tiny_patch16", row["mode"]]
        expected = None if row["model"] == "cbt_tiny_patch16" else pytest.approx(ours / row["images_s"])
        assert row["cbt_over_this"] == expected
    assert [grid.title.split(",")[0] for grid in grids(results)] == [f"{m}: tiny patch16" for m in MODES]
    assert (tmp_path / "decoders-large.png").stat().st_size > 10_000
    assert "# cbsa bench decoders" in (tmp_path / "decoders.md").read_text()
    rows = json.loads((tmp_path / "decoders.json").read_text())["rows"]
    again = CliRunner().invoke(app, ["bench", "decoders", *arguments])  # nothing is measured twice
    assert again.exit_code == 0
    assert json.loads((tmp_path / "decoders.json").read_text())["rows"] == rows


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--decoders", "segmentor"), "did you mean 'segmenter'"),
        (("--widths", "huge"), "width='huge'"),
        (("--sizes", "40"), "size 40 px: cbt_small_patch16 needs a multiple of its patch of 16 px"),
        (("--widths", ","), "no models to measure"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    ran = CliRunner().invoke(app, ["bench", "decoders", "--device", "cpu", *arguments])
    assert ran.exit_code == 2
    assert message in " ".join(ran.output.replace("│", " ").split())
