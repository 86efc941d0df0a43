"""Docstrings are written for editors too, with Sphinx's marks: here they become what the site understands."""

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:func|class|meth|mod|data|attr):`([\w.]+)`")
LITERAL = re.compile(r"::$", re.MULTILINE)  # before an indented block, which is one without it here
# Names that lead to a function which has the name of its file.
ELSEWHERE = {"cbsa.adapt": "cbsa.adaptation.adapt.adapt"}


class Roles(griffe.Extension):
    """Turn ``:func:`name``` into code, which is a link where the site describes what it names."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Rewrite the docstrings of a package, once all of its names are known."""
        self._rewrite(pkg)

    def _rewrite(self, thing: griffe.Object | griffe.Alias) -> None:
        if isinstance(thing, griffe.Alias):
            return
        if thing.docstring is not None:
            text = LITERAL.sub(":", thing.docstring.value)
            thing.docstring.value = ROLE.sub(lambda role: _link(thing, role[1]), text)
        for member in thing.members.values():
            self._rewrite(member)


def _link(where: griffe.Object, name: str) -> str:
    """A reference to what a docstring calls ``name``; optional, since it need not be on the site."""
    try:
        path = ELSEWHERE.get(name, name) if name.startswith("cbsa.") else where.resolve(name)
    except griffe.NameResolutionError:
        path = name
    return f'<autoref identifier="{path}" optional><code>{name}</code></autoref>'
