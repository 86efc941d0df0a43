"""``cbsa reproduce fig-vit-adapt``: FLOPs against formulas, accuracies as runs report them."""

import json

import pytest
import timm
import torch
from typer.testing import CliRunner

import cbsa
from cbsa.adaptation.costs import adapted_macs, paper_saving
from cbsa.cli import app
from cbsa.experiments import vit_adapt
from cbsa.models.registry import SIZES

ACCURACY = {"top1": 40.0, "top5": 70.0, "loss": 2.5}
REPORT = {
    "model": "vit_tiny_patch16_224",
    "dataset": "digits",
    "epochs": 5,
    "style": "agent",
    "distill": {"what": "both"},
    "replaced": [{"step": 0, "layers": [1]}, {"step": 9, "layers": [0]}],
    "original": ACCURACY,
    "swapped": ACCURACY | {"top1": 12.5},
    "fine_tuned": ACCURACY | {"top1": 39.25},
    "gflops": 2.0,
    "swapped_gflops": 1.5,
    "paper_saved_gflops": 0.625,
    "new_classifier": False,
}


@pytest.mark.parametrize(("size", "px"), [("small", 224), ("tiny", 256)])
def test_flops_are_those_of_the_formulas(size, px):
    """Per attention 4Nd² for the projections and, between tokens, 2N²d, 3Nmd + 2m²d, 4Nmd or 2Ndp + Nd."""
    side, d = px // 16, SIZES[size]["embed_dim"]
    n, m, p, patches = side**2 + 1, 64, 64, side**2
    pooling = 0 if side % 8 == 0 else patches * 8 * d + side * 8 * 8 * d
    mixing = {
        "softmax": 2 * n * n * d,
        "cbsa": 3 * n * m * d + 2 * m * m * d + pooling,
        "agent": 4 * n * m * d + pooling,
        "linear": 2 * n * d * p + n * d,
    }
    stem, head = patches * 16 * 16 * 3 * d, d * 1000
    for cost in vit_adapt.costs([size], px):
        attention = 4 * n * d * d + mixing[cost.style]
        assert cost.attention == pytest.approx(2e-9 * attention)
        assert cost.gflops == pytest.approx(2e-9 * (stem + 12 * (attention + 8 * n * d * d) + head))
        assert cost.share <= 1


def test_the_share_of_the_papers_saving():
    """Of a ViT-T for 64 px with patches of 4, whose pooling is free: CBSA* in all layers is the paper's own;
    half of the layers save half; Agent has a fourth product of N by m, and no contraction."""

    def share(style, px=64, patch=4, **options):
        with torch.device("meta"):
            vit = timm.create_model("vit_tiny_patch16_224", img_size=px, patch_size=patch)
        before = adapted_macs(vit, px)
        cbsa.adapt(vit, style, **options)
        report = {"gflops": before, "swapped_gflops": adapted_macs(vit, px)}
        return vit_adapt.saving_share(report | {"paper_saved_gflops": paper_saving(vit, px)})

    n, m = 257, 64
    whole = 2 * n * n - 3 * n * m - 2 * m * m
    assert share("cbsa") == pytest.approx(1)
    assert share("cbsa", layers=range(6, 12)) == pytest.approx(0.5)
    assert share("agent") == pytest.approx((2 * n * n - 4 * n * m) / whole)
    assert share("softmax") == 0
    seven = {"representatives": (7, 8)}  # what docs/adapt.md says
    assert f"{share('agent'):.1%} {share('agent', **seven):.1%}" == "88.9% 96.0%"
    found = [share("cbsa", 224, 16), share("agent", 224, 16), share("agent", 224, 16, **seven)]
    assert [f"{x:.1%}" for x in found] == ["92.2%", "78.2%", "98.5%"]


def test_reports_without_a_saving_of_the_papers_have_no_share():
    assert vit_adapt.saving_share({k: v for k, v in REPORT.items() if k != "paper_saved_gflops"}) is None
    assert vit_adapt.saving_share(REPORT | {"paper_saved_gflops": -0.1}) is None
    assert vit_adapt.accuracy_grid([REPORT | {"paper_saved_gflops": 0.0}]).cells[0][-1] == "—"


def test_runs_stand_beside_the_original_that_was_tuned_as_long():
    """Of the same weights, epochs and seed, and by labels alone."""
    softmax = REPORT | {"style": "softmax", "distill": {"what": "none"}}
    control = softmax | {"fine_tuned": ACCURACY | {"top1": 41.5}}
    others = [
        softmax | {"epochs": 6},
        softmax | {"weights": "elsewhere"},
        softmax | {"seed": 1},
        softmax | {"distill": {"what": "both"}},
    ]
    assert vit_adapt.tuned_original(REPORT, others) is None
    assert vit_adapt.tuned_original(REPORT, [*others, control]) == 41.5
    cells = vit_adapt.accuracy_grid([REPORT, control]).cells
    assert [line[5] for line in cells] == ["-2.25", "+0.00"]


def test_a_run_is_described_by_what_tells_it_from_others():
    cbsa_star = REPORT | {"style": "cbsa", "representatives": [6, 5], "distill": {"what": "none"}}
    assert "CBSA*, 6×5, digits, 5 epochs" in vit_adapt.describe(cbsa_star)
    linear = cbsa_star | {"style": "linear", "kernel": "elu"}
    assert "linear, ELU + 1, digits" in vit_adapt.describe(linear)
    assert "linear, digits" in vit_adapt.describe(linear | {"kernel": "relu"})


def invoke(*arguments):
    ran = CliRunner().invoke(
        app, ["reproduce", "fig-vit-adapt", *map(str, arguments)], env={"COLUMNS": "300", "TERM": "dumb"}
    )
    return ran.exit_code, " ".join(ran.output.replace("│", " ").split())


def test_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr(vit_adapt, "RESOLUTIONS", (224, 512))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "adaptation.json").write_text(json.dumps(REPORT))
    (tmp_path / "study.json").write_text(json.dumps({"runs": [REPORT | {"style": "cbsa", "run": "a"}]}))
    code, output = invoke(
        *("--runs", tmp_path / "run", "--results", tmp_path / "study.json", "--out", tmp_path / "out"),
        *("--widths", "tiny"),
    )
    assert code == 0, output
    what = "vit_tiny_patch16_224, CBSA∨ (Agent), digits, 5 epochs, distilled: both, 2 groups"
    assert f"{what} 40.00 12.50 39.25 -0.75 — 75.0% 80.0%" in output
    assert "CBSA*, digits" in output
    assert "gives no number" in output
    stored = json.loads((tmp_path / "out" / "fig-vit-adapt.json").read_text())
    assert stored["paper"]["values"] is None
    assert [run["style"] for run in stored["runs"]] == ["agent", "cbsa"]
    assert (tmp_path / "out" / "fig-vit-adapt.png").stat().st_size > 10_000
    assert (tmp_path / "out" / "fig-vit-adapt.csv").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--runs", "nowhere"), "expected the folder of a run of cbsa adapt"),
        (("--results", "nowhere.json"), "nowhere.json: No such file"),
        (("--results", "bad.json"), "bad.json does not hold runs of an adaptation study"),
        (("--size", "100"), "--size 100: expected a multiple of the patch of 16 px"),
        (("--widths", "huge"), "size='huge': expected one of 'tiny'"),
    ],
)
def test_mistakes_are_named(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.json").write_text('{"runs": [{"model": "x"}]}')
    code, output = invoke(*arguments)
    assert code == 2
    assert message in output
