"""The documentation site: it builds without a network, fetches nothing, and leaves nothing out."""

import contextlib
import importlib
import re
import runpy
import socket
import time
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.main import get_command

from cbsa.cli import app
from cbsa.models import MODELS, create_model
from tests.explain.browser import BROWSER, REASON, Page
from tests.test_package import table_in

build = pytest.importorskip("mkdocs.commands.build", reason="needs the docs extra: pip install -e '.[docs]'")
ROOT = Path(__file__).parents[1]
DOCUMENTED = [
    *("ops", "layers", "objective", "models", "segmentation", "adaptation", "analysis", "report", "explain"),
    *("parallel", "train", "data"),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built as `make docs` does, where a connection to anywhere is an error."""
    from mkdocs.config import load_config

    def refuse(*args):
        raise AssertionError(f"the build wanted to connect: {args[1:]}")

    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch, contextlib.chdir(ROOT):
        patch.setattr(socket.socket, "connect", refuse)
        patch.setattr(socket, "getaddrinfo", refuse)
        patch.setenv("NO_MKDOCS_2_WARNING", "1")
        patch.delenv("CBSA_SOURCE_URL", raising=False)
        config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True)
        build.build(config)  # strict: a warning is an error
    return folder


class Resources(HTMLParser):
    """What a browser fetches by itself to show a page."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        of = dict(attributes)
        if tag == "link" and of.get("rel") not in ("canonical", "prev", "next", "edit"):
            self.found.append(of["href"])
        elif tag in ("script", "img", "iframe", "source", "video", "audio", "embed") and "src" in of:
            self.found.append(of["src"])
        elif tag == "object":
            self.found.append(of["data"])


def test_pages_fetch_nothing_from_elsewhere(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        if page.name == "404.html":  # its paths are those of a server
            continue
        resources = Resources(page.read_text()).found
        assert len(resources) > 3
        for url in resources:
            assert not re.match(r"\w+:|//", url) or url.startswith("data:"), (page.name, url)
            assert (page.parent / url.partition("?")[0]).is_file(), (page.name, url)
    for style in site.rglob("*.css"):
        assert not re.search(r"@import|url\(\s*[\"']?(https?:)?//", style.read_text()), style.name


def test_formulas_are_mathml(site):
    text = (site / "concepts.html").read_text()
    assert text.count("<math") > 40
    assert text.count('display="block"') >= 7
    assert not re.search(r"arithmatex|\\\(|\\\[|\$\$", text)


@pytest.mark.parametrize("formula", [r"\nosuchcommand{x}", r"\begin{aligned} a &= b \end{aligned}"])
def test_formulas_that_cannot_be_converted_stop_the_build(formula):
    from mkdocs.exceptions import PluginError

    hook = runpy.run_path(str(ROOT / "docs/hooks/mathematics.py"))
    page = SimpleNamespace(file=SimpleNamespace(src_uri="x.md"))
    text = f'<div class="arithmatex">\\[{formula.replace("&", "&amp;")}\\]</div>'
    with pytest.raises(PluginError, match=r"x\.md"):
        hook["on_page_content"](text, page=page)


@pytest.mark.parametrize("module", DOCUMENTED)
def test_every_public_name_is_in_the_reference(site, module):
    text = (site / f"api/{module}.html").read_text()
    names = importlib.import_module(f"cbsa.{module}").__all__
    # The function `adapt` has the name of its file.
    ids = {name: f"{name}.adapt" if name == "adapt" else name for name in names}
    assert [name for name in names if f'id="cbsa.{module}.{ids[name]}"' not in text] == []


def test_docstrings_have_become_pages(site):
    text = "".join(path.read_text() for path in site.glob("api/*.html"))
    assert re.search(r'<a class="autorefs [^>]*href="ops.html#cbsa.ops.contract_broadcast"', text)
    assert not re.search(r":(func|class|meth|mod|data|attr):|</?autoref\b", text)
    index = (site / "api/index.html").read_text()
    for target in ("models.html#cbsa.models.create_model", "adaptation.html#cbsa.adaptation.adapt.adapt"):
        assert f'href="{target}"' in index


def commands(name="cbsa", command=None):
    """All commands, by the words one types."""
    inner = getattr(command or get_command(app), "commands", None)
    if inner is None:
        return [name]
    return [found for word, one in inner.items() for found in commands(f"{name} {word}", one)]


def test_every_command_has_a_place(site):
    page = (site / "commands.html").read_text()
    guides = "".join(path.read_text() for path in sorted(ROOT.glob("docs/*.md")))
    found = commands()
    assert {"cbsa train", "cbsa bench ops", "cbsa reproduce fig-3d"} <= set(found)
    assert [name for name in found if f'id="{name.replace(" ", "-")}"' not in page] == []
    assert [name for name in found if not re.search(rf"{name}(?![\w-])", guides)] == []


def test_every_page_can_be_found(site):
    """In the navigation, which every page shows."""
    text = (site / "index.html").read_text()
    written = {path.stem for path in ROOT.glob("docs/*.md")}
    assert [name for name in sorted(written) if f'href="{name}.html"' not in text] == []


def test_models_in_their_guide_are_those_registered():
    text = (ROOT / "docs/models.md").read_text()
    named = set()
    for pattern, sizes, _ in table_in(text, "family"):
        for size, depths in re.findall(r"([a-z]+)(?: \(([^)]+)\))?", sizes):
            for depth in re.findall(r"\d+", depths) or [""]:
                named.add(pattern.strip("`").format(size=size, depth=depth))
    assert named == {name for name in MODELS if name.endswith("_patch16_224")}
    for size, width, blocks, heads, parameters, *_ in table_in(text, "CBT | width"):
        model = create_model(f"cbt_{size}_patch16_224", device="meta")
        counted = sum(p.numel() for p in model.parameters())
        found = (model.embed_dim, len(model.blocks), model.blocks[0].attn.num_heads, f"{counted:,}")
        assert found == (int(width), int(blocks), int(heads), parameters)


def test_links_that_leave_the_folder(site, caplog):
    assert "<code>src/cbsa/train/engine.py</code>" in (site / "training.html").read_text()
    assert 'href="operator.html#on-two-cpu-cores"' in (site / "benchmarks.html").read_text()
    picture = "benchmarks/results/h200/ops.png"
    assert (site / picture).read_bytes() == (ROOT / picture).read_bytes()

    hook = runpy.run_path(str(ROOT / "docs/hooks/repository.py"))["on_page_markdown"]
    page = SimpleNamespace(file=SimpleNamespace(abs_src_path=str(ROOT / "docs/api/x.md"), src_uri="api/x.md"))
    config = SimpleNamespace(docs_dir=str(ROOT / "docs"), nav=[], extra={"source_url": "https://host/cbsa/"})

    def rewritten(text):
        return hook(text, page=page, config=config, files=None)

    assert rewritten("[e](../../Makefile)") == "[e](https://host/cbsa/Makefile)"
    assert rewritten("[c](../../CHANGELOG.md#a)") == "[c](../changelog.md#a)"
    for same in (
        "[t](../training.md)",
        "[w](https://x.org/)",
        "`[e](../../Makefile)`",
        "```\n[e](../../Makefile)\n```",
    ):
        assert rewritten(same) == same
    assert caplog.records == []
    rewritten("[gone](../../src/nothing.py)")
    assert "which is not in the repository" in caplog.text


@pytest.mark.skipif(BROWSER is None, reason=REASON)
def test_search_and_formulas_in_a_browser_without_a_server(site, tmp_path):
    page = Page(tmp_path)
    try:
        page.call("Page.navigate", url=f"{(site / 'concepts.html').as_uri()}?q=contract_broadcast")
        deadline = time.monotonic() + 30
        while "matching" not in page.evaluate(
            "document.querySelector('.md-search-result__meta')?.textContent ?? ''"
        ):
            assert time.monotonic() < deadline, page.problems
            time.sleep(0.05)
        assert page.evaluate(
            "document.querySelector('.md-search-result__list').textContent.includes('cbsa.ops')"
        )
        assert page.evaluate("document.querySelector('div.formula math').getBoundingClientRect().height > 20")
        assert page.problems == []
        assert {url.split(":")[0] for url in page.requests} <= {"file", "data"}
        assert any("stix-two-math" in url for url in page.requests)
    finally:
        page.close()
