"""The model to adapt, as a user names it, and the settings that follow from it."""

from dataclasses import replace

import timm
import torch

from cbsa.adaptation import adapt
from cbsa.train.adaptation.config import AdaptConfig
from cbsa.train.initial import build_model
from cbsa.train.trained import find_trained

# How a model takes images, whatever the data set.
_TAKES = ("img_size", "in_chans", "mean", "std", "crop_pct", "interpolation")


def configure(config: AdaptConfig, model: str, weights: str | None = None) -> AdaptConfig:
    """Settings of a recipe for a model.

    Data and augmentation are those of the run that trained it, if it comes from one. For other models they
    are the recipe's, with size and normalisation of the images as the model's own configuration has them.

    Args:
        config: settings of a recipe.
        model: the folder of a run, a folder or file of weights with its ``config.json``, a run's checkpoint,
            or a name of timm's, whose weights are then downloaded.
        weights: with a name, a file or folder of weights instead.
    """
    found = find_trained(model, weights, [*timm.list_models(), *timm.list_pretrained()])
    original = found.config.model
    if original.weights is None:
        original = replace(original, kwargs={**original.kwargs, "pretrained": True})
    if found.has_data:
        return replace(config, model=original, data=found.config.data, augment=found.config.augment)
    takes = {name: getattr(found.config.data, name) for name in _TAKES}
    return replace(config, model=original, data=replace(config.data, **takes))


def check_original(config: AdaptConfig) -> None:
    """Refuse a model that cannot be adapted before its weights are downloaded: it is built without memory."""
    kwargs = {k: v for k, v in config.model.kwargs.items() if k not in ("pretrained", "checkpoint_path")}
    try:
        with torch.device("meta"):
            model = build_model(replace(config, model=replace(config.model, kwargs=kwargs)), num_classes=1)
    except RuntimeError:  # some of timm's models cannot be built so: they are checked when they are there
        return
    adapt(model, config.swap.style, layers=config.swap.layers)
