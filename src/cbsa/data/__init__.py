"""Data sets, augmentation and loaders whose batches depend on seed and epoch alone.

``open_source`` finds the images, ``build_train_loader`` and ``build_eval_loader`` make batches of them, and
``normalise`` turns a batch into what a model takes.
"""

from cbsa.data.batch import Batch, EvalLoader, TrainLoader
from cbsa.data.build import build_eval_loader, build_train_loader
from cbsa.data.config import DATASETS, AugmentConfig, DataConfig
from cbsa.data.corrupt import CorruptLog, TooManyCorruptImages
from cbsa.data.seeding import derive_seed, seeded
from cbsa.data.segmentation import SegmentationLoader, segmentation_loader
from cbsa.data.source import ImageSource
from cbsa.data.sources import open_source
from cbsa.data.sources.masks import MaskSource, open_pets_trimaps, open_voc
from cbsa.data.transforms import normalise

__all__ = [
    "DATASETS",
    "AugmentConfig",
    "Batch",
    "CorruptLog",
    "DataConfig",
    "EvalLoader",
    "ImageSource",
    "MaskSource",
    "SegmentationLoader",
    "TooManyCorruptImages",
    "TrainLoader",
    "build_eval_loader",
    "build_train_loader",
    "derive_seed",
    "normalise",
    "open_pets_trimaps",
    "open_source",
    "open_voc",
    "seeded",
    "segmentation_loader",
]
