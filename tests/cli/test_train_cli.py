"""``cbsa train``, ``finetune``, ``eval`` and ``plot`` as a user types them, with one real run."""

import csv
import json
import shutil

import pytest
import timm
import torch
from safetensors.torch import load_file

from cbsa.models import create_model
from cbsa.train import RECIPES, recipe
from cbsa.train.checkpoint import read_run_checkpoint, stored_config
from tests.commands import fail, succeed

SIZE = {"embed_dim": 16, "depth": 1, "num_heads": 2}
TINY = [*(f"model.kwargs.{k}={v}" for k, v in SIZE.items()), "epochs=1"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run, in a folder whose name looks like rich's markup, and what was said."""
    folder = tmp_path_factory.mktemp("runs") / "digits [red]first[/red]"
    return folder, succeed("train", "digits_cbt", *TINY, "-o", folder)


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


# --- without a run ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [("train", "--list"), ("train",)])
def test_list(arguments):
    output = succeed(*arguments)
    for name, function in RECIPES.items():
        line = next(line for line in output.splitlines() if f" {name} " in line)
        assert function.__doc__.splitlines()[0].replace("``", "") in line


@pytest.mark.parametrize("name", ["digits_cbt", "imagenet_cbt_tiny", "cifar10_tost_small"])
def test_show(name):
    output = succeed("train", name, "optimizer.lr=0.125", "recipe=mine", "--show")
    assert "Command: ``" in output
    shown = json.loads(output[output.index("\n{") :])
    assert shown["optimizer"]["lr"] == 0.125
    assert shown["recipe"] == "mine"
    assert shown["epochs"] == recipe(name).epochs


def test_show_a_fine_tuning():
    output = succeed("finetune", "finetune_pets", "--weights", "some/run", "--show")
    assert json.loads(output[output.index("\n{") :])["model"]["weights"] == "some/run"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "digit_cbt"), "recipe='digit_cbt': expected one of 'digits_cbt', "),
        (("train", "digit_cbt"), "did you mean 'digits_cbt'"),
        (
            ("train", "digits_cbt", "optimizer.lrr=1"),
            "unknown setting optimizer.lrr; did you mean optimizer.lr?",
        ),
        (("train", "digits_cbt", "lr=1", "--show"), "unknown setting lr; did you mean optimizer.lr?"),
        (("train", "digits_cbt", "epochs=few"), "epochs must be an integer, got 'few'"),
        (("train", "digits_cbt", "epochs"), "'epochs': settings are given as name=value"),
        (("train", "digits_cbt", "optimizer.lr=-1"), "optimizer.lr must be above 0"),
        (("train", "digits_cbt", "runtime.device=tpu9"), "runtime.device='tpu9': expected auto, cpu, cuda"),
        (("train", "imagenet_cbt_tiny"), "data.root is empty"),
        (("train", "digits_cbt", "model.name=cbt_tyny"), "model.name='cbt_tyny': no such model"),
        (("train", "digits_cbt", "model.kwargs.dept=3"), "unexpected keyword argument 'dept'"),
        (("train", "digits_cbt", "batch_size=5000"), "batch_size=5000 is larger than the training set"),
        (("finetune", "finetune_pets"), "fine-tuning needs weights to start from: give --weights"),
        (("finetune", "digits_cbt", "--weights", "nowhere.pth"), "model.weights='nowhere.pth': no such file"),
        (("finetune", "finetune_pet"), "did you mean 'finetune_pets'"),
        (("eval", "nowhere/run"), "'nowhere/run' is neither the folder of a run nor a recipe"),
        (("eval", "digits_cbt"), "there are no weights to evaluate: give model.weights="),
        (
            ("eval", "digits_cbt", "--checkpoint", "first"),
            "--checkpoint='first': expected one of 'last', 'best'",
        ),
        (("plot", "nowhere"), "nowhere has no log.jsonl: it is not the folder of a run"),
        (("plot",), "Missing argument"),
    ],
)
def test_mistakes_are_named(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in fail(*arguments)


def test_a_folder_that_is_no_run(tmp_path):
    assert "has no config.json: it is not the folder of a run" in fail("eval", tmp_path)
    (tmp_path / "file").touch()
    assert f"cannot write into {tmp_path / 'file'}" in fail("train", "digits_cbt", "-o", tmp_path / "file")


def test_a_mistake_does_not_spoil_the_folder(tmp_path):
    """What stopped the first attempt can be mended in the second."""
    fail("train", "digits_cbt", *TINY, "model.kwargs.num_heads=3", "-o", tmp_path)
    assert "top-1" in succeed("train", "digits_cbt", *TINY, "batch_size=718", "-o", tmp_path)


# --- a run -----------------------------------------------------------------------------------------------


def test_a_run_says_what_it_does_and_where_to_look(run):
    folder, output = run
    assert "cbt_tiny_patch4_32" in output
    assert "1 epochs of 22 steps of 64" in output
    assert "epoch   1/1" in output
    assert f"top-1 {summary(folder)['top1']:.2f} %" in output
    assert f"Look at {folder}: " in output
    for name in (
        "config.json",
        "log.jsonl",
        "epochs.csv",
        "confusion.csv",
        "confusion.png",
        "curves.svg",
        "summary.json",
        "model/README.md",
    ):
        assert (folder / name).stat().st_size > 0
    assert sorted(p.name for p in (folder / "checkpoints").iterdir()) == ["best.pt", "step-000000022.pt"]
    assert not list(folder.rglob("*.part"))


def test_the_files_of_a_run_agree(run):
    folder, _ = run
    numbers = summary(folder)
    with (folder / "epochs.csv").open() as file:
        (epoch,) = csv.DictReader(file)
    assert float(epoch["val_top1"]) == numbers["top1"] == numbers["best_top1"]
    assert float(epoch["val_loss"]) == numbers["loss"]
    counts, classes = confusion(folder)
    assert classes == numbers["classes"] == [str(digit) for digit in range(10)]
    assert counts.sum() == numbers["evaluated_images"]
    assert 100 * counts.trace() / counts.sum() == pytest.approx(numbers["top1"])
    assert numbers["steps"] == 22
    assert numbers["config"] == json.loads((folder / "config.json").read_text())
    card = (folder / "model" / "README.md").read_text()
    assert f"Top-1 {numbers['top1']:.2f} %" in card


def confusion(folder):
    with (folder / "confusion.csv").open() as file:
        (_, *classes), *rows = csv.reader(file)
    assert [row[0] for row in rows] == classes
    return torch.tensor([[int(n) for n in row[1:]] for row in rows]).double(), classes


def test_the_same_command_again_has_nothing_to_do(run):
    folder, _ = run
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*.pt")}
    output = succeed("train", "digits_cbt", *TINY, "-o", folder)
    assert f"{folder} holds a finished run: nothing to do" in output
    assert f"top-1 {summary(folder)['top1']:.2f} %" in output
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("*.pt")} == before


