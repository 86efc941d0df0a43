"""A tiny ViT trained on digits, and runs that adapt it: a second or two on a CPU."""

from cbsa.train import override, recipe, train
from cbsa.train.adaptation.original import configure
from cbsa.train.adaptation.recipes import adapt_recipe
from tests.train.runs import launch

STEPS_PER_EPOCH = 5  # 1,438 images
COMMON = ("epochs=2", "batch_size=240", "eval_batch_size=128", "log_every=1")
SIZE = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 3, "num_heads": 2}
VIT = (*(f"model.kwargs.{k}={v}" for k, v in SIZE.items()), "data.img_size=16", "augment.padding=2")
SWAP = ("swap.representatives=2,2", "schedule.warmup_epochs=0", "optimizer.lr=3e-3")

# `python -c PROGRAM FOLDER VIT SETTING...`
PROGRAM = """
import sys
from tests.train.adapting import adapt_config
from tests.train.runs import train_alone

train_alone(adapt_config(*sys.argv[2:]), sys.argv[1])
"""


def train_vit(folder, *settings):
    """Train the original; returns its folder."""
    config = override(recipe("digits_vit"), [*COMMON, *VIT, "schedule.warmup_epochs=0", *settings])
    train(config, folder)
    return folder


def adapt_config(vit, *settings):
    return override(configure(adapt_recipe("digits_adapt"), str(vit)), [*COMMON, *SWAP, *settings])


def start(vit, folder, *settings, launcher=(), **environment):
    """Start a run in a process of its own, or in several by torchrun."""
    return launch(PROGRAM, (folder, vit, *settings), folder, launcher, **environment)
