"""Recipes: functions that return the settings of a run.

Each says what it needs, how long it takes, what to expect and the command. *Measured* numbers are ours, with
the command and the log under ``benchmarks/``; *paper* marks the paper's.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from cbsa._checks import check_choice
from cbsa.data.config import AugmentConfig, DataConfig
from cbsa.paper import CLASSIFICATION
from cbsa.train.config import (
    CheckpointConfig,
    ModelConfig,
    OptimizerConfig,
    RuntimeConfig,
    ScheduleConfig,
    TrainConfig,
)

Recipe = Callable[[], TrainConfig]
RECIPES: dict[str, Recipe] = {}
"""The recipes by name; :func:`recipe` makes the settings of one."""


def recipe(name: str) -> TrainConfig:
    """The settings of a recipe."""
    return RECIPES[check_choice("recipe", name, RECIPES)]()


def _register(function: Recipe) -> Recipe:
    """Enter a recipe into the list, and into this module by its name."""
    RECIPES[function.__name__] = globals()[function.__name__] = function
    return function


# --- a laptop ------------------------------------------------------------------------------------------


@_register
def digits_cbt() -> TrainConfig:
    """A small CBT on the 8×8 digits of scikit-learn, on a CPU.

    Needs nothing but the installation: 1,438 training and 359 test images are embedded. Measured on 2 cores:
    98.9 % top-1 in 50 to 60 seconds.

    Command: ``cbsa train digits_cbt``
    """
    return TrainConfig(
        recipe="digits_cbt",
        model=ModelConfig("cbt_tiny_patch4_32", {"embed_dim": 64, "depth": 4, "num_heads": 4}),
        data=DataConfig(
            "digits",
            img_size=32,
            in_chans=1,
            mean=(0.5,),
            std=(0.5,),
            crop_pct=1.0,
            interpolation="bilinear",
            store="device",
            workers=0,
        ),
        augment=AugmentConfig(crop="pad", padding=4, flip=0.0),
        optimizer=OptimizerConfig("adamw", 2e-3, 0.05, (0.9, 0.999), clip_grad=1.0),
        schedule=ScheduleConfig("cosine", warmup_epochs=4),
        runtime=RuntimeConfig(device="cpu", precision="fp32"),
        epochs=40,
        batch_size=64,
        log_every=11,
    )


@_register
def digits_vit() -> TrainConfig:
    """A small ViT of timm on the same digits, to be adapted (``cbsa adapt``).

    Needs nothing but the installation. Time and accuracy have not been measured.

    Command: ``cbsa train digits_vit``
    """
    kwargs = {"img_size": 32, "patch_size": 4, "embed_dim": 64, "depth": 4, "num_heads": 4}
    optimizer = OptimizerConfig("adamw", 2e-3, 0.05, (0.9, 0.999), decay_all=False, clip_grad=1.0)
    model = ModelConfig("vit_tiny_patch16_224", kwargs)
    return replace(digits_cbt(), recipe="digits_vit", model=model, optimizer=optimizer)


@_register
def cifar10_vit() -> TrainConfig:
    """A ViT of timm of width 64 and six layers on CIFAR-10, to be adapted (``cbsa adapt``).

    For a CPU: 65 tokens an image. Needs CIFAR-10 (50,000 images of 32 px); ``data.dataset=parquet``
    reads it from parquet files. Measured on one core: 65.7 % top-1 (benchmarks/results/cpu/adapt).

    Command: ``cbsa train cifar10_vit data.root=/data``
    """
    vit, lab = digits_vit(), _LABORATORY["cifar10"]
    return replace(
        vit,
        recipe="cifar10_vit",
        model=replace(vit.model, kwargs={**vit.model.kwargs, "depth": 6}),
        data=replace(lab["data"], store="device", workers=0),
        augment=AugmentConfig(crop="pad", padding=lab["padding"]),
        schedule=ScheduleConfig("cosine", warmup_epochs=1),
        runtime=RuntimeConfig(device="cpu", compile=True),
        epochs=8,
        batch_size=128,
        eval_batch_size=500,
        eval_every=4,
        log_every=50,
        checkpoint=CheckpointConfig(every_steps=100, keep=1),
    )


# --- the paper -----------------------------------------------------------------------------------------


def _imagenet(name: str, size: str) -> TrainConfig:
    """The paper's pretraining: Lion 2e-4, decay 0.05 on all, batch 256, 150 epochs, 20 of warm-up."""
    return TrainConfig(
        recipe=name,
        model=ModelConfig(f"cbt_{size}_patch16_224"),
        data=DataConfig("imagenet", workers=16),
        optimizer=OptimizerConfig("lion", 2e-4, 0.05, (0.9, 0.99)),
        schedule=ScheduleConfig("reference", warmup_epochs=20),
        runtime=RuntimeConfig(compile=True),
        epochs=150,
        batch_size=256,
        label_smoothing=0.1,
    )


