"""Fine-tuning an adapted ViT by the loop that trains classifiers: what it learns from, when layers change,
what is reported, resuming, processes, bad input."""

import json
import signal
from dataclasses import replace

import pytest
import timm
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

import cbsa
from cbsa.adaptation import AdaptedAttention, load_adapted
from cbsa.adaptation.costs import adapted_macs
from cbsa.analysis import extraction_rank
from cbsa.models import CheckpointError
from cbsa.train import NonFiniteError, evaluate, override, recipe, train
from cbsa.train.adaptation.config import AdaptConfig, DistillConfig, SwapConfig
from cbsa.train.adaptation.distillation import DistillObjective, record_blocks, token_distance
from cbsa.train.adaptation.original import configure
from cbsa.train.adaptation.progressive import replaced_by, replacements
from cbsa.train.adaptation.recipes import ADAPT_RECIPES, adapt_recipe
from cbsa.train.adaptation.report import read_report
from cbsa.train.adaptation.task import Adaptation
from cbsa.train.assess import assess, config_of_run
from cbsa.train.fields import from_dict, to_dict
from cbsa.train.kinds import config_of
from cbsa.train.step import autocast
from cbsa.train.trained import open_trained
from tests.compare import assert_close
from tests.train.adapting import SIZE, adapt_config, start, train_vit
from tests.train.runs import assert_same_bits, finish, last_state, losses, torchrun

PROGRESSIVE = ("distill.what=both", "swap.groups=3", "swap.over=0.9", "ema=0.5", "checkpoint.every_steps=2")

pytestmark = pytest.mark.usefixtures("one_thread_throughout")


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    return train_vit(tmp_path_factory.mktemp("original") / "vit", "epochs=4")


@pytest.fixture(scope="module")
def whole(vit, tmp_path_factory):
    """A run with everything, not interrupted."""
    return train(adapt_config(vit, *PROGRESSIVE), tmp_path_factory.mktemp("adapted") / "run")


