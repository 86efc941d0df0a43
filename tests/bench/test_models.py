"""``cbsa bench models`` as a function, and the paper's table, with small images on the CPU."""

from dataclasses import replace

import pytest
import torch

from cbsa import paper
from cbsa.bench import model_forms, models
from cbsa.bench.gate import Check, refusal
from cbsa.bench.model_forms import Form, prepare
from cbsa.bench.results import load_results
from cbsa.experiments import throughput
from tests.compare import DEVICES

CPU = torch.device("cpu")
CONFIG = models.Config(
    ("cbt_tiny_patch4_32", "tost_tiny_patch4_32"),
    CPU,
    (32,),
    batches=(2,),
    precision="fp32",
    compilation="none",
    seconds=1e-3,
    num_classes=5,
)


def test_batches_by_tokens():
    sizes = {224: 256, 512: 64, 1024: 16, 2048: 4}
    for size, batch in sizes.items():
        assert models.large_batch("cbt_small_patch16_224", size) == batch
        assert models.large_batch("vit_base_patch16_224", size) == batch // 2
        assert models.large_batch("crate_large_patch16_224", size) == batch // 4
    assert models.large_batch("cbt_large_patch16_224", 8192) == 1


def test_models_by_pattern():
    assert models.choose_models(["*_small_*"]) == tuple(
        f"{family}_small_patch16_224" for family in ("cbt", "vit", "crate", "tost")
    )
    assert len(models.choose_models(["*"])) == 4 * 4 - 2
    assert models.choose_models(["cbt_tiny_patch4_32", "cbt_t*"]) == (
        "cbt_tiny_patch4_32",
        "cbt_tiny_patch16_224",
    )
    with pytest.raises(ValueError, match="did you mean 'cbt_tiny_patch4_32'"):
        models.choose_models(["cbt_tyny_patch4_32"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"img_sizes": (2,)}, "size 2 px: cbt_tiny_patch4_32 needs a multiple of its patch of 4 px"),
        ({"img_sizes": (33,)}, "size 33 px"),
        ({"img_sizes": ()}, "no img_sizes"),
        ({"modes": ("train",)}, "did you mean 'training'"),
        ({"precision": "int8"}, "precision='int8'"),
        ({"batches": (-1,)}, "batch must be at least 0"),
    ],
)
def test_bad_settings_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        replace(CONFIG, **change)


def test_rows_ratios_and_going_on(tmp_path, monkeypatch):
    results = models.run(CONFIG, tmp_path)
    assert [(r["model"], r["mode"], r["status"]) for r in results.rows] == [
        (name, mode, "done") for mode in ("inference", "training") for name in CONFIG.models
    ]
    rate = {(r["model"], r["mode"]): r["images_s"] for r in results.rows}
    for row in results.rows:
        assert row["images_s"] == pytest.approx(2000 / row["median_ms"])
        if row["model"].startswith("cbt"):
            assert row["cbt_over_this"] is None
        else:
            ours = rate["cbt_tiny_patch4_32", row["mode"]]
            assert row["cbt_over_this"] == pytest.approx(ours / row["images_s"])

    def never(*arguments):
        raise AssertionError("measured again")

    monkeypatch.setattr(models, "measure_form", never)
    ticks = []
    again = models.run(CONFIG, tmp_path, advance=lambda: ticks.append(1))
    assert (len(ticks), again.rows) == (4, results.rows)
    with pytest.raises(AssertionError, match="measured again"):
        models.run(replace(CONFIG, batches=(1,)), tmp_path)
    assert load_results(tmp_path / "models.json").rows == results.rows


def test_a_wrong_model_gets_no_speed_and_a_broken_one_costs_its_row_alone(tmp_path, monkeypatch):
    def spoiled(form, device):
        if form.mode == "training":
            raise torch.OutOfMemoryError("CUDA out of memory")
        return (lambda: None), [Check("output", 0.9, 0.1)]

    monkeypatch.setattr(models, "prepare", spoiled)
    rows = models.run(CONFIG, tmp_path).rows
    assert [(r["status"], r["reason"]) for r in rows] == [
        *[("refused", "output errs by 0.9, allowed 0.1")] * 2,
        *[("not run", "out of memory")] * 2,
    ]
    assert all(r["cbt_over_this"] is None and "images_s" not in r for r in rows)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", model_forms.MODES)
def test_forms_pass_their_own_gate_in_half_precision(mode, device):
    form = Form("cbt_tiny_patch4_32", 32, 2, mode, "bf16", "none", 5)
    call, checks = prepare(form, torch.device(device))
    assert call().shape == (2, 5)
    assert all(check.passed for check in checks)
    assert [check.what.split()[0] for check in checks] == ["output", "gradient"][: 1 + (mode == "training")]


def test_a_training_step_with_one_wrong_gradient_gets_no_speed(monkeypatch):
    """A compiler, or a kernel it calls, that doubles the gradient of the step sizes in one block."""

    def spoil(model, whole):
        model.blocks[1].attn.step_rep.register_hook(lambda grad: 2 * grad)

    monkeypatch.setattr(model_forms, "compile_model", spoil)
    _, checks = prepare(Form("cbt_tiny_patch4_32", 32, 4, "training", "fp32", "blocks", 5), CPU)
    assert checks[0].passed
    assert "gradient of blocks.*.attn.step_rep errs by" in refusal(checks)


def test_the_truth_of_the_gate_takes_no_kernels():
    model = models.Config.form("cbt_tiny_patch4_32", 32, 1, "training", "fp32", "none", 5).create()
    layer = model.blocks[0].attn
    with model_forms.plain_operators(model, "reference"):
        assert layer.impl == "reference"
    assert layer.impl == "auto"


def test_the_papers_table(tmp_path):
    assert throughput.paper_ratio("vit_small_patch16_224", "training") == pytest.approx(205 / 94)
    assert throughput.paper_ratio("tost_tiny_patch16_224", "inference") == pytest.approx(572 / 533)
    assert throughput.paper_ratio("cbt_tiny_patch16_224", "inference") is None
    assert throughput.configure(CPU).models == tuple(paper.THROUGHPUT)
    with pytest.raises(ValueError, match="vit_base_patch16_224 is not in the paper's table"):
        throughput.configure(CPU, models=("vit_base_patch16_224",))
    names = ("cbt_tiny_patch16_224", "tost_tiny_patch16_224")
    config = throughput.configure(
        CPU, models=names, img_size=32, batch=2, precision="fp32", compilation="none", seconds=1e-3
    )
    results = throughput.run(config, tmp_path)
    assert {r["num_classes"] for r in results.rows} == {10}
    training, inference = throughput.tables(results, config)
    assert training.cells[0][:3] == ("cbt_tiny_patch16_224", "2", "336")
    assert inference.cells[1][2] == "533"
    assert training.cells[1][4] == "1.04×"
    measured = throughput.find(results, config, names[1], "training")["cbt_over_this"]
    assert training.cells[1][5] == f"**{measured:.2f}×**"
    assert "ours at 32 px" in training.title
    numbers, text = throughput.save(results, config, tmp_path)
    assert numbers.exists()
    assert "neither its GPU" in text.read_text()
