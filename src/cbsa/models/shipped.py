"""The trained weights that ship with the package: folders of ``cbsa/weights``, each a tag of a model.

A folder is called ``MODEL.TAG``, as timm names weights, and holds what :func:`cbsa.models.save_model` writes:
``model.safetensors``, ``config.json`` and ``README.md``, the model card. ``cbsa weights add`` makes one of a
run.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "weights"


@dataclass(frozen=True)
class Shipped:
    """Weights of a model, and what is known of them.

    Attributes:
        name: ``MODEL.TAG``.
        folder: where they lie.
        config: content of their ``config.json``; ``"training"`` tells where they come from.
    """

    name: str
    folder: Path
    config: dict[str, Any]

    @property
    def architecture(self) -> str:
        """Name of the model in the registry."""
        return self.name.partition(".")[0]

    @property
    def tag(self) -> str:
        """What distinguishes them from other weights of the model: the data set, as a rule."""
        return self.name.partition(".")[2]

    @property
    def file(self) -> Path:
        """The weights."""
        return self.folder / "model.safetensors"

    @property
    def card(self) -> Path:
        """The model card."""
        return self.folder / "README.md"

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of the model beyond its name: no tensor shows a layout of representatives."""
        return dict(self.config["model_args"])

    @property
    def training(self) -> dict[str, Any]:
        """Data, command, seed, accuracy and versions of the run they come from."""
        return dict(self.config["training"])

    def pretrained_cfg(self) -> dict[str, Any]:
        """The weights as timm's registry knows them."""
        given = {k: tuple(v) if isinstance(v, list) else v for k, v in self.config["pretrained_cfg"].items()}
        return {**given, "file": str(self.file), "label_names": tuple(self.config["label_names"])}


def read_shipped(folder: Path = FOLDER) -> dict[str, Shipped]:
    """All weights of a folder by their names, in alphabetical order."""
    files = sorted(folder.glob("*.*/config.json"))
    return {f.parent.name: Shipped(f.parent.name, f.parent, json.loads(f.read_text("utf-8"))) for f in files}


SHIPPED = read_shipped()
"""Weights that ship with the package: name with tag -> entry."""


def shipped_or_path(given: str | Path) -> Path:
    """The folder of weights that ship with the package, if they have this name, or else the path itself."""
    path = Path(given)
    return SHIPPED[str(given)].folder if str(given) in SHIPPED and not path.exists() else path


def shipped_name(weights: Path) -> str | None:
    """Name of the entry whose file these weights are; None if they do not ship."""
    return next((entry.name for entry in SHIPPED.values() if entry.file == weights), None)