# --- what is learnt from ---------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["logits", "features", "both"])
def test_the_loss_is_the_one_that_is_documented(vit, what):
    """Cross-entropy, τ²·KL by its definition, and the distance of normalised tokens, from hooks."""
    weights = ["distill.labels=0.5", "distill.logits=2", "distill.features=3", "distill.temperature=4"]
    config = adapt_config(vit, f"distill.what={what}", "label_smoothing=0", *weights)
    teacher, student = load_adapted(vit / "model"), cbsa.adapt(load_adapted(vit / "model"), "agent")
    seen = [], []
    for model, kept in zip((teacher, student), seen, strict=True):
        for block in model.blocks:
            block.register_forward_hook(lambda _, x, y, kept=kept: kept.append(y))
    images, targets = torch.randn(4, 1, 16, 16), torch.tensor([1, 3, 5, 7])
    truth, logits = teacher.eval()(images), student(images)
    expected = 0.5 * F.cross_entropy(logits, targets)
    if what != "features":
        p, q = (x.div(4).softmax(-1) for x in (truth, logits))
        expected = expected + 2 * 16 * (p * (p.log() - q.log())).sum(-1).mean()
    if what != "logits":

        def unit(x):
            return (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()

        pairs = zip(*seen, strict=True)
        expected = expected + 3 * sum((unit(x) - unit(y)).square().mean() for x, y in pairs) / 3
    tokens = record_blocks(teacher), record_blocks(student)
    objective = DistillObjective(config, 10, teacher, tokens)
    loss = objective.measure(student, images, targets, autocast(torch.device("cpu"), "fp32"))
    assert_close(loss, expected, 1e-5)
    loss.backward()
    assert all(p.grad is not None for p in student.parameters())
    assert all(p.grad is None for p in teacher.parameters())
    assert tokens[0]._kept is None  # nothing is held after the step


def test_recorded_blocks_change_neither_names_nor_the_function(vit):
    model, images = load_adapted(vit / "model").eval(), torch.randn(2, 1, 16, 16)
    names, before = list(model.state_dict()), model(images)
    blocks = record_blocks(model)
    with blocks.recording() as tokens:
        assert torch.equal(model(images), before)
    assert [tuple(x.shape) for x in tokens] == [(2, 17, 16)] * 3
    assert list(model.state_dict()) == names
    assert token_distance(tokens[0], tokens[0]) == 0


@pytest.mark.parametrize(("style", "distill"), [("cbsa", "both"), ("agent", "both"), ("linear", "none")])
def test_every_style_learns(vit, tmp_path, style, distill):
    settings = (f"swap.style={style}", f"distill.what={distill}", "epochs=3", "eval_every=3")
    result = train(adapt_config(vit, *settings), tmp_path / "run")
    found = losses(tmp_path / "run")
    first, last = (sum(found[step] for step in steps) / 5 for steps in (range(1, 6), range(11, 16)))
    assert last < first
    report = read_report(tmp_path / "run")
    assert report["fine_tuned"]["loss"] < report["swapped"]["loss"]
    assert result.summary["model"] == f"vit_tiny_patch16_224 → {style}"


# --- progressive replacement -----------------------------------------------------------------------------


def test_the_schedule_of_replacement():
    swap = SwapConfig(groups=3, over=0.5)
    assert replacements(swap, range(7), 120) == [(0, [4, 5, 6]), (20, [2, 3]), (40, [0, 1])]
    first = replace(swap, order="first", over=1.0)
    assert replacements(first, range(7), 120) == [(0, [0, 1, 2]), (40, [3, 4]), (80, [5, 6])]
    assert replacements(SwapConfig(), [2, 5], 7) == [(0, [2, 5])]
    schedule = replacements(swap, range(7), 120)
    assert replaced_by(schedule, 19) == {4, 5, 6}
    assert replaced_by(schedule, 20) == {2, 3, 4, 5, 6}
    assert replaced_by(schedule, 119) == set(range(7))
    for steps in range(1, 9):  # fewer steps than groups: still all of them before the last step
        assert replaced_by(replacements(SwapConfig(groups=7, over=1.0), range(7), steps), steps - 1) == set(
            range(7)
        )
    with pytest.raises(ValueError, match=r"swap\.groups=4: 3 layers are replaced; choose at most as many"):
        replacements(SwapConfig(groups=4), range(3), 10)


def test_layers_are_replaced_in_their_turn(vit, tmp_path):
    """The last layer before step 0, the next before step 3, the first before step 6 of 10."""
    styles = []

    def look(step, loss):
        adapted = last["model"].modules()
        styles.append([m.style.name for m in adapted if isinstance(m, AdaptedAttention)])

    last = {}
    config = adapt_config(vit, "swap.groups=3", "swap.over=0.9", "checkpoint.every_steps=4")
    from cbsa.train.adaptation.task import Adaptation

    original = Adaptation.arrange

    def arrange(self, model, step, total):
        last["model"] = model
        return original(self, model, step, total)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Adaptation, "arrange", arrange)
        result = train(config, tmp_path / "run", on_look=look)
    s, c = "softmax", "cbsa"
    assert styles == [[s, s, c]] * 3 + [[s, c, c]] * 3 + [[c, c, c]] * 4
    replaced = read_report(tmp_path / "run")["replaced"]
    assert replaced == [{"step": 0, "layers": [2]}, {"step": 3, "layers": [1]}, {"step": 6, "layers": [0]}]
    assert result.summary["best_epoch"] == 2  # at the end of the first, a layer was the original's still
    middle = json.loads(torch.load(tmp_path / "run/checkpoints/step-000000008.pt")["model_args"])
    assert [layer["name"] for layer in middle["adapted"]] == [c, c, c]


# --- what is reported, and what is kept ------------------------------------------------------------------


