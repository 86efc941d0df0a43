"""The data sets, each opened by its name."""

from collections.abc import Callable

from cbsa.data.config import DATASETS, DataConfig
from cbsa.data.source import ImageSource, Subset, stratified_split
from cbsa.data.sources.arrays import open_digits
from cbsa.data.sources.files import open_folder
from cbsa.data.sources.parquet import open_parquet
from cbsa.data.sources.torchvision_sets import open_cifar, open_flowers, open_pets
from cbsa.data.sources.webdataset import open_webdataset

_OPENERS: dict[str, Callable[[DataConfig, bool], ImageSource]] = {
    "digits": open_digits,
    "cifar10": open_cifar,
    "cifar100": open_cifar,
    "flowers102": open_flowers,
    "pets": open_pets,
    "imagenet": open_folder,
    "folder": open_folder,
    "parquet": open_parquet,
    "webdataset": open_webdataset,
}
assert tuple(_OPENERS) == DATASETS


def open_source(config: DataConfig, train: bool) -> ImageSource:
    """Open a split of a data set.

    Args:
        config: the data set. With ``config.holdout`` the training split is divided per class, the same for
            every run.
        train: True for what to train on; False for what to evaluate on, i.e. the validation split or, with
            ``config.holdout``, the part held out of training.

    Returns:
        Random access to its images.
    """
    source = _OPENERS[config.dataset](config, train or config.holdout > 0)
    if config.holdout == 0:
        return source
    kept, held = stratified_split(source.labels, config.holdout, "holdout")
    if len(held) == 0:
        raise ValueError(f"data.holdout={config.holdout} of {len(source)} images, one a class, leaves none")
    return Subset(source, kept if train else held)
