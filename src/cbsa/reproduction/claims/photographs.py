"""Analyses of models that learnt photographs: those of the study «analyses», or of two earlier runs."""

from collections.abc import Mapping
from typing import TypeVar

from cbsa.report.style import UNTRAINED
from cbsa.reproduction.evidence import RESULTS, Evidence

Value = TypeVar("Value")
SCALE = "Tiny-ImageNet, 64 px, 20 epochs"
# The folder of each experiment in the study.
_FOLDERS = {
    "table-zero-shot": "zero-shot",
    "table-zero-shot-layers": "zero-shot-layers",
    "fig-coding-rate": "coding-rate",
    "fig-reduced-cr": "reduced-rate",
    "fig-rank": "rank",
    "fig-perturb": "noise",
    "table-throughput": "throughput",
}
_FAMILIES = {"CBSA": "CBT", "MSSA": "CRATE", "TSSA": "ToST"}  # what the study calls them by their attention
EARLIER = "tiny-imagenet"  # folder of the earlier runs


def path_of(found: Evidence, file: str, otherwise: str = "") -> str:
    """Where a file of an experiment lies: in the study if that has been done, else with the earlier runs.

    Args:
        found: the committed files.
        file: name of the file.
        otherwise: another place than that of the earlier runs.
    """
    studied = f"studies/analyses/{_FOLDERS[file.rpartition('.')[0]]}/{file}"
    return studied if found.has(f"{RESULTS}/{studied}") else otherwise or f"{EARLIER}/{file}"


def family_and_size(label: str) -> tuple[str, str]:
    """What a result's label stands for: ``CBSA-T`` for CBT of size T, ``CRATE`` alone for CRATE of size T."""
    name = label.removesuffix(UNTRAINED).split(" (")[0]
    family, dash, size = name.rpartition("-")
    if not dash:
        family, size = name, "T"
    return _FAMILIES.get(family, family), size


def of_size(values: Mapping[str, Value], size: str = "T") -> dict[str, Value]:
    """Values of trained models of a size, by family."""
    return {
        family_and_size(label)[0]: value
        for label, value in values.items()
        if not label.endswith(UNTRAINED) and family_and_size(label)[1] == size
    }


def largest_size(values: Mapping[str, Value]) -> str:
    """S if there is a CBT of it, else T: the paper's tables of maps are about S."""
    return "S" if "CBT" in of_size(values, "S") else "T"
