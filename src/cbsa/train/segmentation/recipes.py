"""Recipes: functions that return the settings of a run that trains a segmenter.

Each says what it needs, what to expect and the command. *Authors* marks the authors' numbers; *Segmenter's*
settings are those of its code (rstrudel/segmenter, ``segm/config.yml``).
"""

from collections.abc import Callable
from typing import Any

from cbsa._checks import check_choice
from cbsa.data.mask_config import MaskAugmentConfig, MaskDataConfig
from cbsa.segmentation.windows import WindowConfig
from cbsa.train.config import OptimizerConfig, RuntimeConfig, ScheduleConfig
from cbsa.train.segmentation.config import SegmentConfig, SegmenterConfig

Recipe = Callable[[], SegmentConfig]
SEGMENT_RECIPES: dict[str, Recipe] = {}
DECODER_OF = {"cbt": "cbt", "depict": "depict", "segmenter": "mask_transformer"}
_TITLES = {"cbt": "CBT", "depict": "DEPICT", "segmenter": "Segmenter (mask transformer)"}


def segment_recipe(name: str) -> SegmentConfig:
    """The settings of a recipe."""
    return SEGMENT_RECIPES[check_choice("recipe", name, SEGMENT_RECIPES)]()


def _register(name: str, function: Recipe, description: str) -> None:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = description
    SEGMENT_RECIPES[name] = function


# --- ImageNet's ViTs: the paper, and what Segmenter was trained on ------------------------------------------

# size: mIoU on ADE20K of the CBT decoder (authors)
AUTHORS_MIOU = {"tiny": 39.1, "small": 45.8, "base": 49.3, "large": 53.3}
# Segmenter's settings for Pascal-Context; VOC 2012, for which it has none, takes them too.
_SEGMENTER_PASCAL: dict[str, Any] = {
    "short_side": 520,
    "crop": 480,
    "stride": 320,
    "lr": 1e-3,
    "epochs": 256,
    "batch_size": 16,
    "eval_every": 16,
}
_PRETRAINED: dict[str, dict[str, Any]] = {
    "ade20k": {
        "short_side": 512,
        "crop": 512,
        "stride": 480,
        "lr": 1e-3,
        "epochs": 64,
        "batch_size": 8,
        "eval_every": 4,
        "what": "ADE20K, as the reference trains it",
        "name": "ADE20K",
        "root": "/data/ADEChallengeData2016",
    },
    "cityscapes": {
        "short_side": 1024,
        "crop": 768,
        "stride": 512,
        "lr": 1e-2,
        "epochs": 216,
        "batch_size": 8,
        "eval_every": 12,
        "what": "Cityscapes (2,975 images, 19 classes), with Segmenter's settings",
        "name": "Cityscapes with fine annotations",
        "root": "/data/cityscapes",
    },
    "pascal_context": {
        **_SEGMENTER_PASCAL,
        "what": "Pascal-Context (4,996 images, 59 classes), with Segmenter's settings",
        "name": "Pascal-Context with masks converted as docs/segmentation_training.md says",
        "root": "/data/VOCdevkit/VOC2010",
    },
    "voc": {
        **_SEGMENTER_PASCAL,
        "what": "PASCAL VOC 2012 (1,464 images, 21 classes), with Segmenter's settings for Pascal-Context",
        "name": "VOC2012",
        "root": "/data/VOCdevkit/VOC2012",
    },
}


def _pretrained(name: str, dataset: str, decoder: str, size: str) -> SegmentConfig:
    """SGD, momentum 0.9, no decay, poly 0.9; a large model has crops of 640 on ADE20K."""
    given = _PRETRAINED[dataset]
    more = 128 if (dataset, size) == ("ade20k", "large") else 0
    side, stride = given["crop"] + more, given["stride"] + more
    return SegmentConfig(
        recipe=name,
        model=SegmenterConfig(f"vit_{size}_patch16_384", encoder_weights="timm", decoder=DECODER_OF[decoder]),
        data=MaskDataConfig(dataset, short_side=given["short_side"] + more, crop=(side, side), workers=16),
        windows=WindowConfig((side, side), (stride, stride)),
        optimizer=OptimizerConfig("sgd", given["lr"], 0.0),
        schedule=ScheduleConfig("poly"),
        runtime=RuntimeConfig(compile=True),
        epochs=given["epochs"],
        batch_size=given["batch_size"],
        eval_every=given["eval_every"],
    )


