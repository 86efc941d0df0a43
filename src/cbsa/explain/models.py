"""The models of a page: opened by name, with the names of their classes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from cbsa._checks import check_int
from cbsa.data import DataConfig
from cbsa.models import MODELS, SHIPPED, Transformer
from cbsa.train.initial import read_json
from cbsa.train.run_folder import read_summary
from cbsa.train.trained import Trained, open_trained, split_label

MOST_MODELS = 4  # side by side
EVERY_SHIPPED = "shipped"  # stands for the default model and its twins: weights of the same tag
# Families of models that ship, in the order in which they stand side by side.
_ORDER = ("cbt_", "crate_cbt_", "crate_", "tost_", "agent_", "vit_")


@dataclass(frozen=True)
class Subject:
    """A model to look into.

    Attributes:
        model: the model.
        name: what to call it.
        architecture: its name in the registry.
        source: where it comes from, for the reader.
        data: how it takes images.
        trained: whether it has weights from a file; random ones are announced on the page.
        classes: names of its classes; numbers stand for them where there are none.
        run: whether it comes from a run, whose data set ``data`` then names.
    """

    model: Transformer
    name: str
    architecture: str
    source: str
    data: DataConfig
    trained: bool
    classes: tuple[str, ...] = ()
    run: bool = False

    def label(self, index: int) -> str:
        """Name of a class."""
        return self.classes[index] if index < len(self.classes) else f"class {index}"

    def at(self, size: int | None) -> "Subject":
        """The same model on images of ``size`` pixels; its own size if None."""
        if size is None:
            return self
        if check_int("size", size) < self.model.patch_size:
            raise ValueError(
                f"size={size} is less than one patch of {self.name}: give at least {self.model.patch_size}"
            )
        return replace(self, data=replace(self.data, img_size=size))


def open_subject(name: str, weights: str | None = None, labels: Sequence[str] = ()) -> Subject:
    """Open a model for the explorer.

    Args:
        name: the folder of a run (``cbsa train``), a folder with ``model.safetensors`` and ``config.json``
            (also as ``local-dir:FOLDER``), the name of weights that ship (``cbsa weights``), or a registered
            name.
        weights: with a registered name, the file of its weights; without, they are random.
        labels: names of the classes; by default those stored with the run or the weights.
    """
    folder = Path(name.removeprefix("local-dir:"))
    if folder.name == "model" and (folder.parent / "summary.json").is_file():
        folder = folder.parent  # the run knows more: its classes, and how it resized
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # for random weights: the same page every time
        trained = open_trained(str(folder), weights)
    if not isinstance(trained.model, Transformer):
        raise TypeError(
            f"{name} is a {type(trained.model).__name__}, for which the page has no place: "
            "take a model of the CBT, CRATE, ToST (tost_…, not tost_cab_…), Agent or ViT families"
        )
    if trained.model.num_prefix_tokens != 1:
        raise ValueError(
            f"{name} has {trained.model.num_prefix_tokens - 1} registers, for which the page has no place: "
            "take a model without reg_tokens"
        )
    classes = tuple(labels) or _stored_classes(trained)
    if classes and len(classes) != trained.model.num_classes:
        raise ValueError(
            f"{name} has {trained.model.num_classes} classes, but there are {len(classes)} names for them"
        )
    return Subject(
        trained.model,
        trained.label,
        trained.architecture,
        _source(trained),
        trained.data,
        trained.weights is not None,
        classes,
        trained.run is not None,
    )


def open_subjects(names: Sequence[str], weights: Sequence[Path], labels: Path | None) -> list[Subject]:
    """Open the models of a page; the CBT that ships if none is named.

    Args:
        names: see :func:`open_subject`; ``LABEL=NAME`` says what to call a model, and ``shipped`` stands for
            the CBT that ships and its twins.
        weights: files for those that are registered names, in their order; none for random ones.
        labels: text file with a class name a line, for all models.
    """
    names = [one for name in names for one in (shipped_models() if name == EVERY_SHIPPED else [name])]
    chosen = [split_label(name) for name in names or shipped_models()[:1]]
    if not chosen:
        raise ValueError(
            "no model given, and this copy of cbsa has no weights with it: give --model FOLDER_OR_NAME"
        )
    named = [name for _, name in chosen if name in MODELS and not Path(name).exists()]
    if weights and len(weights) != len(named):
        raise ValueError(
            f"--weights is given {len(weights)} times, but {len(named)} of the models are registered names "
            "(folders have weights of their own): give one for each of these"
        )
    files = iter(map(str, weights))
    classes = _read_labels(labels) if labels is not None else ()
    subjects = []
    for label, name in chosen:
        subject = open_subject(name, next(files, None) if name in named else None, classes)
        subjects.append(replace(subject, name=label or subject.name))
    return subjects


def _read_labels(path: Path) -> tuple[str, ...]:
    try:
        return tuple(line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as a text file with a class a line ({error})") from error


def shipped_models() -> list[str]:
    """Names of weights that ship: those of a CBT, then of its twins, which learnt the same data."""

    def place(name: str) -> int:
        return next((i for i, family in enumerate(_ORDER) if name.startswith(family)), len(_ORDER))

    names = sorted(SHIPPED, key=place)
    return [name for name in names if SHIPPED[name].tag == SHIPPED[names[0]].tag][:MOST_MODELS]


def _source(trained: Trained) -> str:
    """Where a model comes from, for the reader."""
    if trained.run is not None:
        return trained.run.name
    if trained.weights is None:
        return "random weights, not trained"
    shipped = next((entry for entry in SHIPPED.values() if entry.file == trained.weights), None)
    return trained.weights.name if shipped is None else shipped.name


def _stored_classes(trained: Trained) -> tuple[str, ...]:
    """Classes named in the summary of a run, or beside the weights."""
    if trained.run is not None:
        file, key = trained.run / "summary.json", "classes"
        stored = read_summary(trained.run)
    elif trained.weights is not None:
        file, key = trained.weights.with_name("config.json"), "label_names"
        stored = read_json(file)
    else:
        return ()
    classes = (stored or {}).get(key, [])
    if not isinstance(classes, list):
        raise ValueError(f"{file}: {key} must be a list, got {type(classes).__name__}")
    return tuple(str(name) for name in classes)
