"""The models that the analyses look at, and one way to look at all of them."""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from cbsa.experiments import digits
from cbsa.experiments.images import ImageChoice, LabelledImages
from cbsa.models import Transformer
from cbsa.models.shipped import shipped_name
from cbsa.report.style import UNTRAINED
from cbsa.train.trained import Trained, open_trained

Result = TypeVar("Result")
Item = TypeVar("Item")
_SEED = 0
Start = Callable[[str, int], Callable[[], object]]  # title and steps of some work -> advance by one


@dataclass(frozen=True)
class Subject:
    """A model under the name that tables and figures give it."""

    label: str
    trained: Trained

    @property
    def model(self) -> Any:
        """The model; probes say which they know (:class:`cbsa.analysis.Anatomy`)."""
        return self.trained.model

    def untrained(self) -> "Subject":
        """The same model with random weights, always the same ones: a control."""
        if not isinstance(self.model, Transformer):
            raise TypeError(
                f"{self.label} is a {type(self.model).__name__}, and random weights are for models of cbsa "
                "alone: leave out --untrained"
            )
        model = copy.deepcopy(self.model)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_SEED)
            device = model.pos_embed.device
            model.cpu().init_weights()
        return Subject(
            self.label + UNTRAINED, replace(self.trained, model=model.to(device), weights=None, run=None)
        )

    def describe(self) -> dict[str, Any]:
        """Where the numbers of a result come from."""
        weights = self.trained.weights
        return {
            "model": self.label,
            "architecture": self.trained.architecture,
            "weights": None if weights is None else shipped_name(weights) or str(weights),
            "parameters": sum(p.numel() for p in self.trained.model.parameters()),
        }


def open_subjects(
    names: Sequence[str], weights: Sequence[str] = (), device: torch.device | None = None
) -> list[Subject]:
    """Open models by name, each under a label of its own.

    Args:
        names: what :func:`cbsa.train.trained.open_trained` takes, or ``digits:NAME`` for a model of
            :mod:`cbsa.experiments.digits` that is trained already; ``LABEL=NAME`` says what to call it.
        weights: files of weights for registered names, in order; none for random ones.
        device: where the models go.
    """
    parts = [digits.resolve(name) for name in names]
    takers = [name for _, name in parts if not Path(name).exists()]
    if weights and len(weights) != len(takers):
        raise ValueError(
            f"--weights was given {len(weights)} times for {len(takers)} registered names "
            f"({', '.join(takers) or 'the models are folders, which have their weights'}): give one for each"
        )
    remaining = iter(weights)
    subjects: list[Subject] = []
    for label, name in parts:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_SEED)  # of random weights
            trained = open_trained(name, next(remaining, None) if name in takers else None)
        trained.model.to(device or torch.device("cpu"))
        taken = {subject.label for subject in subjects}
        label = label or trained.label
        subjects.append(Subject(label if label not in taken else _another(label, name, taken), trained))
    return subjects


def _another(label: str, name: str, taken: set[str]) -> str:
    """A label that differs from others: with the name of the folder, or a number."""
    longer = f"{label} ({Path(name).name})"
    number = 2
    while longer in taken:
        longer, number = f"{label} ({number})", number + 1
    return longer


def silent(title: str, total: int) -> Callable[[], object]:
    """Show no progress."""
    return lambda: None


def measure(
    subjects: Sequence[Subject],
    choice: ImageChoice,
    look: Callable[[Any, Iterable[Tensor]], Result],
    *,
    batch_size: int = 64,
    start: Start = silent,
) -> dict[str, Result]:
    """Apply a probe to the same images through every model, by label.

    Args:
        subjects: the models.
        choice: the images; each model sees them in its own size.
        look: called with a model and batches of normalised images.
        batch_size: images of a batch.
        start: called for each model; tells progress.
    """
    results = {}
    for subject in subjects:
        images = LabelledImages(choice, subject.trained.data, batch_size)
        with naming(subject):
            normalised = (pixels for pixels, _ in images)
            results[subject.label] = look(subject.model, ticking(normalised, images, subject.label, start))
    return results


@contextmanager
def naming(subject: Subject) -> Iterator[None]:
    """Say which model it is that a probe refuses."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise type(error)(f"{subject.label}: {error}") from error


def ticking(items: Iterable[Item], sized: Sized, title: str, start: Start) -> Iterator[Item]:
    """Pass items on, and tell when each has been dealt with."""
    advance = start(title, len(sized))
    for item in items:
        yield item
        advance()
