"""The site and the rest of the repository: pages that lie elsewhere, and links that leave ``docs/``.

Pages are written to be read in the repository too, where ``../src/cbsa/train/engine.py`` is a good link.
"""

import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
# Files that are pages, though they lie elsewhere: where they lie, and what the page is called.
PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "src/cbsa/ops/README.md": "operator.md",
    "README.md": "index.md",
}
PICTURES = (".png", ".svg", ".jpg")
# A fenced block, a link or picture, or code: only the second is to be changed.
LINK = re.compile(
    r"^(?P<fence>```|~~~).*?^(?P=fence)|(?P<mark>!?)\[(?P<text>(?:`[^`]*`|[^\]`])*)\]\((?P<to>[^()\s]+)\)|`[^`]*`",
    re.MULTILINE | re.DOTALL,
)
log = get_plugin_logger(__name__)


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages that lie elsewhere."""
    for path, uri in PAGES.items():
        if files.get_file_from_path(uri) is None:
            files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Let links of a page to files of the repository lead to where these are on the site."""
    source = page.file.abs_src_path
    if source is None:  # made by another hook
        return markdown
    here, docs = Path(source).parent, Path(config.docs_dir)
    titles = dict(_titles(config.nav))

    def rewrite(match: re.Match[str]) -> str:
        to = match["to"]
        if to is None or re.match(r"\w+:|#", to):
            return match[0]
        target, _, anchor = to.partition("#")
        path = Path(os.path.normpath(here / target))
        if path.is_relative_to(docs):
            uri = path.relative_to(docs).as_posix()
        elif not path.exists():
            log.warning(f"{page.file.src_uri} links to {to}, which is not in the repository")
            return match[0]
        else:
            name = path.relative_to(ROOT).as_posix()
            uri = PAGES.get(name, name)
            if match["mark"] and path.suffix in PICTURES and files.get_file_from_path(uri) is None:
                files.append(File.generated(config, uri, abs_src_path=str(path)))
            elif name not in PAGES and not match["mark"]:
                return _mention(match["text"], name, config.extra.get("source_url"))
        text = titles.get(uri, match["text"]) if target.endswith(match["text"]) else match["text"]
        there = posixpath.relpath(uri, posixpath.dirname(page.file.src_uri) or ".")
        return f"{match['mark']}[{text}]({there}{'#' + anchor if anchor else ''})"

    return LINK.sub(rewrite, markdown)


def _titles(nav: list[Any]) -> Iterator[tuple[str, str]]:
    """Pages and what the navigation calls them; a link that is called by its file gets that name."""
    for entry in nav:
        for title, what in entry.items() if isinstance(entry, dict) else ():
            if isinstance(what, str):
                yield what, title
            else:
                yield from _titles(what)


def _mention(text: str, name: str, source_url: str | None) -> str:
    """A file that the site does not show: a link to where it can be read, or its path."""
    if source_url:
        return f"[{text}]({source_url.rstrip('/')}/{name})"
    return f"`{name}`" if name.endswith(text.strip("`")) else f"{text} (`{name}`)"
