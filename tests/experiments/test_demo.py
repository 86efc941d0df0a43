"""The demo: a run and a page about it, from one command."""

import base64
import io
import json
import re

import pytest
from PIL import Image
from typer.testing import CliRunner

from cbsa.cli import app
from cbsa.experiments.demo import write_demo_page

TINY = ["model.kwargs.embed_dim=16", "model.kwargs.depth=1", "model.kwargs.num_heads=2", "epochs=1"]


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo")
    result = CliRunner().invoke(app, ["demo", *TINY, "-o", str(out)], env={"COLUMNS": "400"})
    assert result.exit_code == 0, result.output
    return out, result.output


def test_the_page_holds_its_pictures(demo):
    out, _ = demo
    page = (out / "index.html").read_text()
    pictures = re.findall(r'src="data:image/(png|svg\+xml);base64,([^"]+)"', page)
    assert len(pictures) >= 5
    for kind, content in pictures:
        data = base64.b64decode(content, validate=True)
        if kind == "png":
            image = Image.open(io.BytesIO(data))
            assert min(image.size) > 50
            assert len(image.convert("RGB").getcolors(1 << 24)) > 5, "an empty picture"
        else:
            assert b"<svg" in data
    assert "http://" not in re.sub(r"http://www\.w3\.org", "", page)


def test_the_page_says_what_the_run_came_to(demo):
    out, said = demo
    summary = json.loads((out / "run" / "summary.json").read_text())
    page = (out / "index.html").read_text()
    accuracy = f"{summary['top1']:.2f} %"
    assert accuracy in page
    assert f"Test accuracy {accuracy} on {summary['evaluated_images']} images" in said
    assert f"Open {(out / 'index.html').resolve()}" in said
    assert f"Open {(out / 'explorer.html').resolve()} to look into a CBT" in said
    assert '"source":"cbt_tiny_patch4_32.cifar10"' in (out / "explorer.html").read_text()
    wrong = round(summary["evaluated_images"] * (1 - summary["top1"] / 100))
    assert f"{wrong} of {summary['evaluated_images']} test images are misread" in page


def test_a_finished_demo_writes_its_page_again(demo):
    out, _ = demo
    before = (out / "index.html").read_bytes()
    (out / "index.html").unlink()
    result = CliRunner().invoke(app, ["demo", *TINY, "-o", str(out)], env={"COLUMNS": "400"})
    assert result.exit_code == 0, result.output
    assert "holds a finished run: nothing to do" in result.output
    assert (out / "index.html").read_bytes() == before


def test_a_run_that_is_not_finished_is_refused(demo, tmp_path):
    out, _ = demo
    (tmp_path / "config.json").write_text((out / "run" / "config.json").read_text())
    with pytest.raises(ValueError, match="is not finished: run the same command again, it goes on"):
        write_demo_page(tmp_path, tmp_path / "page")
    assert not (tmp_path / "page").exists()
    with pytest.raises(FileNotFoundError, match="it is not the folder of a run"):
        write_demo_page(tmp_path / "nowhere", tmp_path / "page")
