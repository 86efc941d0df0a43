"""Small runs that train a segmenter on scenes: a second or two on a CPU, through every part of the engine."""

import os
import subprocess
import sys

from cbsa.data import MaskAugmentConfig, MaskDataConfig
from cbsa.segmentation.windows import WindowConfig
from cbsa.train import OptimizerConfig, RuntimeConfig, override
from cbsa.train.segmentation.config import SegmentConfig, SegmenterConfig

STEPS_PER_EPOCH = 3  # 12 images
DECODERS = {
    "cbt": {"depth": 1, "num_heads": 2, "head_dim": 8, "representatives": [2, 2]},
    "depict": {"depth": 1, "num_heads": 2, "head_dim": 8},
    "mask_transformer": {"depth": 1, "num_heads": 2},
}

# `python -c PROGRAM ROOT FOLDER SETTING...`; KILL_AT kills the process after so many steps, the first time.
PROGRAM = """
import os, signal, sys
import torch
from pathlib import Path
from cbsa.train import train
from tests.segmentation.runs import tiny_config

torch.set_num_threads(1)
root, folder, settings = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
marker = folder.with_suffix(".killed")

def look(step, loss):
    if step == int(os.environ.get("KILL_AT", "0")) and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)

train(tiny_config(root, *settings), folder, on_look=look)
"""


def tiny_config(root, *settings, decoder="cbt"):
    config = SegmentConfig(
        recipe="scenes",
        model=SegmenterConfig(
            "cbt_tiny_patch4_32",
            {"embed_dim": 16, "depth": 1, "num_heads": 2},
            decoder=decoder,
            decoder_kwargs=DECODERS[decoder],
        ),
        data=MaskDataConfig("folder", str(root), crop=(16, 16), workers=0),
        augment=MaskAugmentConfig(scale=(0.75, 1.5)),
        windows=WindowConfig((16, 16), (8, 8)),
        optimizer=OptimizerConfig("adamw", 3e-3, 0.01, (0.9, 0.999)),
        runtime=RuntimeConfig(device="cpu", precision="fp32"),
        epochs=2,
        batch_size=4,
        eval_batch_size=4,
        log_every=1,
    )
    return override(config, settings)


def start(root, folder, *settings, launcher=(), **environment):
    """Start a run in a process of its own, or in several by torchrun."""
    if launcher:
        program = folder.with_suffix(".py")
        program.write_text(PROGRAM)
        command = [sys.executable, "-m", "torch.distributed.run", *launcher, str(program)]
    else:
        command = [sys.executable, "-c", PROGRAM]
    return subprocess.Popen(
        [*command, str(root), str(folder), *settings],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.getcwd(), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
