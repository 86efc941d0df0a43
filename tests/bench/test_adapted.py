"""``cbsa bench adapt`` with small images on the CPU: styles beside the ViT, ratios, files."""

import csv

import pytest
import torch
from typer.testing import CliRunner

from cbsa.adaptation import AdaptedAttention
from cbsa.bench import adapted, models
from cbsa.bench.results import Results, load_results
from cbsa.bench.tables import grids, save_csv
from cbsa.cli import app


def made_up():
    """Rows as they would be: CBSA* makes twice the images/s of the ViT with half the memory."""
    config = adapted.Config(adapted.names(["small"], ["cbsa", "softmax"]), torch.device("cpu"), (224, 512))
    results = Results("adapt", models.KEY, {"device": "a machine"}, ["cbsa bench adapt"])
    for form in config.forms():
        factor = 2 if "cbsa" in form.name else 1
        rate = factor * 1000 * (224 / form.img_size) ** 2
        ms = 1e3 * form.batch / rate
        row = {**models.row_key(form), "status": "done", "reason": None, "errors": [], "images_s": rate}
        times = {"median_ms": ms, "p20_ms": ms, "p80_ms": ms, "peak_bytes": (4 << 30) // factor}
        results.put(row | times)
    config.compare(results.rows)
    return results


def test_names_and_models():
    names = adapted.names(["tiny"], ["cbsa", "linear", "softmax"])
    assert names == ("vit_tiny_patch16_224", "vit-cbsa_tiny_patch16_224", "vit-linear_tiny_patch16_224")
    assert len(adapted.names()) == 16
    with torch.device("meta"):
        for name in names:
            form = adapted.AdaptedForm(name, 32, 1, "inference", "fp32", "none", 5)
            found = {m.style.name for m in form.create().modules() if isinstance(m, AdaptedAttention)}
            assert found == (set() if "-" not in name else {name.split("_")[0].partition("-")[2]})
    for arguments, message in ((["huge"], ["cbsa"]), "size='huge'"), ((["tiny"], ["cbsq"]), "mean 'cbsa'"):
        with pytest.raises(ValueError, match=message):
            adapted.names(*arguments)


def test_resolutions_and_batches_are_those_of_the_issue():
    config = adapted.Config(adapted.names(), torch.device("cpu"))
    assert config.img_sizes == (224, 384, 512, 1024, 2048)
    assert config.batches == (models.LARGE,)
    batches = {form.name: form.batch for form in config.forms() if form.img_size == 1024}
    assert len({batches[name] for name in adapted.names(["base"])}) == 1  # all styles with the same


def test_table_csv_and_pictures(tmp_path):
    results = made_up()
    for row in results.rows:
        ours = "cbsa" in row["model"]
        assert row["over_original"] == (2 if ours else None)
        assert row["memory_of_original"] == (0.5 if ours else None)
    table = grids(results)[0]
    assert table.columns[-1] == "of the ViT's"
    assert [cells[-1] for cells in table.cells[:2]] == ["", "**2.00×**"]
    save_csv(results, tmp_path / "x.csv")
    with (tmp_path / "x.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(results.rows)
    assert "errors" not in rows[0]
    results.save(tmp_path / "adapt.json")
    ran = CliRunner().invoke(app, ["bench", "plot", str(tmp_path / "adapt.json")])
    assert ran.exit_code == 0, ran.output
    for name in ("adapt-large.png", "adapt-memory.png", "adapt.md", "adapt.csv"):
        assert (tmp_path / name).stat().st_size > 300


def test_the_command(tmp_path):
    arguments = ["--device", "cpu", "--models", "tiny", "--styles", "softmax,agent", "--sizes", "32"]
    arguments += ["--modes", "training", "--batch", "1", "--precision", "fp32", "--no-compile", "--no-plots"]
    ran = CliRunner().invoke(
        app, ["bench", "adapt", *arguments, "--seconds", "0.001", "--out", str(tmp_path)]
    )
    assert ran.exit_code == 0, ran.output
    original, agent = load_results(tmp_path / "adapt.json").rows
    assert (original["model"], agent["model"]) == ("vit_tiny_patch16_224", "vit-agent_tiny_patch16_224")
    assert original["status"] == agent["status"] == "done"
    assert agent["over_original"] == pytest.approx(agent["images_s"] / original["images_s"])
    assert (tmp_path / "adapt.csv").is_file()
    ran = CliRunner().invoke(app, ["bench", "adapt", "--sizes", "30", "--device", "cpu"])
    assert ran.exit_code == 2
    assert "needs a multiple of its patch of 16 px" in " ".join(ran.output.replace("│", " ").split())
