"""The page: data, code and style in one file that asks for nothing from elsewhere."""

import base64
import hashlib
import json
import os
import re
from collections.abc import Callable, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from matplotlib import colormaps
from PIL import Image

from cbsa._files import prepare_folder, write_text_atomically
from cbsa._version import __version__
from cbsa.explain.gather import check_stored_size, gather
from cbsa.explain.images import data_uri, open_image, see, thumbnail
from cbsa.explain.models import MOST_MODELS, Subject, open_subject

_HEAT = "inferno"
_SCRIPTS = (
    "decode.js",
    "colour.js",
    "attention.js",
    "elements.js",
    "drawing.js",
    "state.js",
    "view_controls.js",
    "view_image.js",
    "view_predictions.js",
    "view_heads.js",
    "view_representatives.js",
    "view_rates.js",
    "view_tokens.js",
    "main.js",
)
_STYLES = ("page.css", "panels.css")


def write_explorer(
    images: Sequence[str | Path | tuple[str, Image.Image]],
    models: Sequence[str | Path | Subject],
    out: str | Path,
    *,
    size: int | None = None,
    say: Callable[[str], None] | None = None,
) -> Path:
    """Write one HTML file in which the attention of every token of some images can be looked at.

    The file holds everything it needs and opens from disk. Random weights are drawn with a fixed seed, so
    that the same inputs give the same bytes.

    Args:
        images: image files, or pairs of a name and an image.
        models: one to four models, shown side by side: what :func:`cbsa.explain.open_subject` takes, or
            :class:`cbsa.explain.Subject`.
        out: the file to write; its folder is made if need be.
        size: side in pixels to bring the images to; by default each model's own.
        say: called with a line about what is being done.

    Returns:
        Path of the page.
    """
    if not images:
        raise ValueError("no image given: give at least one image file")
    if not 1 <= len(models) <= MOST_MODELS:
        raise ValueError(f"models must be 1 to {MOST_MODELS}, to fit side by side, got {len(models)}")
    out = Path(out)
    if out.is_dir():
        raise ValueError(f"{out} is a folder: give the file to write, e.g. {out / 'explorer.html'}")
    prepare_folder(out.parent)
    subjects = [
        (model if isinstance(model, Subject) else open_subject(str(model))).at(size) for model in models
    ]
    for subject in subjects:
        check_stored_size(subject)
    opened = [i if isinstance(i, tuple) else (_name_of(i), open_image(i)) for i in images]
    views = []
    for name, image in opened:
        for subject in subjects:
            if say is not None:
                say(f"{name} in {subject.name}")
            views.append(_view(subject, image, name))
    blocks = [view.pop("bytes") for view in views]
    count = len(subjects)
    index = {
        "version": __version__,
        "heat": _heat(),
        "models": [_facts(subject) for subject in subjects],
        "images": [
            {
                "name": name,
                "thumbnail": views[i * count].pop("thumbnail"),
                "views": views[i * count :][:count],
            }
            for i, (name, _) in enumerate(opened)
        ],
    }
    title = f"{opened[0][0]} in {', '.join(subject.name for subject in subjects)}"
    write_text_atomically(out, assemble(title, index, blocks))
    return out


def assemble(title: str, index: dict[str, Any], blocks: Sequence[str]) -> str:
    """The page as text.

    Whatever comes from file names or labels is in JSON without ``<``, read by the page as text. The policy in
    the head allows the page's own code and style by their hashes, pictures within it, and nothing else.
    """
    files = resources.files("cbsa.explain")
    style = "\n".join(files.joinpath(name).read_text(encoding="utf-8") for name in _STYLES)
    code = "\n".join(files.joinpath(name).read_text(encoding="utf-8") for name in _SCRIPTS)
    script = f'"use strict";\n(() => {{\n{code}\n}})();'
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = {
        "policy": policy,
        "title": escape(title),
        "style": style,
        "index": json.dumps(index, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
        "blocks": "\n".join(
            f'<script type="text/plain" id="block-{i}">{block}</script>' for i, block in enumerate(blocks)
        ),
        "script": script,
    }
    frame = files.joinpath("page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], frame)


def _name_of(path: str | Path) -> str:
    """Name of a file as text, whatever bytes it is made of."""
    return os.fsencode(Path(path).name).decode("utf-8", "replace")


def _view(subject: Subject, image: Image.Image, name: str) -> dict[str, Any]:
    """One image in one model."""
    picture, pixels = see(image, subject.data, name)
    try:
        gathered = gather(subject, pixels.to(next(subject.model.parameters())))
    except ValueError as error:
        raise ValueError(f"{name} in {subject.name}: {error}") from error
    return {"picture": data_uri(picture), "thumbnail": thumbnail(picture), **gathered}


def _facts(subject: Subject) -> dict[str, Any]:
    """What the page says about a model."""
    return {
        "name": subject.name,
        "architecture": subject.architecture,
        "source": subject.source,
        "trained": subject.trained,
        "parameters": sum(p.numel() for p in subject.model.parameters()),
        "classes": subject.model.num_classes,
        "size": subject.data.img_size,
        "patch": list(subject.patch_size),
        "own_size": list(subject.own_size),
    }


def _heat() -> str:
    """256 colours of a perceptually uniform map, as hexadecimal digits."""
    table = colormaps[_HEAT](range(256), bytes=True)
    return bytes(table[:, :3].tobytes()).hex()


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}"
