"""Small models that learn the embedded digits on first use: what the analyses look at where none is given.

``cbt`` is the model of ``cbsa demo``; the others have its recipe, width and depth, and differ in one thing.
"""

from pathlib import Path

from cbsa._checks import check_choice
from cbsa.train import TrainConfig, override, recipe
from cbsa.train.trained import split_label

PREFIX = "digits"
FOLDER = Path("outputs/demo")
_DEPTH = 4

# name: what to call it, what it is, its settings
MODELS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "cbt": ("CBT (digits)", "CBSA and ISTA: the model of the demo", ()),
    "crate": ("CRATE (digits)", "MSSA instead of CBSA", ("model.name=crate_tiny_patch4_32",)),
    "crate_cbt": (
        "CRATE+CBT (digits)",
        "MSSA in the first half of the layers, CBSA in the second",
        (
            "model.name=crate_cbt_tiny_patch4_32",
            f"model.kwargs.attention={['mssa'] * (_DEPTH // 2) + ['cbsa'] * (_DEPTH // 2)}".replace("'", '"'),
        ),
    ),
    "vit": ("ViT (digits)", "MHSA and MLP, a black box", ("model.name=vit_conv_tiny_patch4_32",)),
    "learned": (
        "CBT, learned (digits)",
        "CBSA whose initial representatives are parameters",
        ('model.kwargs.attention_kwargs={"init": "learned"}',),
    ),
}


def is_digits(name: str) -> bool:
    """Whether a model is named as one of these: ``digits`` or ``digits:NAME``."""
    return name == PREFIX or name.startswith(f"{PREFIX}:")


def member(name: str) -> str:
    """The entry of :data:`MODELS` that ``digits`` or ``digits:NAME`` stands for."""
    return check_choice("model digits:NAME, NAME", name.partition(":")[2] or "cbt", MODELS)


def resolve(name: str) -> tuple[str, str]:
    """``[LABEL=]MODEL`` as its label, empty where there is none, and what to open.

    For ``digits:NAME`` that is the folder of its run, under the name it has here; all else stays as it is.
    """
    label, model = split_label(name)
    if not is_digits(model):
        return label, model
    entry = member(model)
    return label or MODELS[entry][0], str(folder(entry))


def settings(name: str) -> TrainConfig:
    """Settings under which a member of :data:`MODELS` is trained."""
    return override(recipe("digits_cbt"), list(MODELS[name][2]))


def folder(name: str) -> Path:
    """The folder of its run; that of the demo for ``cbt``."""
    return FOLDER / ("run" if name == "cbt" else name)


def is_trained(name: str) -> bool:
    """Whether its run has come to its end."""
    return (folder(name) / "model" / "model.safetensors").is_file()