def test_accuracies_before_right_after_and_at_the_end(vit, whole):
    report = read_report(whole.folder)
    original, summary = json.loads((vit / "summary.json").read_text()), whole.summary
    assert report["original"]["top1"] == original["top1"] == summary["original_top1"]
    assert report["fine_tuned"]["top1"] == summary["top1"]
    assert report["swapped"]["top1"] == summary["swapped_top1"]
    swapped = cbsa.adapt(load_adapted(vit / "model"), "cbsa", representatives=(2, 2))
    config = config_of_run(vit)
    assert report["swapped_gflops"] == 2e-9 * adapted_macs(swapped, 16, 1) < report["gflops"]
    n, m, d = 17, 8, 16  # all three layers, m = d/H
    saved = 2e-9 * 3 * (2 * n * n * d - 3 * n * m * d - 2 * m * m * d)
    assert report["paper_saved_gflops"] == pytest.approx(saved)
    assert evaluated(swapped, config) == pytest.approx(report["swapped"]["loss"])
    text = (whole.folder / "adaptation.md").read_text()
    for stage in ("original", "right after the swap", "after fine-tuning"):
        assert f"| {stage} | " in text
    assert not report["new_classifier"]


def evaluated(model, config):
    from cbsa.train.classification import Classification
    from cbsa.train.distributed import World

    task, world = Classification(config), World(0, 1, torch.device("cpu"))
    loader = task.load_eval(task.open(train=False), world, None, lambda done, total: None)
    metrics = evaluate(model, loader, data=config.data, num_classes=10, precision="fp32", world=world)
    return metrics.loss


def test_a_saved_model_has_its_style_again(whole):
    """By the run, a checkpoint, and as the start of another run; timm, which knows no styles, refuses it."""
    images = torch.randn(2, 1, 16, 16)
    expected = load_adapted(whole.folder / "model").eval()(images)
    for name in ("", "checkpoints/best.pt"):
        trained = open_trained(str(whole.folder / name))
        assert sum(isinstance(m, AdaptedAttention) for m in trained.model.modules()) == 3
    assert torch.equal(open_trained(str(whole.folder)).model(images), expected)
    assert extraction_rank(open_trained(str(whole.folder)).model, images).layers == (0, 1, 2)
    assert assess(config_of_run(whole.folder)).metrics.top1 == whole.summary["top1"]
    again = configure(adapt_recipe("digits_adapt"), str(whole.folder / "model"))
    assert again.model.kwargs == SIZE
    tuned = override(recipe("digits_vit"), [f"model.weights={whole.folder}", *kwargs_of(SIZE)])
    from cbsa.train.initial import build_model

    assert torch.equal(build_model(tuned, 10).eval()(images), expected)
    with pytest.raises(TypeError, match="adapted"):
        timm.create_model(f"local-dir:{whole.folder / 'model'}", pretrained=True)


def test_layers_to_come_keep_the_mixing_of_an_original_that_was_adapted(whole):
    """A second adaptation, one layer after another: the others stay CBSA* until it is their turn."""
    config = adapt_config(whole.folder, "swap.style=linear", "swap.groups=3", "swap.over=0.9")
    task = Adaptation(config)
    model = task.build_model(10)
    for step, expected in ((0, ["cbsa", "cbsa", "linear"]), (9, ["linear"] * 3)):
        task.arrange(model, step, 10)
        assert [block.attn.style.name for block in model.blocks] == expected


def kwargs_of(size):
    return [f"model.kwargs.{name}={value}" for name, value in size.items()]


def test_what_is_stored_is_not_trusted(whole, tmp_path):
    config = json.loads((whole.folder / "model" / "config.json").read_text())
    (tmp_path / "model.safetensors").write_bytes((whole.folder / "model" / "model.safetensors").read_bytes())
    for layers, message in (
        ("cbsa", "must be a list of 3 styles, got 'cbsa'"),
        ([None], "must be a list of 3 styles, got 1 layers"),
        ([{"name": "cbsa", "impl": "reference"}, None, None], "the style of layer 0 is"),
        ([None, {"name": "soft"}, None], "layer 1: style='soft'"),
        ([None, None, {"name": "cbsa", "representatives": [0, 2]}], r"layer 2: representatives\[0\]"),
    ):
        config["model_args"]["adapted"] = layers
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(CheckpointError, match=message):
            load_adapted(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="is not the configuration of a model"):
        load_adapted(tmp_path)
    with pytest.raises(FileNotFoundError, match="expected the folder model/ of a run"):
        load_adapted(tmp_path / "nowhere")


