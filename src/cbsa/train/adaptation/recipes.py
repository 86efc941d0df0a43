"""Recipes: functions that return the settings of a run that adapts a ViT.

Model, data and augmentation are those of the run that trained the original where there is one; see
:func:`cbsa.train.adaptation.original.configure`.
"""

from collections.abc import Callable
from dataclasses import replace

from cbsa._checks import check_choice
from cbsa.data.config import DataConfig
from cbsa.train.adaptation.config import AdaptConfig, SwapConfig
from cbsa.train.config import CheckpointConfig, ModelConfig, OptimizerConfig, RuntimeConfig, ScheduleConfig

Recipe = Callable[[], AdaptConfig]
ADAPT_RECIPES: dict[str, Recipe] = {}


def adapt_recipe(name: str) -> AdaptConfig:
    """The settings of a recipe."""
    return ADAPT_RECIPES[check_choice("recipe", name, ADAPT_RECIPES)]()


def _register(function: Recipe) -> Recipe:
    ADAPT_RECIPES[function.__name__] = function
    return function


@_register
def vit_adapt() -> AdaptConfig:
    """A ViT pretrained on ImageNet-21k, adapted on ImageNet-1k as the paper does it (figure vit-adapt).

    AdamW 5e-5, decay 0.01, batch 512, 50 epochs, 10 of them warm-up; crop, flip and label smoothing are those
    of the paper's pretraining, as it names none for this. Needs ImageNet-1k, GPUs, and the ViT's weights
    (timm downloads them). The paper draws the accuracies and gives no number; we have not run it.

    Command: ``cbsa adapt --model vit_tiny_patch16_224.augreg_in21k --style cbsa --data /data/imagenet``
    """
    return AdaptConfig(
        recipe="vit_adapt",
        model=ModelConfig("vit_tiny_patch16_224.augreg_in21k", {"pretrained": True}),
        data=DataConfig("imagenet", mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5), workers=16),
        runtime=RuntimeConfig(compile=True),
    )


@_register
def short_adapt() -> AdaptConfig:
    """A few epochs for a ViT that was trained from scratch on a small data set, on one GPU.

    The paper's rate is for weights of a long pretraining; this is ten times it, with half an epoch of
    warm-up. Data and augmentation are the run's. Time and accuracy have not been measured.

    Command: ``cbsa adapt --recipe short_adapt --model runs/vit --style cbsa --distill both``
    """
    return AdaptConfig(
        recipe="short_adapt",
        optimizer=OptimizerConfig("adamw", 5e-4, 0.01, (0.9, 0.999), clip_grad=1.0),
        schedule=ScheduleConfig("cosine", warmup_epochs=0.5),
        runtime=RuntimeConfig(compile=True),
        epochs=5,
        eval_batch_size=1000,
    )


@_register
def digits_adapt() -> AdaptConfig:
    """A small ViT that reads digits, adapted on a CPU in seconds.

    For a run of ``cbsa train digits_vit``. Nothing but the installation is needed.

    Command: ``cbsa adapt --recipe digits_adapt --model outputs/train/digits_vit-seed0 --style cbsa``
    """
    return AdaptConfig(
        recipe="digits_adapt",
        swap=SwapConfig(representatives=(4, 4)),  # of 8×8 patches
        optimizer=OptimizerConfig("adamw", 1e-3, 0.01, (0.9, 0.999), clip_grad=1.0),
        schedule=ScheduleConfig("cosine", warmup_epochs=1),
        runtime=RuntimeConfig(device="cpu", precision="fp32"),
        epochs=10,
        batch_size=64,
        log_every=11,
    )


@_register
def cifar10_adapt() -> AdaptConfig:
    """A small ViT that was trained on CIFAR-10, adapted on a CPU in minutes.

    For a run of ``cbsa train cifar10_vit``: 4×4 representatives of 8×8 patches are the paper's m = d/H.
    Measured on one core: 62.6 (CBSA*) to 66.1 % top-1 (linear), the original 65.7 %
    (benchmarks/results/cpu/adapt).

    Command: ``cbsa adapt --recipe cifar10_adapt --model outputs/train/cifar10_vit-seed0 --style cbsa``
    """
    return replace(
        digits_adapt(),
        recipe="cifar10_adapt",
        schedule=ScheduleConfig("cosine", warmup_epochs=0.5),
        runtime=RuntimeConfig(device="cpu", compile=True),
        epochs=2,
        batch_size=128,
        eval_batch_size=500,
        eval_every=2,
        log_every=50,
        checkpoint=CheckpointConfig(every_steps=100, keep=1),
    )
