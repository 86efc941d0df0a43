"""Small runs that train a segmenter on scenes: a second or two on a CPU, through every part of the engine."""

from cbsa.data import MaskAugmentConfig, MaskDataConfig
from cbsa.segmentation.windows import WindowConfig
from cbsa.train import OptimizerConfig, RuntimeConfig, override
from cbsa.train.segmentation.config import SegmentConfig, SegmenterConfig
from tests.train.runs import launch

STEPS_PER_EPOCH = 3  # 12 images
DECODERS = {
    "cbt": {"depth": 1, "num_heads": 2, "head_dim": 8, "representatives": [2, 2]},
    "depict": {"depth": 1, "num_heads": 2, "head_dim": 8},
    "mask_transformer": {"depth": 1, "num_heads": 2},
}

# `python -c PROGRAM FOLDER ROOT SETTING...`
PROGRAM = """
import sys
from tests.segmentation.runs import tiny_config
from tests.train.runs import train_alone

train_alone(tiny_config(*sys.argv[2:]), sys.argv[1])
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
    return launch(PROGRAM, (folder, root, *settings), folder, launcher, **environment)
