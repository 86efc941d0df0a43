"""A manifest of the digits, small enough to be worked through in seconds."""

MANIFEST = """
title = "Digits"
recipe = "digits_cbt"
classes = 10
speed = true
settings = [
    "model.kwargs.embed_dim=16", "model.kwargs.depth=1", "model.kwargs.num_heads=2", "data.img_size=16",
    "augment.padding=2", "epochs=2", "batch_size=240", "schedule.warmup_epochs=0",
]

[tuning]
rates = [1e-3, 4e-3]
settings = ["data.holdout=0.2", "epochs=1"]

[[entries]]
name = "cbsa"
label = "CBSA-T"
seeds = [0, 1]

[[entries]]
name = "mssa"
model = "crate_tiny_patch4_32"
seeds = [0, 1]
tuned_like = "cbsa"
rate_factor = 0.5
"""


def write_manifest(folder, text=MANIFEST):
    path = folder / "small.toml"
    path.write_text(text)
    return path
