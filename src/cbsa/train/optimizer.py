"""The optimiser of a model, its parameter groups and its learning rate."""

from typing import Any

from timm.optim import (  # type: ignore[attr-defined]  # timm does not list what it re-exports
    create_optimizer_v2,
    param_groups_layer_decay,
    param_groups_weight_decay,
)
from torch import nn
from torch.optim import Optimizer

from cbsa.train.config import OptimizerConfig


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> Optimizer:
    """Lion or AdamW of timm, or SGD with momentum.

    ``decay_all`` decays every parameter, as the reference does. Otherwise vectors (biases, norms) and the
    model's ``no_weight_decay`` are exempt. ``layer_decay`` below 1 scales the learning rate by depth, after
    the model's ``group_matcher``.
    """
    exempt: set[str] = set() if config.decay_all else getattr(model, "no_weight_decay", set)()
    options: dict[str, Any] = {
        "weight_decay": config.weight_decay,
        "no_weight_decay_list": exempt,
        "weight_decay_exclude_1d": not config.decay_all,
    }
    if config.layer_decay < 1:
        groups = param_groups_layer_decay(model, layer_decay=config.layer_decay, **options)
    else:
        groups = param_groups_weight_decay(model, **options)
    groups = [group for group in groups if group["params"]]
    if config.name == "sgd":  # timm's name for it; its "sgd" is Nesterov's
        return create_optimizer_v2(groups, opt="momentum", lr=config.lr, momentum=config.momentum)
    return create_optimizer_v2(groups, opt=config.name, lr=config.lr, betas=config.betas)


def set_learning_rate(optimizer: Optimizer, lr: float) -> None:
    """Set the learning rate of all groups, each scaled as its depth wants it."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("lr_scale", 1.0)
