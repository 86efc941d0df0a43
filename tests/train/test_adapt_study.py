"""The adaptation study of ``benchmarks/`` and ``cbsa adapt``, with a tiny ViT on the CPU."""

import csv
import importlib.util
import json
from functools import partial
from pathlib import Path

import pytest
import timm
import torch

import cbsa
from cbsa.adaptation.costs import adapted_macs, paper_saving
from tests.commands import answer
from tests.train.adapting import COMMON, SWAP, train_vit

STUDY = Path(__file__).parents[2] / "benchmarks" / "adapt_study.py"
ON_CPU = ["runtime.device=cpu", "runtime.precision=fp32", "runtime.compile=false"]
adapt = partial(answer, "adapt")
SETTINGS = [*COMMON, *SWAP, *ON_CPU]

pytestmark = pytest.mark.usefixtures("one_thread_throughout")


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    return train_vit(tmp_path_factory.mktemp("original") / "vit")


@pytest.fixture(scope="module")
def study():
    spec = importlib.util.spec_from_file_location("adapt_study", STUDY)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("recipe", ["short_adapt", "cifar10_adapt"])
def test_the_study_compares_every_style_with_and_without_distillation(study, recipe):
    lines = study.LINES[recipe]
    assert {(line.style, line.distill) for line in lines if line.groups == 1} >= {
        (style, distill) for style in ("cbsa", "agent", "linear") for distill in ("none", "both")
    }
    assert ("softmax", "none") in {(line.style, line.distill) for line in lines}  # the honest comparison
    assert len({line.name for line in lines}) == len(lines)


def test_a_line_is_a_run_with_its_options(study, vit):
    line = study.Line("agent", "both", 3, (3, 4))
    assert line.name == "agent-3x4-both-groups3"
    config = study.config_of(vit, line, [], "cifar10_adapt")
    assert config.recipe == "cifar10_adapt"
    assert (config.swap.style, config.swap.representatives) == ("agent", (3, 4))
    assert (config.swap.groups, config.distill.what, config.data.dataset) == (3, "both", "digits")
    line = study.Line("linear", kernel="elu")
    assert line.name == "linear-elu-none"
    assert study.config_of(vit, line, []).swap.kernel == "elu"


def test_in_the_study_on_a_cpu_cbsa_and_fewer_agents_save_what_the_paper_saves(study):
    """65 tokens of width 64, m = 16: CBSA* is the paper's own; Agent has a product more."""
    kwargs = {"img_size": 32, "patch_size": 4, "embed_dim": 64, "depth": 6, "num_heads": 4}
    shares = {}
    for line in (study.Line("cbsa"), study.Line("agent"), study.Line("agent", representatives=(3, 4))):
        assert line in study.LINES["cifar10_adapt"]
        with torch.device("meta"):
            vit = timm.create_model("vit_tiny_patch16_224", **kwargs)
        before = adapted_macs(vit, 32)
        cbsa.adapt(vit, line.style, representatives=line.representatives or (4, 4))
        shares[line.name] = (before - adapted_macs(vit, 32)) / paper_saving(vit, 32)
    n, m = 65, 16
    whole = 2 * n * n - 3 * n * m - 2 * m * m
    assert shares["cbsa-none"] == pytest.approx(1)
    assert shares["agent-none"] == pytest.approx((2 * n * n - 4 * n * m) / whole)
    assert shares["agent-3x4-none"] > 0.95


