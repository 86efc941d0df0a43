"""What a manifest says: the fields of a study, its entries and its analyses."""

from dataclasses import dataclass
from pathlib import Path

from cbsa._checks import check_choice
from cbsa.studies.data_sets import DATA_SETS

MANIFESTS = Path(__file__).parent / "manifests"  # those of the package


@dataclass(frozen=True)
class Tuning:
    """How learning rates are chosen: by accuracy on a part of the training images that is held out.

    Attributes:
        rates: learning rates to try.
        settings: what these runs change, ``data.holdout`` among them.
        seed: their seed.
    """

    rates: tuple[float, ...]
    settings: tuple[str, ...] = ("data.holdout=0.1",)
    seed: int = 1000

    def __post_init__(self) -> None:
        if not any(setting.startswith("data.holdout=") for setting in self.settings):
            raise ValueError(
                "tuning.settings has no data.holdout=SHARE: rates must not be chosen by the images that the "
                "results are about"
            )


@dataclass(frozen=True)
class Entry:
    """A row of the study's table: one model, trained with one or several seeds.

    Attributes:
        name: name of its folder.
        label: what tables call it.
        paper: the paper's row that it stands beside; by default the one of its label, if there is one.
        model: name of the model; by default the recipe's, or that of the run it starts from.
        recipe: name of the recipe; by default the study's.
        settings: what it changes, as name=value.
        seeds: one run for each.
        extra_seeds: more of them, which come after everything else there is to do.
        group: rows of a group stand together, and its jobs come before those of the next one.
        rates: learning rates to try; by default the study's.
        tuned_like: take the rate that was chosen for another entry, ``STUDY/ENTRY`` or ``ENTRY`` of the same
            study, times ``rate_factor``.
        rate_factor: see ``tuned_like``.
        of: the study whose entry of this name it is: its runs are shared, not repeated.
        beside: the entry it is compared with; by default the first of its group.
        goal: points of top-1 by which it is to beat that entry over its seeds; 0 for no goal.
        start_from: the entry whose trained weights it starts from, ``STUDY/ENTRY``, or ``ENTRY`` of the same
            study: the run of the same seed where there is one, else the first.
        data: name of its data set; by default the study's.
    """

    name: str
    label: str = ""
    paper: str = ""
    model: str = ""
    recipe: str = ""
    settings: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0,)
    extra_seeds: tuple[int, ...] = ()
    group: str = ""
    rates: tuple[float, ...] = ()
    tuned_like: str = ""
    rate_factor: float = 1.0
    of: str = ""
    beside: str = ""
    goal: float = 0.0
    start_from: str = ""
    data: str = ""


@dataclass(frozen=True)
class Analysis:
    """A command of ``cbsa reproduce`` on trained models of studies.

    Attributes:
        name: name of its folder.
        command: one of :data:`cbsa.studies.analyses.COMMANDS`.
        models: runs it looks at, as ``STUDY/ENTRY`` (the first seed) or ``STUDY/ENTRY/seed1``.
        data: name of the data set whose images it looks at; by default the study's.
        options: further words of the command.
        gpu: whether it is left out where there is no GPU.
    """

    name: str
    command: str
    models: tuple[str, ...] = ()
    data: str = ""
    options: tuple[str, ...] = ()
    gpu: bool = False


@dataclass(frozen=True)
class Study:
    """What a manifest says.

    Attributes:
        name: name of the file.
        title: what it is about.
        recipe: recipe of all entries that name no other.
        entries: rows of the table.
        settings: what all runs change.
        data: name of the data set, one of :data:`cbsa.studies.data_sets.DATA_SETS`; empty for one that only
            the settings know.
        classes: number of classes of a data set without a name, for the costs of what has not run yet.
        tuning: how learning rates are chosen; without it they are the recipes'.
        speed: whether the speed of each entry is measured too.
        analyses: what is done with the trained models.
        table: the command of ``cbsa reproduce`` that shows the results.
        order: place among the studies that are worked through together; 0 if it is none of them.
        folder: where the manifest lies.
    """

    name: str
    title: str
    recipe: str = ""
    entries: tuple[Entry, ...] = ()
    settings: tuple[str, ...] = ()
    data: str = ""
    classes: int = 1000
    tuning: Tuning | None = None
    speed: bool = False
    analyses: tuple[Analysis, ...] = ()
    table: str = ""
    order: int = 0
    folder: str = ""

    @property
    def path(self) -> Path:
        """The manifest."""
        return Path(self.folder) / f"{self.name}.toml"

    @property
    def reference(self) -> str:
        """What ``cbsa study`` calls it: its name, behind that of its scale if it is no study of ``all``."""
        folder = Path(self.folder)
        return f"{folder.name}/{self.name}" if folder.parent == MANIFESTS else self.name

    def entry(self, name: str) -> Entry:
        """The entry of a name."""
        known = {entry.name: entry for entry in self.entries}
        return known[check_choice(f"entry of the study {self.name}", name, known)]

    def classes_of(self, entry: Entry) -> int:
        """Number of classes of an entry's data set."""
        known = DATA_SETS.get(entry.data or self.data)
        return self.classes if known is None else known.classes
