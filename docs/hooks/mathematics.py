"""Formulas: TeX between dollar signs becomes MathML when the site is built, so that pages need no script."""

import html
import re
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_page_content(content: str, *, page: Any, **kwargs: Any) -> str:
    """Replace what ``pymdownx.arithmatex`` has marked as TeX in a page."""

    def mathml(match: re.Match[str]) -> str:
        tag, tex = match[1], html.unescape(match[2]).strip()
        try:
            formula = convert(tex, display="block" if tag == "div" else "inline")
        except Exception as error:  # the converter raises what it happens to stumble over
            raise PluginError(
                f"{page.file.src_uri}: cannot convert the formula {tex!r}: {error!r}"
            ) from error
        if unknown := re.search(r"<m[io]>(\\\w+|&)</m[io]>", formula):
            raise PluginError(f"{page.file.src_uri}: {unknown[1]} is unknown in the formula {tex!r}")
        return f'<{tag} class="formula">{formula}</{tag}>'

    return FORMULA.sub(mathml, content)
