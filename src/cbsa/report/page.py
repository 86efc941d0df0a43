"""One self-contained page about a training run."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from cbsa._files import prepare_folder, write_text_atomically
from cbsa._version import __version__

_TYPES = {".png": "image/png", ".svg": "image/svg+xml", ".jpg": "image/jpeg", ".jpeg": "image/jpeg"}
_DPI = 160  # of figures that hold pictures
_READABLE = 0.62  # on a narrow screen, figures scroll sideways rather than shrink below this share


@dataclass(frozen=True)
class Picture:
    """A figure, or the path of an image file, with a caption and a text for those who cannot see it."""

    image: Figure | Path
    caption: str = ""
    alt: str = ""


@dataclass(frozen=True)
class Section:
    """A part of the page: text (blank lines part paragraphs), facts as name and value, pictures.

    A figure or path without a caption may stand for a :class:`Picture`.
    """

    title: str
    text: str = ""
    figures: Sequence[Picture | Figure | Path] = ()
    facts: Sequence[tuple[str, str]] = ()


def write_page(
    folder: Path,
    title: str,
    summary: Sequence[tuple[str, str]],
    sections: Sequence[Section],
    *,
    lead: str = "",
) -> Path:
    """Write ``index.html``: all in one file, without scripts and without anything from elsewhere.

    Every text is escaped, images are embedded. The same inputs give the same bytes.

    Args:
        folder: where to write it; made if need be.
        title: heading of the page.
        summary: the few numbers to see first, as name and value.
        sections: the rest, in order.
        lead: a sentence or two below the title.

    Returns:
        Path of the page.
    """
    prepare_folder(folder)
    links = [f'<a href="#part-{i}">{escape(s.title)}</a>' for i, s in enumerate(sections, 1)]
    parts = [
        f'<header class="wrap"><h1>{escape(title)}</h1>',
        f'<p class="lead">{escape(lead)}</p>' if lead else "",
        _pairs("tiles", summary),
        f'<nav aria-label="Contents">{"".join(links)}</nav>' if len(links) > 1 else "",
        '</header>\n<main class="wrap">',
        *(_section(section, i) for i, section in enumerate(sections, 1)),
        f'</main>\n<footer><div class="wrap">Made with cbsa {escape(__version__)}</div></footer>',
    ]
    style = resources.files("cbsa.report").joinpath("page.css").read_text(encoding="utf-8")
    page = _FRAME.format(title=escape(title), style=style, body="\n".join(filter(None, parts)))
    path = folder / "index.html"
    write_text_atomically(path, page)
    return path


_FRAME = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
{body}
</body>
</html>
"""


def _section(section: Section, number: int) -> str:
    paragraphs = [p.strip() for p in section.text.split("\n\n") if p.strip()]
    pictures = [p if isinstance(p, Picture) else Picture(p) for p in section.figures]
    return "\n".join(
        [
            f'<section id="part-{number}"><h2>{escape(section.title)}</h2>',
            *(f"<p>{escape(p)}</p>" for p in paragraphs),
            *(_figure(p, f"{section.title}, figure {i}") for i, p in enumerate(pictures, 1)),
            *([_pairs("facts", section.facts)] if section.facts else []),
            "</section>",
        ]
    )


def _pairs(kind: str, pairs: Sequence[tuple[str, str]]) -> str:
    rows = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in pairs)
    return f'<dl class="{kind}">{rows}</dl>' if rows else ""


def _figure(picture: Picture, otherwise: str) -> str:
    """A picture on a white sheet, whose colours hold in dark mode too."""
    alt = escape(picture.alt or picture.caption or otherwise)
    if isinstance(picture.image, Figure):
        kind, data = _render(picture.image)
        width = round(96 * picture.image.get_figwidth())  # CSS pixels
        size = f' style="min-width:{round(_READABLE * width)}px;max-width:{round(1.1 * width)}px"'
    else:
        kind, data, size = *_read(picture.image), ""
    source = f"data:{kind};base64,{base64.b64encode(data).decode('ascii')}"
    caption = f"<figcaption>{escape(picture.caption)}</figcaption>" if picture.caption else ""
    # The sheet may scroll sideways: tabindex lets the keyboard do so.
    sheet = f'<div class="sheet" tabindex="0"><img alt="{alt}" src="{source}"{size}></div>'
    return f"<figure>{sheet}{caption}</figure>"


def _render(figure: Figure) -> tuple[str, bytes]:
    """A figure as SVG, or as PNG if it holds pictures, which SVG would blow up."""
    suffix = ".png" if any(axes.images for axes in figure.axes) else ".svg"
    stream = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "cbsa"}):
        metadata = {"Date": None} if suffix == ".svg" else None
        figure.savefig(
            stream, format=suffix[1:], dpi=_DPI, metadata=metadata, bbox_inches="tight", pad_inches=0.06
        )
    return _TYPES[suffix], stream.getvalue()


def _read(path: Path) -> tuple[str, bytes]:
    suffix = path.suffix.lower()
    if suffix not in _TYPES:
        raise ValueError(f"image {path} must be one of {', '.join(_TYPES)}, got {suffix or 'no suffix'}")
    return _TYPES[suffix], path.read_bytes()
