"""Which split of a data set to read."""

from collections.abc import Collection
from pathlib import Path
from typing import Protocol

TRAIN_SPLITS = ("train", "trainval")
VAL_SPLITS = ("val", "valid", "validation", "test")


class Splits(Protocol):
    """Settings that say where a data set lies and which of its splits are meant."""

    @property
    def dataset(self) -> str:
        """Name of the data set."""

    @property
    def root(self) -> str | None:
        """Its folder."""

    @property
    def train_split(self) -> str:
        """Name of the training split; empty for the usual one."""

    @property
    def val_split(self) -> str:
        """Name of the split to evaluate on; empty for the usual one."""


def find_root(config: Splits) -> Path:
    """Return the folder of the data set; raise if it is not given or does not exist."""
    if not config.root:
        raise ValueError(
            f"data.root is empty: give the folder of data.dataset={config.dataset!r}, or set both"
        )
    root = Path(config.root).expanduser()
    if not root.is_dir():
        raise FileNotFoundError(f"data.root={config.root!r}: there is no such folder")
    return root


def choose_split(config: Splits, train: bool, available: Collection[str]) -> str:
    """Return the split that the configuration names, or the first of the usual ones that is available."""
    named = config.train_split if train else config.val_split
    wanted = [named] if named else TRAIN_SPLITS if train else VAL_SPLITS
    for split in wanted:
        if split in available:
            return split
    field = "train_split" if train else "val_split"
    can_hold_out = not train and hasattr(config, "holdout")
    raise FileNotFoundError(
        f"data.root={config.root!r} has no split {' or '.join(map(repr, wanted))}; found "
        f"{', '.join(map(repr, sorted(available))) or 'none'}. Choose one by data.{field}"
        + (", or evaluate on a part of the training split by data.holdout" if can_hold_out else "")
    )