def _pretrained_recipe(dataset: str, decoder: str, size: str) -> None:
    name, given = f"{dataset}_{decoder}_{size}", _PRETRAINED[dataset]
    expected = "The authors give no number for it. "
    if dataset == "voc":
        expected = "Neither the authors nor Segmenter train on it: the settings are a guess. "
    if dataset == "ade20k":
        expected = f"Expected: {AUTHORS_MIOU[size]} % mIoU (authors). " if decoder == "cbt" else ""
    _register(
        name,
        lambda: _pretrained(name, dataset, decoder, size),
        f"""{_TITLES[decoder]} decoder on ViT-{size.capitalize()} on {given["what"]}.

    Needs {given["name"]}, a GPU, and the ViT's
    weights of timm (downloaded; model.encoder_weights=FILE takes others).
    {expected}We have not run it.

    Command: ``cbsa segment train {name} data.root={given["root"]}``
    """,
    )


# --- a laboratory: one GPU, small data sets --------------------------------------------------------------

_LABORATORY: dict[str, dict[str, Any]] = {
    "camvid": {
        # The images, 360 × 480, rounded up to whole patches: evaluation looks at each of them in one window.
        "crop": (368, 480),
        "epochs": 200,
        "what": "CamVid (367 road scenes of 480×360 pixels, 11 classes)",
        "root": "/data/camvid",
    },
    "pets": {
        "crop": (160, 160),
        "epochs": 40,
        "what": "the trimaps of Oxford-IIIT Pets (3,680 images, 3 classes)",
        "root": "/data/oxford-pets",
    },
}


def _laboratory(name: str, dataset: str, decoder: str, size: str) -> SegmentConfig:
    """One recipe for all decoders: AdamW, since nothing here begins with pretrained weights."""
    lab = _LABORATORY[dataset]
    return SegmentConfig(
        recipe=name,
        model=SegmenterConfig(f"cbt_{size}_patch16_224", {"patch_size": 8}, decoder=DECODER_OF[decoder]),
        data=MaskDataConfig(dataset, crop=lab["crop"], workers=16),
        augment=MaskAugmentConfig(),
        windows=WindowConfig(lab["crop"], tuple(side * 2 // 3 for side in lab["crop"])),
        optimizer=OptimizerConfig("adamw", 5e-4, 0.05, (0.9, 0.999), decay_all=False, clip_grad=1.0),
        schedule=ScheduleConfig("poly", warmup_epochs=lab["epochs"] / 20),
        runtime=RuntimeConfig(compile=True),
        epochs=lab["epochs"],
        batch_size=16,
        eval_batch_size=16,
        eval_every=lab["epochs"] // 20,
    )


def _laboratory_recipe(dataset: str, decoder: str, size: str) -> None:
    name, lab = f"{dataset}_{decoder}_{size}", _LABORATORY[dataset]
    _register(
        name,
        lambda: _laboratory(name, dataset, decoder, size),
        f"""{_TITLES[decoder]} decoder on CBT-{size.capitalize()} with patches of 8 pixels, on {lab["what"]}.

    For comparisons at laboratory scale: encoder and settings are the same for all decoders. The encoder
    begins at random; model.encoder=NAME and model.encoder_weights=RUN take one that is trained. Needs one
    GPU. Time and mIoU have not been measured.

    Command: ``cbsa segment train {name} data.root={lab["root"]}``
    """,
    )


for _decoder in DECODER_OF:
    for _dataset in _PRETRAINED:
        for _size in AUTHORS_MIOU if _dataset == "ade20k" else ("tiny", "small"):
            _pretrained_recipe(_dataset, _decoder, _size)
    for _dataset in _LABORATORY:
        for _size in ("tiny", "small"):
            _laboratory_recipe(_dataset, _decoder, _size)
