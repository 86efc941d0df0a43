"""Data sets, augmentation and loaders whose batches depend on seed and epoch alone.

``open_source`` finds the images, ``build_train_loader`` and ``build_eval_loader`` make batches of them, and
``normalise`` turns a batch into what a model takes.
"""

from cbsa.data.batch import Batch, EvalLoader, TrainLoader
from cbsa.data.build import build_eval_loader, build_train_loader
from cbsa.data.config import DATASETS, AugmentConfig, DataConfig
from cbsa.data.corrupt import CorruptLog, TooManyCorruptImages
from cbsa.data.label_sets import LabelSet
from cbsa.data.mask_batches import mask_eval_loader, mask_train_loader
from cbsa.data.mask_config import MASK_DATASETS, MaskAugmentConfig, MaskDataConfig
from cbsa.data.resident import keep_decoded
from cbsa.data.seeding import derive_seed, seeded
from cbsa.data.segmentation import SegmentationLoader, segmentation_loader
from cbsa.data.segmentation_source import SegmentationSource, open_segmentation
from cbsa.data.source import ImageSource
from cbsa.data.sources import open_source
from cbsa.data.sources.masks import MaskSource, open_camvid, open_pets_trimaps, open_voc
from cbsa.data.transforms import normalise

__all__ = [
    "DATASETS",
    "MASK_DATASETS",
    "AugmentConfig",
    "Batch",
    "CorruptLog",
    "DataConfig",
    "EvalLoader",
    "ImageSource",
    "LabelSet",
    "MaskAugmentConfig",
    "MaskDataConfig",
    "MaskSource",
    "SegmentationLoader",
    "SegmentationSource",
    "TooManyCorruptImages",
    "TrainLoader",
    "build_eval_loader",
    "build_train_loader",
    "derive_seed",
    "keep_decoded",
    "mask_eval_loader",
    "mask_train_loader",
    "normalise",
    "open_camvid",
    "open_pets_trimaps",
    "open_segmentation",
    "open_source",
    "open_voc",
    "seeded",
    "segmentation_loader",
]
