"""Images for those who have none at hand: of the data set that a model was trained on, or photographs."""

from pathlib import PurePath

import numpy as np
from PIL import Image

from cbsa._checks import check_int
from cbsa.data import open_source
from cbsa.explain.models import Subject

_ENOUGH, _MORE = 14, 24  # patches a side in which a photograph can be recognised, and what to take for fewer


def sample_images(subject: Subject, count: int) -> list[tuple[str, Image.Image]]:
    """Take images of the evaluation split of a model's run, one a class as far as there are classes.

    A model that does not come from a run has no data set that could lend some: :func:`photographs` then.

    Args:
        subject: a model.
        count: how many, at most.

    Returns:
        Pairs of a name, which tells the true class, and an image; the same every time.
    """
    check_int("count", count)
    if not subject.run:
        return photographs()[:count]
    source = open_source(subject.data, train=False)
    turn = np.empty(len(source), dtype=np.int64)  # first, second, … of its class
    for label in np.unique(source.labels):
        members = np.flatnonzero(source.labels == label)
        turn[members] = np.arange(len(members))
    chosen = np.lexsort((source.labels, turn))
    # Of more classes than images, take some from all of their range.
    first = int((turn == 0).sum())
    if count < first:
        chosen = chosen[np.linspace(0, first - 1, count).round().astype(np.int64)]
    names = source.classes
    return [
        (f"{names[source.labels[i]]} · {PurePath(source.identify(int(i))).name}", source.read(int(i))[0])
        for i in chosen[:count].tolist()
    ]


def photographs() -> list[tuple[str, Image.Image]]:
    """The two photographs that scikit-learn has with it, as pairs of a name and an image of 640×427 pixels.

    A palace roof by danielbuechele and a flower by vultilion, both under CC BY 2.0.
    """
    from sklearn.datasets import load_sample_images  # type: ignore[import-untyped]

    found = load_sample_images()
    return [
        (PurePath(name).name, Image.fromarray(pixels))
        for name, pixels in zip(found.filenames, found.images, strict=True)
    ]


def at_photographs(subject: Subject) -> Subject:
    """The same model at a size at which a photograph can be recognised: its own, or 24 patches a side.

    A model of 32 px with patches of 4 px sees 8×8 patches, in which maps have no shape. At three times its
    size they do, though it did not learn that and its predictions are worse.
    """
    patch = max(subject.patch_size)
    return subject if subject.data.img_size >= _ENOUGH * patch else subject.at(_MORE * patch)