# --- resuming, processes ---------------------------------------------------------------------------------


def test_killed_without_warning_and_started_again(vit, whole, tmp_path):
    """SIGKILL between two replacements; the same bits as without it."""
    folder, step = tmp_path / "run", 5
    code, output = finish(start(vit, folder, *PROGRESSIVE, KILL_AT=str(step)))
    assert code == -signal.SIGKILL, output
    assert max(losses(folder)) == step - 1  # it died before the entry
    train(adapt_config(vit, *PROGRESSIVE), folder)
    assert losses(folder) == losses(whole.folder)
    assert_same_bits(last_state(folder), last_state(whole.folder))
    assert_same_bits(*(load_file(f / "model" / "model.safetensors") for f in (folder, whole.folder)))
    assert read_report(folder) == read_report(whole.folder)


def test_two_processes_learn_as_one(vit, tmp_path):
    settings = ("distill.what=both", "swap.groups=3", "optimizer.lr=1e-4", "epochs=1")
    alone = train(adapt_config(vit, *settings), tmp_path / "alone")
    code, output = finish(start(vit, tmp_path / "two", *settings, launcher=torchrun(2)))
    assert code == 0, output
    assert losses(tmp_path / "two") == pytest.approx(losses(alone.folder), rel=2e-5)
    two, one = read_report(tmp_path / "two"), read_report(alone.folder)
    assert two["original"] == pytest.approx(one["original"])
    assert two["fine_tuned"]["loss"] == pytest.approx(one["fine_tuned"]["loss"], rel=1e-4)


def test_a_loss_that_is_not_finite_is_reported(vit, tmp_path):
    with pytest.raises(NonFiniteError, match="the loss is"):
        train(adapt_config(vit, "optimizer.lr=1e18", "optimizer.clip_grad=0"), tmp_path / "run")


# --- settings --------------------------------------------------------------------------------------------


def test_the_papers_recipe():
    config = adapt_recipe("vit_adapt")
    optimizer, schedule = config.optimizer, config.schedule
    assert (optimizer.name, optimizer.lr, optimizer.weight_decay) == ("adamw", 5e-5, 0.01)
    assert (config.batch_size, config.epochs, schedule.warmup_epochs) == (512, 50, 10)
    assert config.data.mean == config.data.std == (0.5, 0.5, 0.5)
    assert config.swap == SwapConfig()
    assert config.distill == DistillConfig()


@pytest.mark.parametrize("name", ADAPT_RECIPES)
def test_recipes_are_stored_and_read_as_what_they_are(name):
    config = adapt_recipe(name)
    assert config.recipe == name
    stored = json.loads(json.dumps(to_dict(config)))
    assert type(config_of(stored)) is AdaptConfig
    assert config_of(stored) == from_dict(AdaptConfig, stored)
    assert f"--recipe {name}" in ADAPT_RECIPES[name].__doc__ or name == "vit_adapt"