def test_the_same_folder_with_other_settings_is_refused(run):
    folder, _ = run
    message = fail("train", "digits_cbt", *TINY, "optimizer.lr=1e-5", "seed=4", "-o", folder)
    assert "holds a run with other settings (optimizer.lr, seed differ)" in message


def test_the_exported_model_is_the_runs(run):
    """Loaded by timm from its folder, it gives the logits of the weights in the checkpoint."""
    folder, _ = run
    exported = timm.create_model(f"local-dir:{folder / 'model'}", pretrained=True).eval()
    assert exported.pretrained_cfg["mean"] == [0.5]
    content = read_run_checkpoint(folder / "checkpoints" / "step-000000022.pt")
    assert stored_config(content).model.kwargs == SIZE
    model = create_model("cbt_tiny_patch4_32", in_chans=1, num_classes=10, **SIZE).eval()
    model.load_state_dict(content["model"])
    images = torch.randn(4, 1, 32, 32)
    with torch.no_grad():
        assert torch.equal(exported(images), model(images))


# --- eval ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["last", "best"])
def test_eval_gives_the_numbers_of_the_summary(run, which, tmp_path):
    folder, _ = run
    out = tmp_path / "new" / "numbers.json"
    output = succeed("eval", folder, "--checkpoint", which, "--out", out)
    numbers, expected = json.loads(out.read_text()), summary(folder)
    assert (numbers["top1"], numbers["top5"]) == (expected["top1"], expected["top5"])
    assert numbers["loss"] == pytest.approx(expected["loss"], rel=1e-12)
    assert numbers["count"] == expected["evaluated_images"] == 359  # a fifth of 1,797
    counts, classes = confusion(folder)
    accuracy = dict(zip(classes, (counts.diagonal() / counts.sum(1)).tolist(), strict=True))
    assert numbers["per_class"] == pytest.approx(accuracy)
    assert f"{expected['top1']:.2f}" in output
    assert f"Written: {out}" in output


