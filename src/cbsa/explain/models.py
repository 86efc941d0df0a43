"""The models of a page: opened by name, with the names of their classes."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import timm
import torch
from timm.data import ImageNetInfo, infer_imagenet_subset  # type: ignore[attr-defined]
from timm.layers import PatchEmbed  # type: ignore[attr-defined]
from timm.models.vision_transformer import VisionTransformer

from cbsa._checks import check_int
from cbsa.analysis import Anatomy
from cbsa.data import DataConfig
from cbsa.models import MODELS, SHIPPED, Transformer
from cbsa.models.shipped import shipped_name
from cbsa.train.initial import read_json
from cbsa.train.run_folder import read_summary
from cbsa.train.trained import Trained, build_trained, find_trained, open_trained, split_label

MOST_MODELS = 4  # side by side
EVERY_SHIPPED = "shipped"  # stands for the default model and its twins: weights of the same tag
# Families of models that ship, in the order in which they stand side by side.
_ORDER = ("cbt_", "crate_cbt_", "crate_", "tost_", "agent_", "vit_")


@dataclass(frozen=True)
class Subject:
    """A model to look into.

    Attributes:
        model: the model, one of ours or a ``VisionTransformer`` of timm, adapted or not.
        name: what to call it.
        architecture: its name in the registry.
        source: where it comes from, for the reader.
        data: how it takes images.
        trained: whether it has weights from a file; random ones are announced on the page.
        classes: names of its classes; numbers stand for them where there are none.
        run: whether it comes from a run, whose data set ``data`` then names.
        made_for: height and width in pixels that it was made for; its own if empty.
    """

    model: Any
    name: str
    architecture: str
    source: str
    data: DataConfig
    trained: bool
    classes: tuple[str, ...] = ()
    run: bool = False
    made_for: tuple[int, ...] = ()

    @property
    def patch_size(self) -> tuple[int, int]:
        """Height and width of its patches."""
        if isinstance(self.model, Transformer):
            return self.model.patch_size, self.model.patch_size
        height, width = self.model.patch_embed.patch_size
        return height, width

    @property
    def own_size(self) -> tuple[int, ...]:
        """Height and width of the images that it was made for."""
        ours = isinstance(self.model, Transformer)
        return self.made_for or tuple(self.model.img_size if ours else self.model.patch_embed.img_size)

    def label(self, index: int) -> str:
        """Name of a class."""
        return self.classes[index] if index < len(self.classes) else f"class {index}"

    def at(self, size: int | None) -> "Subject":
        """The same model on images of ``size`` pixels; its own size if None."""
        if size is None:
            return self
        patch = max(self.patch_size)
        if check_int("size", size) < patch:
            raise ValueError(f"size={size} is less than one patch of {self.name}: give at least {patch}")
        data = replace(self.data, img_size=size)
        if isinstance(self.model, Transformer):
            return replace(self, data=data)
        if any(size % side for side in self.patch_size) and not self.model.patch_embed.dynamic_img_pad:
            raise ValueError(
                f"size={size}: {self.name} takes whole patches alone, of {patch} px: give e.g. "
                f"{size // patch * patch}"
            )
        return replace(self, data=data, model=_resized(self.model, size), made_for=self.own_size)


def open_subject(name: str, weights: str | None = None, labels: Sequence[str] = ()) -> Subject:
    """Open a model for the explorer.

    Args:
        name: the folder of a run (``cbsa train``, ``cbsa adapt``), a folder with ``model.safetensors`` and
            ``config.json`` (also as ``local-dir:FOLDER``), the name of weights that ship (``cbsa weights``),
            or a name that is registered here or with timm.
        weights: with a registered name, the file of its weights; without, ours are random, and those of timm
            are downloaded.
        labels: names of the classes; by default those stored with the run or the weights.
    """
    folder = Path(name.removeprefix("local-dir:"))
    if folder.name == "model" and (folder.parent / "summary.json").is_file():
        folder = folder.parent  # the run knows more: its classes, and how it resized
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # for random weights: the same page every time
        downloaded = _is_of_timm(name) and weights is None
        trained = _download(name) if downloaded else _open(str(folder), weights)
    model: Any = trained.model
    if not isinstance(model, (Transformer, VisionTransformer)):
        raise TypeError(
            f"{name} is a {type(model).__name__}, for which the page has no place: take a model of the CBT, "
            "CRATE, ToST (tost_…, not tost_cab_…), Agent or ViT families, or a VisionTransformer of timm"
        )
    if isinstance(model, VisionTransformer) and type(model.patch_embed) is not PatchEmbed:
        raise TypeError(
            f"{name} takes its patches from a {type(model.patch_embed).__name__}, which the page cannot "
            "place on the image: take a ViT whose patches are those of the image"
        )
    try:
        titles = dict.fromkeys(layer.title for layer in Anatomy(model).layers)
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from error
    classes = tuple(labels) or (_classes_of_imagenet(model) if downloaded else _stored_classes(trained))
    if classes and len(classes) != model.num_classes:
        raise ValueError(
            f"{name} has {model.num_classes} classes, but there are {len(classes)} names for them"
        )
    adapted = isinstance(model, VisionTransformer) and set(titles) != {"MHSA"}
    subject = Subject(
        model,
        f"{trained.label}, {' + '.join(titles)}" if adapted else trained.label,
        trained.architecture,
        f"downloaded by timm: {name}" if downloaded else _source(trained),
        trained.data,
        downloaded or trained.weights is not None,
        classes,
        trained.run is not None,
    )
    return subject if isinstance(model, Transformer) else subject.at(trained.data.img_size)


def _is_of_timm(name: str) -> bool:
    """Whether a name is that of a model of timm, which is not one of ours."""
    architecture = name.partition(".")[0]
    return architecture not in MODELS and not Path(name).exists() and bool(timm.is_model(architecture))


def _open(name: str, weights: str | None) -> Trained:
    """A model by its folder or name; those of timm are known too."""
    if not _is_of_timm(name) and not Path(name).exists():
        return open_trained(name, weights)
    return build_trained(find_trained(name, weights, [*timm.list_models(), *timm.list_pretrained()]))


def _download(name: str) -> Trained:
    """A model of timm with the weights that timm has for it."""
    found = find_trained(name, None, [name])
    kwargs = {**found.config.model.kwargs, "pretrained": True}
    config = replace(found.config, model=replace(found.config.model, kwargs=kwargs))
    try:
        return build_trained(replace(found, config=config))
    except Exception as error:  # a download may fail in any way
        raise ValueError(
            f"{name}: timm could not have its weights ({error}); give them by --weights FILE, or a folder "
            "with model.safetensors and config.json as the model"
        ) from error


def _resized(model: VisionTransformer, size: int) -> VisionTransformer:
    """A ViT of timm that takes square images of a size: the same, or a copy whose positions are resampled."""
    if model.dynamic_img_size or tuple(model.patch_embed.img_size) == (size, size):  # type: ignore[arg-type]
        return model
    resized = copy.deepcopy(model)
    resized.set_input_size(img_size=(size, size))
    return resized


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
    named = [name for _, name in chosen if (name in MODELS or _is_of_timm(name)) and not Path(name).exists()]
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
    return shipped_name(trained.weights) or trained.weights.name


def _classes_of_imagenet(model: Any) -> tuple[str, ...]:
    """Names of the classes of a model of timm, where there are as many as in a part of ImageNet."""
    subset = infer_imagenet_subset(model)
    if subset is None:
        return ()
    names = ImageNetInfo(subset)
    return tuple(names.index_to_description(i) for i in range(model.num_classes))


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