def test_models_are_found_by_their_names(vit):
    """Size and normalisation are the model's own; the data set is the run's, or else the recipe's."""
    paper = adapt_recipe("vit_adapt")
    deit = configure(paper, "deit_tiny_patch16_224.fb_in1k")
    assert deit.model.kwargs == {"pretrained": True}
    assert (deit.data.dataset, deit.data.img_size) == ("imagenet", 224)
    assert deit.data.mean == (0.485, 0.456, 0.406)
    augreg = configure(paper, "vit_small_patch16_384.augreg_in21k_ft_in1k")
    assert (augreg.data.img_size, augreg.data.mean, augreg.data.crop_pct) == (384, (0.5, 0.5, 0.5), 1.0)
    run = configure(paper, str(vit))
    assert (run.data.dataset, run.data.in_chans, run.augment.padding) == ("digits", 1, 2)
    assert (run.model.kwargs, run.epochs) == (SIZE, 50)
    checkpoint = configure(paper, str(vit / "checkpoints" / "best.pt"))
    assert checkpoint.model.weights.endswith("best.pt")
    given = configure(paper, "vit_tiny_patch16_224", str(vit / "model" / "model.safetensors"))
    assert given.model.weights == str(vit / "model" / "model.safetensors")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("swap.style=agnt",), r"swap\.style='agnt': expected one of .* did you mean 'agent'"),
        (("swap.groups=0",), r"swap\.groups must be at least 1, got 0"),
        (("swap.over=0",), r"swap\.over must be above 0 and at most 1, got 0\.0"),
        (("swap.style=softmax", "swap.groups=2"), r"swap\.groups=2: style 'softmax' replaces nothing"),
        (("swap.order=middle",), r"swap\.order='middle': expected one of 'last', 'first'"),
        (("swap.kernel=gelu",), "kernel='gelu'"),
        (("distill.what=tokens",), r"distill\.what='tokens': expected one of 'none', 'logits', 'features'"),
        (("distill.logits=-1",), r"distill\.logits must be at least 0, got -1"),
        (("distill.temperature=0",), r"distill\.temperature must be above 0"),
        (("distill.labels=0",), r"distill\.labels=0 with distill\.what='none': nothing is left"),
        (("distill.what=features", "model.checkpointing=true"), "tokens that model.checkpointing=true"),
    ],
)
def test_bad_settings_are_named(vit, settings, message):
    with pytest.raises(ValueError, match=message):
        adapt_config(vit, *settings)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        (("swap.layers=1,7",), ValueError, r"layers=\[7\]: the model has 3 layers, 0 to 2"),
        (("swap.groups=4",), ValueError, r"swap\.groups=4: 3 layers are replaced"),
        (("model.name=resnet10t", "model.kwargs={}"), CheckpointError, "holds weights of 'vit_tiny"),
        (("model.weights=none",), ValueError, r"there is no trained model to adapt: give model\.weights="),
    ],
)
def test_runs_that_cannot_be(vit, tmp_path, settings, error, message):
    with pytest.raises(error, match=message):
        train(adapt_config(vit, *settings), tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet18", "cannot adapt a ResNet; supported are"),
        ("vit_small_patch16_18x2_224", "layer 0: a ParallelThingsBlock has no attention"),
        ("vit_dlittle_patch16_reg1_gap_256.sbb_nadamuon_in1k", "attention of type DiffAttention"),
    ],
)
def test_models_that_cannot_be_adapted_are_refused_without_their_weights(name, message, tmp_path):
    """Nothing is downloaded: with the Hub out of reach it would be another error."""
    config = configure(adapt_recipe("digits_adapt"), name)
    with pytest.raises(TypeError, match=message):
        train(config, tmp_path / "run")


def test_a_new_classifier_has_nothing_to_teach(vit, tmp_path):
    """A data set of other classes: features may be learnt from, logits not, and the report says so."""
    from PIL import Image

    for split, count in (("train", 4), ("val", 2)):
        for label in "ab":
            folder = tmp_path / "data" / split / label
            folder.mkdir(parents=True)
            for index in range(count):
                Image.new("L", (16, 16), 40 * index).save(folder / f"{index}.png")
    data = ("data.dataset=folder", f"data.root={tmp_path / 'data'}", "batch_size=4", "data.workers=0")
    with pytest.raises(
        ValueError, match=r"the original has 10 classes and the data 2, .*distill\.what=features"
    ):
        train(adapt_config(vit, *data, "distill.what=both"), tmp_path / "run")
    train(adapt_config(vit, *data, "distill.what=features", "epochs=1"), tmp_path / "run2")
    assert read_report(tmp_path / "run2")["new_classifier"]
    assert "classifier is random" in (tmp_path / "run2" / "adaptation.md").read_text()


def test_a_folder_of_another_kind_of_run_is_refused(vit, whole):
    with pytest.raises(ValueError, match="is of another task than this command's: use cbsa train, eval"):
        train(adapt_config(vit), vit)
    with pytest.raises(ValueError, match="is of another task than this command's: use cbsa adapt, eval"):
        train(override(recipe("digits_vit"), kwargs_of(SIZE)), whole.folder)
