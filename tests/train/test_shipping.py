"""Making weights that ship out of a run, on a small run of the digits."""

import json
import re
import shlex
import shutil

import pytest
import torch
from safetensors.torch import load_file

from cbsa.cli.shipped import weights_grid
from cbsa.models.shipped import SHIPPED, read_shipped
from cbsa.train import TrainConfig, override, recipe, train
from cbsa.train.command import command_of
from cbsa.train.fields import from_dict, to_dict
from cbsa.train.trained import open_trained
from tests.commands import answer
from tests.train.runs import tiny_config

NAME = "cbt_tiny_patch4_32"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "digits"
    train(tiny_config("epochs=1", "runtime.device=cpu", "model.kwargs.representatives=[2,2]"), folder)
    return folder


@pytest.fixture(scope="module")
def added(run, tmp_path_factory):
    out = tmp_path_factory.mktemp("weights")
    code, said = answer("weights", "add", run, "--tag", "small_digits", "--note", "For a test.", "--out", out)
    assert code == 0, said
    return out, said


def test_the_entry_is_the_run_rounded(run, added):
    out, said = added
    entry = read_shipped(out)[f"{NAME}.small_digits"]
    assert [f.name for f in sorted(entry.folder.iterdir())] == [
        "README.md",
        "config.json",
        "model.safetensors",
    ]
    assert f"Written: {entry.folder}" in said
    before, after = load_file(run / "model" / "model.safetensors"), load_file(entry.file)
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        rounded = tensor.bfloat16() if tensor.is_floating_point() else tensor
        assert torch.equal(after[name], rounded)
    trained, shipped = open_trained(str(run)), open_trained(str(entry.folder))
    assert shipped.model.blocks[0].attn.num_representatives == 4
    assert (shipped.data.img_size, shipped.data.in_chans) == (trained.data.img_size, trained.data.in_chans)
    assert (shipped.data.mean, shipped.data.std) == (trained.data.mean, trained.data.std)


def test_the_card_is_complete_and_true(run, added):
    out, _ = added
    entry = read_shipped(out)[f"{NAME}.small_digits"]
    card, summary = entry.card.read_text(), json.loads((run / "summary.json").read_text())
    model = open_trained(str(run)).model
    accuracy = entry.training["accuracy"]
    for part in (
        f"{sum(p.numel() for p in model.parameters()):,} parameters",
        "width 16, 2 layers, 2 heads, patches of 4 px, 2×2 representatives",
        f"by the run itself | {summary['top1']:.2f} %",
        f"rounded to bfloat16) | float32 | {accuracy['shipped']:.2f} %",
        *(
            "CC BY 4.0",
            "For a test.",
            "| seed | 0 |",
            "`digits_cbt`, 5 steps of 240 images",
            "not a model of the paper",
        ),
        *(summary["environment"][key] for key in ("cbsa", "torch", "python", "platform")),
    ):
        assert part in card, part
    assert accuracy["float32"] == pytest.approx(summary["top1"], abs=1e-6)  # the run is in float32 itself
    (command,) = re.findall(r"```bash\n(cbsa train .*)\n```", card)
    words = shlex.split(command)
    assert words[:3] == ["cbsa", "train", "digits_cbt"]
    stored = from_dict(TrainConfig, json.loads((run / "config.json").read_text()))
    assert to_dict(override(recipe("digits_cbt"), words[3:-2])) == to_dict(stored)


def test_the_table_shows_it(added):
    out, _ = added
    (cells,) = weights_grid(read_shipped(out).values()).cells
    assert cells[0] == f"{NAME}.small_digits"
    assert cells[2] == "16"
    code, said = answer("weights")
    assert code == 0
    assert all(name in said for name in SHIPPED)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["optimizer.betas=0.9,0.95", "model.weights=none", "ema=0.5"], "optimizer.betas=0.9,0.95 ema=0.5"),
        (["model.kwargs={}", "data.root=/somewhere/else"], "data.root=/data/x 'model.kwargs={}'"),
        (["model.kwargs.attention_kwargs.a=1"], "'model.kwargs.attention_kwargs={\"a\": 1}'"),
        (["runtime.compile=true", "model.kwargs.weight_init=unit_steps"], "runtime.compile=true"),
    ],
)
def test_commands_say_every_setting_but_the_folder_of_the_data(settings, expected):
    config = override(recipe("digits_cbt"), settings)
    root = "/data/x" if config.data.root else None
    command = command_of(config, root=root, out="runs/a")
    assert expected in command
    again = override(recipe("digits_cbt"), shlex.split(command)[3:-2])
    assert to_dict(again) == to_dict(override(config, [f"data.root={root}"]))


def test_what_cannot_ship_is_said(run, added, tmp_path):
    out, _ = added

    def refused(folder, *more):
        code, said = answer("weights", "add", folder, *more, "--out", out)
        assert code == 2, said
        return said

    tag = ["--tag", "other"]
    assert "has no config.json: it is not the folder of a run" in refused(tmp_path, *tag)
    assert "is there already: choose another tag, or remove" in refused(run, "--tag", "small_digits")
    for wrong in ("Digits", "a.b", "../a", "untrained"):
        assert f"tag '{wrong}': expected lower-case letters" in refused(run, "--tag", wrong)
    assert "dataset='digit': expected one of" in refused(run, *tag, "--dataset", "digit")

    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    (copy / "summary.json").unlink()
    assert "is not finished: run its command again, it goes on" in refused(copy, *tag)
    shutil.copy(run / "summary.json", copy)
    config = json.loads((run / "config.json").read_text())
    for change, message in (
        (
            {"name": "vit_tiny_patch16_224"},
            "trains vit_tiny_patch16_224: weights of our own Transformer ship",
        ),
        ({"weights": "/a/file.pth"}, "began with weights from /a/file.pth, of which a card could not tell"),
    ):
        (copy / "config.json").write_text(json.dumps(config | {"model": config["model"] | change}))
        assert message in refused(copy, *tag)
    assert [p.name for p in out.iterdir()] == [f"{NAME}.small_digits"]  # nothing half-made is left behind


def test_shipped_weights_start_a_run():
    from cbsa.train.initial import build_model

    name = next(iter(SHIPPED))
    settings = [f"model.name={SHIPPED[name].architecture}", f"model.weights={name}", "data.in_chans=3"]
    config = override(TrainConfig(), [*settings, "data.img_size=32"])
    assert torch.equal(build_model(config, 5).pos_embed, open_trained(name).model.pos_embed)
