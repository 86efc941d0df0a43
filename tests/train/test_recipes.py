"""Each recipe is a valid run of a model that exists, says how to start it, and has the paper's numbers."""

import inspect
import re
import shlex

import pytest
import timm
import torch
from typer.testing import CliRunner

from cbsa.cli import app
from cbsa.models import MODELS
from cbsa.train import RECIPES, TrainConfig, recipe
from cbsa.train.initial import build_model

SIZES = ("tiny", "small", "base", "large")
FINETUNED = {"cifar10": 10, "cifar100": 100, "flowers102": 102, "pets": 37}
PAPER_TOP1 = {"tiny": 63.2, "small": 71.4, "base": 73.4, "large": 74.4}
REQUIRED = {
    *(f"imagenet_cbt_{size}" for size in SIZES),
    *(f"finetune_{dataset}" for dataset in FINETUNED),
    *(
        f"{dataset}_{family}_{size}"
        for dataset in ("tiny_imagenet", "cifar10")
        for family in ("cbt", "crate", "tost", "agent")
        for size in ("tiny", "small")
    ),
    "digits_cbt",
    *("digits_vit", "cifar10_vit", "tiny_imagenet_vit_tiny", "tiny_imagenet_vit_small"),
}


def test_the_required_recipes_are_there():
    assert set(RECIPES) >= REQUIRED
    assert len(REQUIRED) == 29


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_a_valid_run(name):
    config = recipe(name)
    assert isinstance(config, TrainConfig)
    assert config.recipe == name
    assert config == recipe(name)
    assert config.model.name in MODELS or "_vit" in name
    assert config.schedule.warmup_epochs < config.epochs
    assert config.data.dataset == "digits" or config.data.root is None  # nobody's paths


@pytest.mark.parametrize("name", RECIPES)
def test_the_model_of_a_recipe_takes_its_images(name):
    config = recipe(name)
    with torch.device("meta"):
        model = build_model(config, 7)
        images = torch.empty(2, config.data.in_chans, config.data.img_size, config.data.img_size)
        assert model(images).shape == (2, 7)
    takes = model.img_size if config.model.name in MODELS else model.patch_embed.img_size
    assert takes == (config.data.img_size,) * 2


def command_of(name):
    """The words of the command in a recipe's description."""
    commands = re.findall(r"Command: ``(.+)``", inspect.getdoc(RECIPES[name]))
    assert len(commands) == 1
    return shlex.split(commands[0])


@pytest.mark.parametrize("name", RECIPES)
def test_the_command_of_a_recipe_works(name):
    """Taken from its description, it is understood by the command line, and is its own."""
    words = command_of(name)
    verb, own, *settings = words[words.index("cbsa") + 1 :]
    assert own == name
    assert verb == ("finetune" if name.startswith("finetune_") else "train")
    result = CliRunner().invoke(app, [verb, own, *settings, "--show"])
    assert result.exit_code == 0, result.output
    assert f'"recipe": "{name}"' in result.output
    given = [s for s in settings if s.startswith("data.root=")]
    assert bool(given) == (recipe(name).data.dataset != "digits")
    for setting in given:
        assert f'"root": "{setting.partition("=")[2]}"' in result.output


@pytest.mark.parametrize("name", RECIPES)
def test_a_description_says_what_it_needs_and_what_to_expect(name):
    text = inspect.getdoc(RECIPES[name])
    assert text.splitlines()[0].endswith(".")
    assert "Needs" in text or "needs" in text
    if name != "digits_cbt":
        assert re.search(r"measured|we have not run it|\(paper\)", text, re.IGNORECASE)


@pytest.mark.parametrize("size", SIZES)
def test_pretraining_is_the_papers(size):
    config = recipe(f"imagenet_cbt_{size}")
    optimizer = config.optimizer
    assert (optimizer.name, optimizer.lr, optimizer.weight_decay) == ("lion", 2e-4, 0.05)
    assert optimizer.decay_all
    assert optimizer.clip_grad == 0
    assert optimizer.layer_decay == 1
    assert (config.batch_size, config.accumulate, config.epochs) == (256, 1, 150)
    assert (config.schedule.name, config.schedule.warmup_epochs) == ("reference", 20)
    assert config.label_smoothing == 0.1
    assert config.model.name == f"cbt_{size}_patch16_224"
    assert config.data.dataset == "imagenet"
    assert (config.data.img_size, config.data.crop_pct) == (224, 0.875)
    augment = config.augment
    assert (augment.crop, augment.flip, augment.scale) == ("resized", 0.5, (0.08, 1.0))
    assert not any((augment.randaugment, augment.erase, augment.mixup, augment.cutmix, config.ema))
    assert f"{PAPER_TOP1[size]} % top-1 (paper)" in inspect.getdoc(RECIPES[f"imagenet_cbt_{size}"])


@pytest.mark.parametrize("dataset", FINETUNED)
def test_fine_tuning_is_the_papers(dataset):
    config = recipe(f"finetune_{dataset}")
    assert config.data.dataset == dataset
    assert config.data.img_size == 224
    optimizer = config.optimizer
    assert (optimizer.name, optimizer.lr, optimizer.weight_decay) == ("adamw", 5e-5, 0.01)
    assert config.batch_size == 64


def test_fine_tuning_quotes_the_papers_table():
    quoted = {
        "cifar10": "T 94.8, S 96.3, B 96.7, L 97.3",
        "cifar100": "T 76.5, S 80.4, B 82.0, L 83.4",
        "flowers102": "T 88.4, S 91.7, B 93.6, L 93.9",
        "pets": "T 86.8, S 91.6, B 92.6, L 92.9",
    }
    for dataset, numbers in quoted.items():
        assert numbers in inspect.getdoc(RECIPES[f"finetune_{dataset}"])


@pytest.mark.parametrize("dataset", ["tiny_imagenet", "cifar10"])
@pytest.mark.parametrize("size", ["tiny", "small"])
def test_the_laboratory_compares_like_with_like(dataset, size):
    """Recipes of one data set and size differ in the attention alone."""
    names = [f"{dataset}_{family}_{size}" for family in ("cbt", "crate", "tost", "agent")]
    attentions = set()
    for name in names:
        config = recipe(name)
        entry = dict(MODELS[config.model.name][0])
        attentions.add(entry.pop("attention"))
        first = recipe(names[0])
        common = {k: v for k, v in vars(config).items() if k not in ("recipe", "model")}
        assert common == {k: v for k, v in vars(first).items() if k not in ("recipe", "model")}
        reference = dict(MODELS[first.model.name][0])
        reference.pop("attention")
        assert entry == reference
    assert attentions == {"cbsa", "mssa", "tssa", "agent"}


def test_an_unknown_recipe_is_named_with_the_nearest():
    with pytest.raises(ValueError, match=r"recipe='digit_cbt': .*did you mean 'digits_cbt'"):
        recipe("digit_cbt")


def test_the_tiny_model_of_the_first_recipe_classifies():
    config = recipe("digits_cbt")
    model = build_model(config, 10).eval()
    assert sum(p.numel() for p in model.parameters()) < 200_000
    assert model(torch.randn(2, 1, 32, 32)).shape == (2, 10)
    assert timm.is_model(config.model.name)


def test_recipes_are_functions_of_their_module():
    from cbsa.train import recipes

    for name, function in RECIPES.items():
        assert getattr(recipes, name) is function
        assert function.__name__ == name