# size: the paper's top-1, by data set
PAPER_TOP1 = {size: CLASSIFICATION[f"CBT-{size[0].upper()}"] for size in ("tiny", "small", "base", "large")}


def _imagenet_recipe(size: str) -> Recipe:
    name = f"imagenet_cbt_{size}"

    def function() -> TrainConfig:
        return _imagenet(name, size)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""CBT-{size.capitalize()} on ImageNet-1k, as the paper trains it.

    Needs ImageNet-1k and GPUs; the authors do not say which nor how long it took, and we have not run it.
    Expected: {PAPER_TOP1[size][0]} % top-1 (paper).

    Command: ``torchrun --nproc-per-node 8 -m cbsa train {name} data.root=/data/imagenet``
    """
    return function


for _size in PAPER_TOP1:
    _register(_imagenet_recipe(_size))


# data set: epochs of CRATE, from whom the paper inherits its settings without naming a number of epochs
_FINETUNE_EPOCHS = {"cifar10": 200, "cifar100": 200, "flowers102": 400, "pets": 400}


def _finetune_recipe(place: int, dataset: str) -> Recipe:
    name = f"finetune_{dataset}"

    def function() -> TrainConfig:
        return TrainConfig(
            recipe=name,
            model=ModelConfig("cbt_tiny_patch16_224"),
            data=DataConfig(dataset, resize="squash"),
            augment=AugmentConfig(randaugment="rand-m14-n2"),
            optimizer=OptimizerConfig("adamw", 5e-5, 0.01, (0.9, 0.999)),
            schedule=ScheduleConfig("cosine"),
            runtime=RuntimeConfig(compile=True),
            epochs=_FINETUNE_EPOCHS[dataset],
            batch_size=64,
            label_smoothing=0.0,
        )

    expected = ", ".join(f"{size[0].upper()} {top1[place]}" for size, top1 in PAPER_TOP1.items())
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""A CBT pretrained on ImageNet-1k, fine-tuned on {dataset} at 224 px.

    Optimiser and batch are the paper's; epochs, RandAugment and the resizing of test images are CRATE's, from
    whose code the paper says it inherits them. Needs one GPU and pretrained weights (the paper's, or yours);
    not measured by us. Expected top-1 in %: {expected} (paper).

    Command: ``cbsa finetune {name} model.name=cbt_tiny_patch16_224 model.weights=FILE data.root=/data``
    """
    return function


for _place, _dataset in enumerate(_FINETUNE_EPOCHS, 1):
    _register(_finetune_recipe(_place, _dataset))


# --- a laboratory: one GPU, minutes --------------------------------------------------------------------


_LABORATORY: dict[str, dict[str, Any]] = {
    "tiny_imagenet": {
        "input": "patch4_64",
        "data": DataConfig("parquet", img_size=64, crop_pct=1.0, workers=16),
        "padding": 8,
        "epochs": 20,
        "what": "Tiny-ImageNet-200 (100,000 images of 64 px, parquet files as on the Hugging Face Hub)",
        "root": "/data/tiny-imagenet",
    },
    "cifar10": {
        "input": "patch4_32",
        "data": DataConfig(
            "cifar10",
            img_size=32,
            crop_pct=1.0,
            mean=(0.4914, 0.4822, 0.4465),
            std=(0.2470, 0.2435, 0.2616),
            workers=16,
        ),
        "padding": 4,
        "epochs": 50,
        "what": "CIFAR-10 (50,000 images of 32 px)",
        "root": "/data",
    },
}
_ATTENTIONS = {"cbt": "CBSA", "crate": "MSSA", "tost": "TSSA", "agent": "Agent attention"}
# What is known of a recipe's time and accuracy; nothing is known of those that are not here.
_ONCE = "% top-1 with an earlier script of the same settings, one seed; not measured with this code."
_KNOWN: dict[str, str] = {
    "tiny_imagenet_cbt_tiny": "Measured on one H200: 45.4 % top-1 in 1.5 minutes "
    "(benchmarks/results/tiny-imagenet/runs/cbt), 45.9 % with an earlier version "
    "(benchmarks/runs/tiny_imagenet_cbt_tiny).",
    "tiny_imagenet_cbt_small": "Measured on one H200: 7,600 images/s, so about 5 minutes; "
    "accuracy not measured.",
    "tiny_imagenet_crate_tiny": "Measured on one H200: 48.4 % top-1 in 1.3 minutes "
    "(benchmarks/results/tiny-imagenet/runs/crate).",
    "tiny_imagenet_agent_tiny": f"About 2 minutes on one H200; 46.9 {_ONCE}",
    "tiny_imagenet_tost_tiny": f"About 2 minutes on one H200; 39.8 {_ONCE}",
}