def test_it_stops_in_time_goes_on_and_reports(study, vit, tmp_path):
    lines = (study.Line("cbsa", "both", 3), study.Line("softmax"))
    out, work = tmp_path / "out", tmp_path / "work"
    settings = [*SETTINGS, "epochs=3"]
    with pytest.MonkeyPatch.context() as patch:  # each run is begun, and asked to stop at once
        patch.setattr("cbsa.studies.clock._AGAIN", 0.01)
        patch.setattr(study.Clock, "is_over", False)
        assert study.study(vit, out, work, seconds=1e-6, settings=settings, lines=lines) == []
    for line in lines:
        assert list((work / line.name / "checkpoints").glob("step-*.pt"))
        assert not (work / line.name / "summary.json").exists()
    reports = study.study(vit, out, work, seconds=300, settings=settings, lines=lines)
    assert [report["run"] for report in reports] == ["cbsa-both-groups3", "softmax-none"]
    stored = json.loads((out / "adapt_study.json").read_text())
    assert stored["runs"] == json.loads(json.dumps(reports))
    text = (out / "adapt_study.md").read_text()
    assert "CBSA*, 2×2, digits, 3 epochs, distilled: both, 3 groups" in text
    assert "python benchmarks/adapt_study.py" in text
    with open(out / "adapt_study.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["fine_tuned_top1"] for row in rows] == [str(r["fine_tuned"]["top1"]) for r in reports]
    for name in ("config.json", *study.KEPT):
        assert (out / "runs" / "softmax-none" / name).is_file()
    assert (out / "runs" / "original" / "epochs.csv").is_file()
    control = reports[1]
    assert control["swapped"] == control["original"]
    assert control["swapped_gflops"] == control["gflops"]
    again = study.study(vit, out, work, seconds=1e-6, settings=settings, lines=lines)
    assert again == reports  # what is done stays in the table, whatever the time


def test_the_command(vit, tmp_path):
    code, output = adapt(
        *("--recipe", "digits_adapt", "--model", vit, "--style", "agent", "--distill", "logits"),
        *("--groups", "2", "--out", tmp_path / "run", *SETTINGS, "epochs=1"),
    )
    assert code == 0, output
    for text in ("right after the swap", "after fine-tuning", "adaptation.md"):
        assert text in output
    report = json.loads((tmp_path / "run" / "adaptation.json").read_text())
    assert (report["style"], report["distill"]["what"], len(report["replaced"])) == ("agent", "logits", 2)
    assert (tmp_path / "run" / "curves.png").is_file()
    code, output = adapt(
        *("--recipe", "digits_adapt", "--model", vit, "--style", "agent", "--distill", "logits"),
        *("--groups", "2", "--out", tmp_path / "run", *SETTINGS, "epochs=1"),
    )
    assert code == 0
    assert "holds a finished run: nothing to do" in output


def test_list_and_show(vit):
    assert "vit_adapt" in adapt("--list")[1]
    code, output = adapt("--show", "--data", "/somewhere", "--distill", "both")
    assert code == 0
    assert '"root": "/somewhere"' in output
    assert '"what": "both"' in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--model is missing: the folder of a run, a file of weights, or a name of timm's"),
        (("--model", "no/run"), "model 'no/run': there is no such folder or file"),
        (("--model", "vit_tinny_patch16_224"), "did you mean 'vit_tiny_patch16_224'"),
        (("--model", "vit_tiny_patch16_224", "--style", "agnt"), "did you mean 'agent'"),
        (("--model", "vit_tiny_patch16_224", "--distill", "all"), "distill.what='all': expected one of"),
        (("--model", "vit_tiny_patch16_224", "--recipe", "vit"), "recipe='vit': expected one of 'vit_adapt'"),
        (("--model", "vit_tiny_patch16_224", "--weights", "x.pt"), "'x.pt': no such file"),
        (("--model", ".", "--weights", "x.pt"), "goes with the name of a model, and '.' is none"),
    ],
)
def test_mistakes_are_named(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, output = adapt(*arguments)
    assert code == 2
    assert message in output


def test_models_that_are_no_vit_are_refused_by_name(tmp_path):
    from cbsa.train import override, recipe, train
    from tests.train.runs import TINY

    train(override(recipe("digits_cbt"), [*TINY, "epochs=1"]), tmp_path / "cbt")
    code, output = adapt("--model", tmp_path / "cbt", "--out", tmp_path / "run", *SETTINGS)
    assert code == 2
    assert "cannot adapt a Transformer; supported are timm's VisionTransformer models" in output
