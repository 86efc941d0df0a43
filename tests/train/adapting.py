"""A tiny ViT trained on digits, and runs that adapt it: a second or two on a CPU."""

import os
import subprocess
import sys

from cbsa.train import override, recipe, train
from cbsa.train.adaptation.original import configure
from cbsa.train.adaptation.recipes import adapt_recipe

STEPS_PER_EPOCH = 5  # 1,438 images
COMMON = ("epochs=2", "batch_size=240", "eval_batch_size=128", "log_every=1")
SIZE = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 3, "num_heads": 2}
VIT = (*(f"model.kwargs.{k}={v}" for k, v in SIZE.items()), "data.img_size=16", "augment.padding=2")
SWAP = ("swap.representatives=2,2", "schedule.warmup_epochs=0", "optimizer.lr=3e-3")

# `python -c PROGRAM VIT FOLDER SETTING...`; KILL_AT kills the process after so many steps, the first time.
PROGRAM = """
import os, signal, sys
import torch
from pathlib import Path
from cbsa.train import train
from tests.train.adapting import adapt_config

torch.set_num_threads(1)
folder = Path(sys.argv[2])
marker = folder.with_suffix(".killed")

def look(step, loss):
    if step == int(os.environ.get("KILL_AT", "0")) and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)

train(adapt_config(sys.argv[1], *sys.argv[3:]), folder, on_look=look)
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
    if launcher:
        program = folder.with_suffix(".py")
        program.write_text(PROGRAM)
        command = [sys.executable, "-m", "torch.distributed.run", *launcher, str(program)]
    else:
        command = [sys.executable, "-c", PROGRAM]
    return subprocess.Popen(
        [*command, str(vit), str(folder), *settings],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.getcwd(), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