def test_eval_best_reads_the_best(run, tmp_path):
    """Made to say «3» to everything, it recognises the threes alone."""
    folder = tmp_path / "run"
    shutil.copytree(run[0], folder)
    content = read_run_checkpoint(folder / "checkpoints" / "best.pt")
    content["model"]["head.weight"].zero_()
    content["model"]["head.bias"].copy_(torch.eye(10)[3])
    torch.save(content, folder / "checkpoints" / "best.pt")
    succeed("eval", folder, "--checkpoint", "best", "-o", tmp_path / "best.json")
    numbers = json.loads((tmp_path / "best.json").read_text())
    assert {name: value for name, value in numbers["per_class"].items() if value} == {"3": 1.0}
    counts, _ = confusion(folder)
    assert numbers["top1"] == pytest.approx(100 * (counts.sum(1)[3] / counts.sum()).item())


def test_one_of_several_processes_talks_and_writes(run, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert succeed("eval", run[0], "-o", tmp_path / "x.json") == ""
    assert not (tmp_path / "x.json").exists()


def test_eval_of_a_recipe_with_weights(run, tmp_path):
    folder, _ = run
    succeed("eval", "digits_cbt", *TINY, f"model.weights={folder}", "-o", tmp_path / "x.json")
    assert json.loads((tmp_path / "x.json").read_text())["top1"] == summary(folder)["top1"]


def test_eval_of_a_run_that_is_not_finished(run, tmp_path):
    """Its newest checkpoint is taken; without one, that is said."""
    folder = tmp_path / "run"
    shutil.copytree(run[0], folder)
    shutil.rmtree(folder / "model")
    succeed("eval", folder, "-o", tmp_path / "x.json")
    assert json.loads((tmp_path / "x.json").read_text())["top1"] == summary(folder)["top1"]
    shutil.rmtree(folder / "checkpoints")
    assert "the run has not come that far" in fail("eval", folder)
    assert "the run has not come that far" in fail("eval", folder, "--checkpoint", "best")


# --- plot and fine-tuning --------------------------------------------------------------------------------


def test_plot(run, tmp_path):
    folder, _ = run
    other = tmp_path / "elsewhere" / folder.name
    shutil.copytree(folder, other)
    out = tmp_path / "pictures" / "curves.png"
    output = succeed("plot", folder, other, "-o", out)
    assert f"Look at {out} (also {out.with_suffix('.svg')})" in output
    assert out.read_bytes().startswith(b"\x89PNG")
    svg = out.with_suffix(".svg").read_text()
    assert "<svg" in svg
    assert out.stat().st_size > 10_000


def test_a_place_that_cannot_be_written_is_named_before_the_work(run):
    folder, _ = run
    for command, file in (("eval", "x.json"), ("plot", "x.png")):
        assert "cannot write into /proc/nothing" in fail(command, folder, "-o", f"/proc/nothing/{file}")


def test_plot_of_a_run_without_an_epoch(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"kind": "step", "step": 1, "loss": 2.0}\n')
    assert f"{tmp_path} has no finished epoch yet" in fail("plot", tmp_path)


def test_finetune_starts_from_the_weights(run, tmp_path):
    """At a learning rate of almost nothing, it ends where it starts."""
    folder, _ = run
    still = ["optimizer.lr=1e-12", "optimizer.weight_decay=0", "schedule.warmup_epochs=0", "batch_size=718"]
    output = succeed(
        "finetune", "digits_cbt", *TINY, *still, "seed=1", "--weights", folder, "-o", tmp_path / "tuned"
    )
    assert f"Look at {tmp_path / 'tuned'}" in output
    before = load_file(folder / "model" / "model.safetensors")
    after = load_file(tmp_path / "tuned" / "model" / "model.safetensors")
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        if not any(part in name for part in ("running_", "num_batches")):  # statistics are of these batches
            torch.testing.assert_close(after[name], tensor, rtol=0, atol=1e-8)
    settings = json.loads((tmp_path / "tuned" / "config.json").read_text())
    assert settings["model"]["weights"] == str(folder)
    assert settings["seed"] == 1


def test_a_finetuned_model_keeps_what_no_weight_shows(run, tmp_path):
    """Its layout of representatives came with the weights, and goes with its own, whichever are evaluated.

    The weights it started from may be gone by then.
    """
    first, second = tmp_path / "first", tmp_path / "second"
    few = [*TINY, "batch_size=718"]
    succeed("train", "digits_cbt", *few, "model.kwargs.representatives=[3,2]", "-o", first)
    succeed("finetune", "digits_cbt", *few, "--weights", first, "-o", second)
    shutil.rmtree(first)
    assert timm.create_model(f"local-dir:{second / 'model'}").blocks[0].attn.representatives == (3, 2)
    for which in ("last", "best"):
        succeed("eval", second, "--checkpoint", which, "-o", tmp_path / "x.json")
        numbers = json.loads((tmp_path / "x.json").read_text())
        assert numbers["loss"] == pytest.approx(summary(second)["loss"], rel=1e-12)


def test_a_run_with_averaged_weights_exports_and_evaluates_them(tmp_path):
    succeed("train", "digits_cbt", *TINY, "batch_size=359", "ema=0.5", "-o", tmp_path)
    content = read_run_checkpoint(tmp_path / "checkpoints" / "step-000000004.pt")
    exported = load_file(tmp_path / "model" / "model.safetensors")
    assert torch.equal(exported["head.weight"], content["average"]["head.weight"])
    assert not torch.equal(exported["head.weight"], content["model"]["head.weight"])
    for which in ("last", "best"):
        succeed("eval", tmp_path, "--checkpoint", which, "-o", tmp_path / "x.json")
        numbers = json.loads((tmp_path / "x.json").read_text())
        assert numbers["loss"] == pytest.approx(summary(tmp_path)["loss"], rel=1e-12)


def test_a_vit_of_timm_trains_exports_and_is_evaluated(tmp_path):
    vit = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2}
    settings = [
        "model.name=vit_tiny_patch16_224",
        f"model.kwargs={json.dumps(vit)}",
        "epochs=1",
        "batch_size=359",
    ]
    succeed("train", "digits_cbt", *settings, "-o", tmp_path)
    for which in ("last", "best"):
        succeed("eval", tmp_path, "--checkpoint", which, "-o", tmp_path / "x.json")
        numbers = json.loads((tmp_path / "x.json").read_text())
        assert numbers["loss"] == pytest.approx(summary(tmp_path)["loss"], rel=1e-12)
