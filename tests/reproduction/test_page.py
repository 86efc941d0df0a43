"""The pages: what is committed is what would be written, complete, and with commands that exist."""

import re
import shlex

import pytest
from typer.testing import CliRunner

from cbsa.cli import app, reproduce
from cbsa.reproduction.claim import HOLDS, NOT_HERE, NOT_YET, VERDICTS, judge
from cbsa.reproduction.claims import SUBJECTS
from cbsa.reproduction.page import report
from cbsa.reproduction.pictures import PICTURES
from cbsa.studies.manifest import scale_names, study_names
from cbsa.train.recipes import RECIPES
from tests.reproduction.made_up import put, put_run
from tests.test_package import ROOT

CLAIMS = [claim for claims in SUBJECTS.values() for claim in claims]
PAGE = ROOT / "docs" / "REPRODUCTION.md"
# All labels of tables and figures in the paper's source.
TABLES = ("complexities", "baseline", "CBT_tab", "fair_comp", "qual-seg", "qual-seg-layers", "wall-clock")
FIGURES = ("CBT", "complexity", "related_attn", "3d", "coding-rate", "reduced_cr", "attn_map", "segmentation")
FIGURES += ("vit-adapt", "reduced_cr_app")


def run(*arguments):
    ran = CliRunner().invoke(
        app, ["reproduce", "report", *map(str, arguments)], env={"COLUMNS": "200", "TERM": "dumb"}
    )
    return ran.exit_code, ran.output


def test_committed_pages_are_those_of_the_committed_results():
    code, output = run("--check", "--root", ROOT, "--out", PAGE)
    assert code == 0, f"{output}\ncbsa reproduce report"


def test_a_folder_without_results_is_no_reason_to_write_that_nothing_was_tested(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for arguments in ([], ["--check"]):
        code, output = run(*arguments)
        assert code == 2
        assert "no benchmarks/results" in output
        assert "--root" in output
    assert not list(tmp_path.iterdir())


def test_every_table_and_figure_has_a_row():
    places = " ".join(claim.where for claim in CLAIMS)
    for name in (*TABLES, *FIGURES):
        assert re.search(rf"(table|figure|tables|figures|and) {re.escape(name)}\b", places), name


def test_names_are_unique_and_verdicts_have_their_files():
    names = [claim.name for claim in CLAIMS]
    assert len(set(names)) == len(names)
    for claim in CLAIMS:
        judged = judge(claim, ROOT)
        assert judged.finding.verdict in VERDICTS
        if judged.finding.verdict not in (NOT_YET, NOT_HERE):
            assert judged.sources, claim.name
            assert judged.finding.measured, claim.name


def test_commands_exist():
    experiments = {command.name for command in reproduce.app.registered_commands}
    for command in [*(c for claim in CLAIMS for c in claim.commands), *(p.command for p in PICTURES)]:
        words = shlex.split(command)
        if words[:2] == ["cbsa", "reproduce"]:
            assert words[2] in experiments, command
        elif words[:2] == ["cbsa", "study"]:
            assert words[2] in (*study_names(), *scale_names()), command
        elif words[:2] == ["cbsa", "finetune"]:
            assert words[2] in RECIPES, command
        elif words[0] in ("python", "pytest"):
            assert (ROOT / words[1]).is_file(), command


def test_links_lead_somewhere():
    for page in (PAGE, PAGE.with_name("reproduction_pictures.md")):
        text = page.read_text()
        for target in re.findall(r"\]\(([^)#]+)\)", text):
            assert (page.parent / target).is_file(), target
        anchors = set(re.findall(r'<a id="([^"]+)">', text))
        assert set(re.findall(r"\]\(#([^)]+)\)", text)) == anchors


def test_every_committed_picture_of_results_is_shown():
    shown = {picture.path for picture in PICTURES}
    assert all((ROOT / path).is_file() for path in shown)
    there = {p.relative_to(ROOT).as_posix() for p in (ROOT / "benchmarks").rglob("*.png")}
    assert there <= shown, "add it to src/cbsa/reproduction/pictures.py"


@pytest.fixture
def results(tmp_path):
    snapshot = {"iteration": 1024, "off_line_per_class": [1e-6], "closest_lines_degrees": 30.0}
    snapshot["nearest_line_accuracy"] = 1.0
    content = {"config": {"classes": 10, "points": 5}, "snapshots": [snapshot]}
    put(tmp_path, "cpu/fig-3d.json", content)
    return tmp_path, content


def test_check_shows_what_changed(results):
    root, content = results
    page = root / "docs" / "PAGE.md"
    assert run("--root", root, "--out", page)[0] == 0
    assert run("--check", "--root", root, "--out", page)[0] == 0
    content["snapshots"][0]["off_line_per_class"] = [0.5]
    put(root, "cpu/fig-3d.json", content)
    before = page.read_text()
    code, output = run("--check", "--root", root, "--out", page)
    assert code == 1
    assert "-| [synthetic](#synthetic) | section 4.1, figure 3d | holds |" in output
    assert "+| [synthetic](#synthetic) | section 4.1, figure 3d | does not hold |" in output
    assert page.read_text() == before
    (page.with_name("reproduction_pictures.md")).unlink()
    assert "reproduction_pictures.md" in run("--check", "--root", root, "--out", page)[1]


def test_the_page_counts_and_lists_what_failed(results):
    root, _ = results
    assert "none of its runs has failed" in report(root, root / "PAGE.md")
    put_run(root, "fair/cbsa-t/seed0", 45.0)
    put_run(root, "gap/cbsa/seed1")
    put(root, "studies/analyses/rank/fig-rank.json", {"no": "record"})
    text = report(root, root / "PAGE.md")
    assert f"| {HOLDS} | 1 |  |" in text
    assert "fair 1, gap 1. 1 of them failed." in text
    assert "| gap/cbsa/seed1 | the loss \\| is NaN | `cbsa train gap/cbsa/seed1` |" in text


def test_the_page_marks_verdicts_about_small_models(results):
    root, _ = results
    put_run(root, "fair/mssa-t/seed0", 60.0, scale="pocket")
    put_run(root, "fair/linear-t/seed0", 50.0, scale="pocket")
    text = report(root, root / "PAGE.md")
    assert f"| {HOLDS} | 2 | 1 |" in text
    assert "| [linear-below-softmax](#linear-below-softmax) | appendix A | holds (small) |" in text
    assert "pocket/fair 2" in text


def test_a_file_that_is_no_record_is_named(results):
    root, _ = results
    put(root, "studies/fair/cbsa-t/seed0.json", {"top1": 3})
    code, output = run("--root", root, "--out", root / "PAGE.md")
    assert code == 2
    assert "KeyError('status')" in output
    assert "benchmarks/results/studies/fair/cbsa-t/seed0.json" in output
