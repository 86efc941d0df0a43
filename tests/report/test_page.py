"""The page: one file, nothing from elsewhere, every text escaped, every figure described."""

import base64
from html.parser import HTMLParser

import pytest
import torch
from matplotlib.figure import Figure

from cbsa.report import Picture, Section, plot_confusion, write_page

EVIL = "<script>alert('1')</script> & \"quotes\" {braces}"
VOID = {"meta", "img"}


class Reader(HTMLParser):
    """Elements with their attributes, the text of each kind of element, and whether tags are balanced."""

    def __init__(self):
        super().__init__()
        self.elements, self.texts, self.open = [], {}, []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


def read(path):
    reader = Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    assert not reader.open
    return reader


def curve():
    figure = Figure(figsize=(4, 2))
    figure.add_subplot().plot([1, 2])
    return figure


@pytest.fixture
def page(tmp_path):
    picture = tmp_path / "own.png"
    curve().savefig(picture)
    sections = [
        Section(EVIL, f"First {EVIL}\n\nSecond", [Picture(curve(), EVIL), Picture(curve(), "caption", EVIL)]),
        Section("Plain", figures=[plot_confusion(torch.eye(2), ["<a>", "b"]), picture], facts=[(EVIL, EVIL)]),
    ]
    return write_page(tmp_path / "deep" / "folder", EVIL, [(EVIL, EVIL)], sections, lead=EVIL)


def test_every_text_is_escaped(page):
    reader = read(page)
    assert page.name == "index.html"
    assert not reader.all("script")
    for tag in ("title", "h1", "h2", "dt", "dd", "a", "figcaption"):
        assert EVIL in "".join(reader.texts[tag]), tag
    assert [text.strip() for text in reader.texts["p"]] == [EVIL, f"First {EVIL}", "Second"]


def test_every_figure_is_embedded_and_described(page):
    images = read(page).all("img")
    assert [image["alt"] for image in images] == [EVIL, EVIL, "Plain, figure 1", "Plain, figure 2"]
    heads = [image["src"].split(",")[0] for image in images]
    kinds = ["svg+xml", "svg+xml", "png", "png"]  # vectors, unless the figure holds pictures
    assert heads == [f"data:image/{kind};base64" for kind in kinds]
    contents = [base64.b64decode(image["src"].split(",")[1], validate=True) for image in images]
    assert all(b"<svg" in data for data in contents[:2])
    assert all(data.startswith(b"\x89PNG") for data in contents[2:])
    assert contents[3] == (page.parents[2] / "own.png").read_bytes()


def test_nothing_comes_from_elsewhere(page):
    reader = read(page)
    for _, attributes in reader.elements:
        for name in ("src", "href", "srcset", "action"):
            assert (attributes.get(name) or "#").startswith(("data:", "#"))
    style = "".join(reader.texts["style"])
    assert "url(" not in style
    assert "@import" not in style
    assert not reader.all("link")
    assert [path.name for path in page.parent.iterdir()] == ["index.html"]


def test_links_lead_to_sections(page):
    reader = read(page)
    assert [a["href"] for a in reader.all("a")] == [f"#{s['id']}" for s in reader.all("section")]


def test_readable_on_phones_in_the_dark_and_on_paper(page):
    reader = read(page)
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in reader.all("meta")
    style = "".join(reader.texts["style"])
    assert "prefers-color-scheme: dark" in style
    assert "@media print" in style
    assert reader.all("html") == [{"lang": "en"}]


def test_same_inputs_same_bytes(tmp_path):
    pages = [
        write_page(tmp_path / name, "t", [], [Section("s", figures=[curve()])]).read_bytes() for name in "ab"
    ]
    assert pages[0] == pages[1]


def test_the_least_page(tmp_path):
    reader = read(write_page(tmp_path, "t", [], []))
    assert not reader.all("nav")
    assert not reader.all("dl")


def test_images_must_be_of_a_known_kind(tmp_path):
    with pytest.raises(ValueError, match=r"image .*x\.tiff must be one of \.png, \.svg"):
        write_page(tmp_path, "t", [], [Section("s", figures=[tmp_path / "x.tiff"])])


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="cannot write into"):
        write_page(tmp_path / "file", "t", [], [])