def _laboratory_recipe(dataset: str, family: str, size: str) -> Recipe:
    name, lab = f"{dataset}_{family}_{size}", _LABORATORY[dataset]

    def function() -> TrainConfig:
        return TrainConfig(
            recipe=name,
            model=ModelConfig(f"{family}_{size}_{lab['input']}"),
            data=lab["data"],
            augment=AugmentConfig(crop="pad", padding=lab["padding"]),
            optimizer=OptimizerConfig("lion", 8e-4 if size == "tiny" else 4e-4, 0.05, (0.9, 0.99)),
            schedule=ScheduleConfig("cosine", warmup_epochs=lab["epochs"] / 10),
            runtime=RuntimeConfig(compile=True),
            epochs=lab["epochs"],
            batch_size=512,
            eval_batch_size=1000,
        )

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""{_ATTENTIONS[family]} of width {size} on {lab["what"]}.

    For comparisons at laboratory scale: one recipe for all attentions. Needs one GPU.
    {_KNOWN.get(name, "Time and accuracy have not been measured.")}

    Command: ``cbsa train {name} data.root={lab["root"]}``
    """
    return function


for _dataset in _LABORATORY:
    for _family in _ATTENTIONS:
        for _size in ("tiny", "small"):
            _register(_laboratory_recipe(_dataset, _family, _size))


def _laboratory_vit(dataset: str, size: str) -> Recipe:
    name, lab = f"{dataset}_vit_{size}", _LABORATORY[dataset]

    def function() -> TrainConfig:
        kwargs = {"img_size": lab["data"].img_size, "patch_size": 4}
        return replace(
            RECIPES[f"{dataset}_cbt_{size}"](),
            recipe=name,
            model=ModelConfig(f"vit_{size}_patch16_224", kwargs),
            optimizer=OptimizerConfig("adamw", 1e-3, 0.05, (0.9, 0.999), decay_all=False, clip_grad=1.0),
        )

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""timm's ViT of width {size} on {lab["what"]}, to be adapted (``cbsa adapt``).

    Epochs, batch and augmentation are those of the other recipes of this data set; AdamW, as ViTs are trained
    with it. Needs one GPU. {_KNOWN.get(name, "Time and accuracy have not been measured.")}

    Command: ``cbsa train {name} data.root={lab["root"]}``
    """
    return function


for _size in ("tiny", "small"):
    _register(_laboratory_vit("tiny_imagenet", _size))


# --- a pocket: photographs on a CPU, minutes -----------------------------------------------------------


@_register
def cifar10_pocket() -> TrainConfig:
    """A small CBT on CIFAR-10 on a CPU, in the paper's proportions: the recipe of the studies «pocket».

    64 patches and 16 representatives, as many of these as a head has dimensions; four layers of width 64.
    Needs CIFAR-10 and no GPU. Measured in the study: benchmarks/results/pocket.

    Command: ``cbsa train cifar10_pocket data.root=/data``
    """
    return replace(
        RECIPES["cifar10_cbt_tiny"](),
        recipe="cifar10_pocket",
        model=ModelConfig("cbt_tiny_patch4_32", {"embed_dim": 64, "depth": 4, "num_heads": 4}),
        data=replace(_LABORATORY["cifar10"]["data"], store="device", workers=0),
        optimizer=OptimizerConfig("adamw", 2e-3, 0.05, (0.9, 0.999), clip_grad=1.0),
        schedule=ScheduleConfig("cosine", warmup_epochs=0.5),
        runtime=RuntimeConfig(device="cpu", compile=True),
        epochs=4,
        batch_size=128,
        eval_every=4,
        log_every=100,
    )
