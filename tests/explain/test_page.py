"""The page as a file: self-contained, escaped, under a policy that forbids all else."""

import base64
import hashlib
import json
import os
import re
from importlib import resources

import pytest

from cbsa.explain import write_explorer
from cbsa.explain.page import _SCRIPTS, _STYLES
from tests.explain.pages import HOSTILE, picture, subject
from tests.report.test_page import Reader


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    name = HOSTILE.replace("/", "_")
    models = [subject(classes=[HOSTILE, "b", "c", "d"], name=HOSTILE), subject("mssa", name="Soft")]
    return write_explorer(
        [picture(folder / name), picture(folder / "b.png")], models, folder / "x" / "page.html"
    )


class PageReader(Reader):
    """Knows the elements without an end that this page has."""

    def handle_starttag(self, tag, attrs):
        super().handle_starttag(tag, attrs)
        if tag in ("link", "input"):
            self.open.pop()


def read(path):
    reader = PageReader()
    reader.feed(path.read_text(encoding="utf-8"))
    assert not reader.open
    return reader


def script_of(text):
    return text[text.rindex("<script>") + len("<script>") : text.rindex("</script>")]


def test_policy_names_the_code_and_style_by_their_hashes(page):
    text = page.read_text(encoding="utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)[1]
    style = text[text.index("<style>") + 7 : text.index("</style>")]
    for part, kind in ((script_of(text), "script-src"), (style, "style-src")):
        digest = base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
        assert f"{kind} 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert "http" not in policy


def test_hostile_names_stay_text(page):
    reader = read(page)
    assert [a.get("type") for a in reader.all("script")] == ["application/json", *["text/plain"] * 4, None]
    assert not reader.all("img")
    index = json.loads(reader.texts["script"][0])
    assert index["images"][0]["name"] == HOSTILE.replace("/", "_")
    assert index["models"][0]["name"] == HOSTILE
    labels = [p["label"] for p in index["images"][0]["views"][0]["predictions"]]
    assert HOSTILE in labels
    assert HOSTILE in "".join(reader.texts["title"])


def test_nothing_comes_from_elsewhere(page):
    reader = read(page)
    for _, attributes in reader.elements:
        for name in ("src", "href", "srcset", "action"):
            assert (attributes.get(name) or "#").startswith(("data:", "#"))
    text = page.read_text(encoding="utf-8")
    for mark in ("url(", "@import", "innerHTML", "eval(", "document.write"):
        assert mark not in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")
    assert [path.name for path in page.parent.iterdir()] == ["page.html"]


def test_all_of_the_packages_files_are_in_it(page):
    files = {f.name for f in resources.files("cbsa.explain").iterdir() if f.name.endswith((".js", ".css"))}
    assert files == {*_SCRIPTS, *_STYLES}
    text = page.read_text(encoding="utf-8")
    for name in files:
        assert resources.files("cbsa.explain").joinpath(name).read_text(encoding="utf-8") in text


def test_same_inputs_same_bytes(tmp_path):
    image = picture(tmp_path / "a.png")
    pages = [
        write_explorer([image], ["cbt_tiny_patch4_32"], tmp_path / f"{i}.html").read_bytes() for i in (0, 1)
    ]
    assert pages[0] == pages[1]


def test_size_is_that_of_the_factors(tmp_path):
    """12 layers × 3 heads × 16 representatives × 65 tokens, a byte each, and little beside."""
    page = write_explorer([picture(tmp_path / "a.png")], ["cbt_tiny_patch4_32"], tmp_path / "a.html")
    factors = 12 * 3 * 16 * 65
    code = sum(len(resources.files("cbsa.explain").joinpath(n).read_bytes()) for n in (*_SCRIPTS, *_STYLES))
    assert page.stat().st_size < 4 / 3 * factors + code + 60_000


def test_names_that_are_no_text(tmp_path):
    path = picture(tmp_path / "a.png").rename(os.fsdecode(os.fsencode(tmp_path) + b"/\xffile.png"))
    said = []
    page = write_explorer([path], [subject(depth=1)], tmp_path / "a.html", say=said.append)
    assert "\ufffdile.png in Small" in page.read_text(encoding="utf-8")
    assert said == ["\ufffdile.png in Small"]


def test_another_size(tmp_path):
    page = write_explorer([picture(tmp_path / "a.png")], [subject(depth=1)], tmp_path / "a.html", size=40)
    index = json.loads(read(page).texts["script"][0])
    assert index["images"][0]["views"][0]["grid"] == [10, 10]
    assert index["models"][0] | {"size": 40, "own_size": [24, 24]} == index["models"][0]


def test_arguments_that_make_no_page(tmp_path):
    image, looked = picture(tmp_path / "a.png"), subject(depth=1)
    with pytest.raises(ValueError, match="no image given"):
        write_explorer([], [looked], tmp_path / "a.html")
    for count in (0, 5):
        with pytest.raises(ValueError, match=f"models must be 1 to 4, .* got {count}"):
            write_explorer([image], [looked] * count, tmp_path / "a.html")
    with pytest.raises(ValueError, match="is a folder: give the file to write"):
        write_explorer([image], [looked], tmp_path)
    with pytest.raises(ValueError, match="cannot write into"):
        write_explorer([image], [looked], image / "a.html")
    with pytest.raises(ValueError, match="size=3 is less than one patch of Small: give at least 4"):
        write_explorer([image], [looked], tmp_path / "a.html", size=3)
