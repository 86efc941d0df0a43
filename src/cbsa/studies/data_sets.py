"""The data sets that manifests name, and the folders in which a user has them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cbsa._checks import check_choice

_MOST_LISTED = 8  # entries of a folder that an error names


@dataclass(frozen=True)
class Layout:
    """How a data set may lie in a folder.

    Attributes:
        dataset: what ``data.dataset`` calls it.
        marks: patterns, one of which finds something in the folder.
        inside: the folder that torchvision makes: ``data.root`` is the one above it.
    """

    dataset: str
    marks: tuple[str, ...]
    inside: str = ""


@dataclass(frozen=True)
class DataSet:
    """A data set that manifests name.

    Attributes:
        classes: number of its classes.
        train_images: images of its training split.
        layouts: how it may lie in a folder; none if it is embedded and needs no folder.
        also: other names of its folder.
    """

    classes: int
    train_images: int
    layouts: tuple[Layout, ...]
    also: tuple[str, ...] = ()


_PARQUET = Layout("parquet", ("*.parquet", "data/*.parquet"))
_FOLDER = Layout("folder", ("train/*/",))
_CIFAR = Layout("cifar10", ("cifar-10-batches-py",), "cifar-10-batches-py")
_PETS = Layout("pets", ("oxford-iiit-pet/annotations",), "oxford-iiit-pet")
DATA_SETS: dict[str, DataSet] = {
    "tiny-imagenet": DataSet(200, 100_000, (_PARQUET, _FOLDER), ("tiny-imagenet-200",)),
    "cifar10": DataSet(10, 50_000, (_CIFAR, _PARQUET, _FOLDER), ("cifar-10",)),
    "pets": DataSet(37, 3_680, (_PETS, _PARQUET), ("oxford-pets",)),
    "digits": DataSet(10, 1_438, ()),
}


@dataclass(frozen=True)
class Root:
    """A data set in a folder: what ``data.root`` and ``data.dataset`` are for it."""

    folder: str
    dataset: str


@dataclass(frozen=True)
class Roots:
    """Where data sets lie.

    Attributes:
        named: the folders of data sets that manifests name.
        plain: a folder for data sets without a name.
    """

    named: Mapping[str, Root] = field(default_factory=dict)
    plain: str = ""

    def settings(self, name: str) -> tuple[str, ...]:
        """What a run on a data set changes."""
        if name in self.named:
            root = self.named[name]
            return f"data.dataset={root.dataset}", f"data.root={root.folder}"
        return (f"data.root={self.plain}",) if self.plain and not name else ()


def find_roots(given: Sequence[str], needed: Collection[str]) -> Roots:
    """Find the folders of the data sets that are needed, before any time is spent.

    Args:
        given: ``NAME=FOLDER`` for a data set, or one ``FOLDER``: of the data set, if one is needed, or with
            sub-folders of their names.
        needed: names of data sets; the empty one is for what has none.
    """
    folders, plain = _divide(given)
    wanted = [name for name in dict.fromkeys(needed) if name and DATA_SETS[name].layouts]
    found = {name: _open(name, folder) for name, folder in folders.items()}
    if plain and not Path(plain).expanduser().is_dir():
        raise FileNotFoundError(f"--data {plain}: there is no such folder")
    for name in wanted if plain else ():
        root = _look_below(name, Path(plain).expanduser(), alone=len(wanted) == 1)
        if name not in found and root is not None:
            found[name] = root
    missing = [name for name in wanted if name not in found]
    if missing:
        where = f"; --data {plain} holds {_content(Path(plain).expanduser())}" if plain else ""
        options = " ".join(f"--data {name}=FOLDER" for name in missing)
        raise ValueError(
            f"the jobs that are left to do need {' and '.join(missing)}: add {options}, or --data FOLDER "
            f"with sub-folders of these names{where}"
        )
    return Roots(found, plain)


def _divide(given: Sequence[str]) -> tuple[dict[str, str], str]:
    """``NAME=FOLDER`` by name, and the one folder without a name."""
    folders: dict[str, str] = {}
    plain = ""
    for text in given:
        name, equals, folder = text.partition("=")
        if equals and not Path(text).expanduser().exists():
            folders[check_choice("--data NAME=FOLDER, NAME", name, DATA_SETS)] = folder
        elif plain:
            raise ValueError(f"--data {plain} and --data {text}: say of which data sets, by NAME=FOLDER")
        else:
            plain = text
    return folders, plain


def _look_below(name: str, folder: Path, alone: bool) -> Root | None:
    """A data set in a folder of several, or that is the folder itself.

    The folder itself is one of several only where torchvision makes a folder of its own for each.
    """
    layouts = DATA_SETS[name].layouts
    itself = _recognise(folder, [layout for layout in layouts if alone or layout.inside])
    below = (_recognise(folder / sub, layouts) for sub in (name, *DATA_SETS[name].also))
    return itself or next((root for root in below if root is not None), None)


def _open(name: str, given: str) -> Root:
    """A data set in the folder that was given for it."""
    folder, layouts = Path(given).expanduser(), DATA_SETS[name].layouts
    if not layouts:
        raise ValueError(f"--data {name}={given}: {name} is embedded, it needs no folder")
    if not given or not folder.is_dir():
        raise FileNotFoundError(f"--data {name}={given}: there is no such folder")
    root = _recognise(folder, layouts)
    if root is None:
        expected = " or ".join(mark for layout in layouts for mark in layout.marks)
        raise FileNotFoundError(f"--data {name}={given} holds {_content(folder)}; expected {expected}")
    return root


def _recognise(folder: Path, layouts: Sequence[Layout]) -> Root | None:
    """A data set in a folder; None if it does not look like one."""
    for layout in layouts:
        root = folder.parent if layout.inside and folder.name == layout.inside else folder
        if any(any(root.glob(mark)) for mark in layout.marks):
            return Root(str(root), layout.dataset)
    return None


def _content(folder: Path) -> str:
    """What lies in a folder, for a message."""
    names = sorted(path.name for path in folder.iterdir())
    shown = ", ".join(names[:_MOST_LISTED]) + (", …" if len(names) > _MOST_LISTED else "")
    return shown or "nothing"
