"""``cbsa bench scale``: growth with the tokens, and what would take too long, small on the CPU."""

import json

import pytest
import torch
from typer.testing import CliRunner

from cbsa.bench import models, scale
from cbsa.bench.model_forms import Form
from cbsa.bench.resident import resident_bytes
from cbsa.bench.results import load_results
from cbsa.bench.tables import grids
from cbsa.cli import app

NAME = "cbt_small_patch16_224"


def row(size, milliseconds, name=NAME):
    form = Form(name, size, 1, "inference", "bf16", "blocks")
    return {**models.row_key(form), "status": "done", "median_ms": milliseconds}


@pytest.mark.parametrize("power", [1.0, 1.5, 2.0])
def test_the_exponent_is_that_of_the_growth(power):
    sizes = (512, 1024, 2048, 4096)
    rows = [row(px, 1e-3 * scale.token_count(NAME, px) ** power) for px in sizes]
    rows[0]["median_ms"] = 50.0  # 1,025 tokens: too few to count
    assert scale.exponent(rows) == pytest.approx(power)
    assert scale.exponent(rows[:2]) is None


def test_a_million_tokens_are_the_last():
    assert scale.token_count(NAME, scale.RESOLUTIONS[-1]) == 1_048_577
    config = scale.Config(scale.MODELS, torch.device("cpu"))
    assert {form.batch for form in config.forms()} == {1}


def test_training_recomputes_by_the_memory_of_the_device(monkeypatch):
    form = scale.ScaleForm("cbt_tiny_patch4_32", 32, 1, "training", "fp32", "none")
    assert form.create().kept_bytes == min(32 << 30, scale.device_bytes(torch.device("cpu")) // 3)
    monkeypatch.setattr(scale, "device_bytes", lambda device: 1 << 50)
    assert form.create().kept_bytes == 32 << 30
    other = scale.ScaleForm("vit_tiny_patch16_224", 32, 1, "training", "fp32", "none")
    assert not hasattr(other.create(), "kept_bytes")


def test_softmax_attention_is_cudnns_on_a_gpu():
    """Where cuDNN has none, in float32 and on a CPU, PyTorch chooses."""
    backends = torch.backends.cuda
    for precision, device, alone in (("bf16", "cuda", True), ("fp32", "cuda", False), ("bf16", "cpu", False)):
        (form, *_) = scale.Config(scale.MODELS, torch.device(device), precision=precision).forms()
        with form.attending(torch.device(device)):
            assert backends.cudnn_sdp_enabled()
            assert backends.flash_sdp_enabled() is not alone
    assert backends.flash_sdp_enabled()


def test_what_would_take_too_long_is_not_run():
    """Four times the tokens took 16 times as long, 1.6 s: four times as many again would take 26 s."""
    config = scale.Config(scale.MODELS, torch.device("cpu"), longest=20)
    rows = [row(2048, 100.0), row(4096, 1600.0)]
    following = Form(NAME, 8192, 1, "inference", "bf16", "blocks")
    assert "a call would take about 26 s, above --longest 20" in config.why_not(following, rows)
    assert config.why_not(following, [row(2048, 100.0), row(4096, 400.0)]) is None
    assert config.why_not(following, []) is None
    assert config.why_not(following, [row(4096, 1e9, "vit_small_patch16_224")]) is None
    with pytest.raises(ValueError, match="longest must be above 0"):
        scale.Config(scale.MODELS, torch.device("cpu"), longest=0)


def test_larger_images_wait_for_smaller_ones_whatever_the_number_of_processes(tmp_path):
    sizes = [
        "--sizes",
        "32,64,96",
        "--modes",
        "inference",
        "--precision",
        "fp32",
        "--no-compile",
        "--jobs",
        "3",
    ]
    command = ["bench", "scale", "--out", str(tmp_path), "--device", "cpu", "--models", "cbt_tiny_patch4_32"]
    outcome = CliRunner().invoke(
        app, [*command, *sizes, "--longest", "1e-9", "--seconds", "0.001", "--no-plots"]
    )
    assert outcome.exit_code == 0, outcome.output
    rows = load_results(tmp_path / "scale.json").rows
    assert [row["status"] for row in rows] == ["done", "not run", "not run"]


def test_the_command_measures_and_writes(tmp_path):
    command = ["bench", "scale", "--out", str(tmp_path), "--device", "cpu", "--models", "cbt_tiny_patch4_32"]
    options = ["--sizes", "32,256,320", "--modes", "inference", "--precision", "fp32", "--no-compile"]
    outcome = CliRunner().invoke(app, [*command, *options, "--seconds", "0.001", "--no-plots"])
    assert outcome.exit_code == 0, outcome.output
    results = load_results(tmp_path / "scale.json")
    assert [r["tokens"] for r in results.rows] == [65, 4097, 6401]
    assert all(r["status"] == "done" for r in results.rows)
    if resident_bytes() is not None:
        assert all(0 < r["peak_bytes"] < r["process_bytes"] for r in results.rows)
    assert results.rows[0]["exponent"] == results.rows[1]["exponent"] > 0
    assert any("time grows as tokens to the power of" in note for note in grids(results)[0].notes)
    again = CliRunner().invoke(
        app, [*command, *options, "--longest", "1e-9", "--seconds", "0.001", "--no-plots"]
    )
    assert again.exit_code == 0
    assert (
        json.loads((tmp_path / "scale.json").read_text())["rows"] == results.rows
    )  # nothing is measured twice
