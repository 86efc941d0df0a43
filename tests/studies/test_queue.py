"""The queue: it stops in time, goes on in mid-training, keeps failures, and refuses to mix results."""

import csv
import dataclasses
import json

import pytest
import torch
from rich.console import Console

from cbsa.experiments import fair, options
from cbsa.experiments.study_table import Line, lines_of
from cbsa.studies import queue
from cbsa.studies.manifest import jobs_of, read_study
from cbsa.studies.overview import describe_jobs
from cbsa.studies.place import Place
from cbsa.studies.queue import choose_jobs, work_through
from cbsa.studies.tuning import rate_of
from cbsa.train import NonFiniteError, train
from cbsa.train.log import read_epochs
from tests.commands import answer
from tests.studies.small import MANIFEST, write_manifest

pytestmark = pytest.mark.usefixtures("one_thread_throughout")


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    return write_manifest(tmp_path_factory.mktemp("manifest"))


@pytest.fixture(scope="module")
def finished(manifest, tmp_path_factory):
    """The small study, worked through."""
    home = tmp_path_factory.mktemp("study")
    study = read_study(str(manifest))
    place = Place(home / "out", home / "work")
    assert work_through(jobs_of(study), place)
    return study, place


def test_rates_are_chosen_on_the_images_held_out(finished):
    study, place = finished
    tuning, (cbsa, mssa, *_) = jobs_of(study)[:2], jobs_of(study)[2:6]
    found = {job.rate: place.records.find(job) for job in tuning}
    assert all(record.config.data.holdout == 0.2 for record in found.values())
    assert all(record.result["evaluated_images"] == 287 for record in found.values())
    best = max(found, key=lambda rate: found[rate].result["top1"])
    assert rate_of(cbsa, place.records).value == place.records.find(cbsa).config.optimizer.lr == best
    assert place.records.find(mssa).config.optimizer.lr == best / 2
    assert place.records.find(cbsa).result["evaluated_images"] == 359


def test_what_is_kept_is_small_and_whole(finished):
    study, place = finished
    job = jobs_of(study)[2]
    files = {path.relative_to(place.out).as_posix() for path in place.out.rglob("*") if path.is_file()}
    assert {"small/cbsa/seed0.json", "small/cbsa/seed0.csv", "manifest.json"} <= files
    assert sum((place.out / name).stat().st_size for name in files) < 60_000
    content = json.loads((place.out / "small/cbsa/seed0.json").read_text())
    summary = json.loads((place.run(job) / "summary.json").read_text())
    assert content["result"]["top1"] == summary["top1"]
    assert "classes" not in content["result"]
    assert content["result"]["num_classes"] == 10
    assert str(place.work) not in json.dumps(content)
    with open(place.out / "small/cbsa/seed0.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["val_top1"]) for row in rows] == [r["val_top1"] for r in read_epochs(place.run(job))]


def test_the_manifest_names_everything(finished):
    study, place = finished
    rows = json.loads((place.out / "manifest.json").read_text())["jobs"]
    assert rows == json.loads(json.dumps(describe_jobs(jobs_of(study), place)))
    assert {row["status"] for row in rows} == {"done"}
    for row in rows:
        assert (place.out / row["result"]).is_file()
        assert {"model", "recipe", "settings", "seed", "command", "learning_rate"} <= set(row)


def test_results_are_enough_to_know_what_is_done(finished, tmp_path):
    """On another machine, say, where the runs are gone."""
    study, place = finished
    elsewhere = Place(place.out, tmp_path / "work")
    assert work_through(jobs_of(study), elsewhere)
    assert not any((tmp_path / "work").iterdir())


def test_results_of_other_settings_are_not_mixed(finished):
    study, place = finished
    with pytest.raises(ValueError, match=r"seed0.json is a result of other settings \(epochs differ\)"):
        work_through(jobs_of(study)[2:3], Place(place.out, place.work, ("epochs=5",)))
    assert work_through(jobs_of(study)[2:3], Place(place.out, place.work, ("data.workers=1",)))


def test_it_stops_in_time_and_goes_on_exactly_where_it_was(manifest, tmp_path, monkeypatch):
    """Stopped in the middle of a run, the result has the same bits as without."""
    study = read_study(str(manifest))
    jobs = jobs_of(study)[:1]
    place, whole = (
        Place(tmp_path / name / "out", tmp_path / name / "work", ("epochs=3",)) for name in ("cut", "whole")
    )
    said = Console(record=True, width=300)
    monkeypatch.setattr("cbsa.studies.clock._AGAIN", 0.01)
    with monkeypatch.context() as patch:
        patch.setattr(queue.Clock, "is_over", False)  # begun, and asked to stop at once
        assert not work_through(jobs, place, seconds=1e-6, console=said)
    assert "the same command goes on from here" in said.export_text()
    assert place.status(jobs[0]) == "begun"
    assert not place.records.path(jobs[0]).exists()
    assert not work_through(jobs, place, seconds=1e-9)  # the time is over before it begins
    assert work_through(jobs, place)
    assert work_through(jobs, whole)
    results = [p.records.find(jobs[0]).result for p in (place, whole)]
    for name in ("top1", "loss", "best_top1", "steps"):
        assert results[0][name] == results[1][name]


def test_failures_are_kept_listed_and_not_tried_again(manifest, tmp_path, monkeypatch):
    study = read_study(str(manifest))
    jobs, place = jobs_of(study)[:4], Place(tmp_path / "out", tmp_path / "work")
    tries = []

    def fail(config, folder, **kwargs):
        tries.append(config.optimizer.lr)
        if config.optimizer.lr == 4e-3:
            raise NonFiniteError("the loss is nan at step 3\nmore of it")
        return train(config, folder, **kwargs)

    monkeypatch.setattr(queue, "train", fail)
    assert work_through(jobs[:2], place)
    failed = place.records.find(jobs[1])
    assert (failed.status, failed.reason) == ("failed", "NonFiniteError: the loss is nan at step 3")
    assert rate_of(jobs[2], place.records).value == 1e-3  # of those that did not fail
    assert work_through(jobs[:2], place)
    assert tries == [1e-3, 4e-3]
    assert work_through(jobs[:2], place, retry=True)
    assert tries == [1e-3, 4e-3, 4e-3]
    code, output = answer("study", manifest, "--list", "--out", place.out, "--work", place.work)
    assert code == 0
    assert "small/cbsa/rate0.004 0.004 failed NonFiniteError: the loss is nan at step 3" in output


@pytest.mark.parametrize("error", [AssertionError("in a compiler"), torch.OutOfMemoryError("")])
def test_whatever_breaks_a_job_costs_this_job_alone(manifest, tmp_path, monkeypatch, error):
    def fail(*arguments, **kwargs):
        raise error

    monkeypatch.setattr(queue, "train", fail)
    jobs, place = jobs_of(read_study(str(manifest)))[:2], Place(tmp_path / "out", tmp_path / "work")
    assert work_through(jobs, place)
    assert [place.status(job) for job in jobs] == ["failed", "failed"]
    assert place.records.find(jobs[0]).reason in ("AssertionError: in a compiler", "out of memory")
    later = jobs_of(read_study(str(manifest)))[2]
    assert place.status(later) == "waiting for others"  # of those that failed


def test_a_job_waits_for_its_rate(manifest, tmp_path):
    study = read_study(str(manifest))
    place, said = Place(tmp_path / "out", tmp_path / "work"), Console(record=True, width=300)
    assert not work_through(choose_jobs([study], ["mssa/seed0"]), place, console=said)
    assert "small/mssa/seed0 waits for small/cbsa/rate0.001, small/cbsa/rate0.004" in said.export_text()
    assert place.status(choose_jobs([study], ["mssa/seed0"])[0]) == "waiting for others"


def test_jobs_are_chosen_by_pattern_and_seeds(manifest):
    study = read_study(str(manifest))
    names = [f"{job.entry.name}/{job.variant}" for job in choose_jobs([study], ["*/seed0", "cbsa/rate*"])]
    assert names == ["cbsa/rate0.001", "cbsa/rate0.004", "cbsa/seed0", "mssa/seed0"]
    assert not any(job.variant == "seed1" for job in choose_jobs([study], seeds=1))
    assert {job.entry.name for job in choose_jobs([study], ["mssa"])} == {"mssa"}
    with pytest.raises(ValueError, match="--only tssa: no job is called so; the entries are cbsa, mssa"):
        choose_jobs([study], ["tssa"])


def test_jobs_that_studies_share_come_once():
    names = [job.name for job in choose_jobs([read_study(name) for name in ("gap", "ablations")])]
    assert len(set(names)) == len(names)
    assert "gap/cbsa/seed0" in names


def test_the_table_has_means_spreads_and_differences(finished):
    study, place = finished
    cbsa, mssa = lines_of(study, place.records)
    tops = [place.records.find(job).result["top1"] for job in jobs_of(study)[2:6]]  # cbsa, mssa, cbsa, mssa
    assert list(cbsa.top1.values()) == tops[::2]
    assert list(mssa.difference.values()) == [tops[1] - tops[0], tops[3] - tops[2]]
    assert (cbsa.missing, cbsa.failed) == ((), {})
    assert min(cbsa.training_images_s, cbsa.inference_images_s, cbsa.run_images_s) > 0
    accuracy, costs = fair.grids(study, [cbsa, mssa])
    mean = sum(tops[::2]) / 2
    spread = (((tops[0] - mean) ** 2 + (tops[2] - mean) ** 2) / 1) ** 0.5
    row = dict(zip(accuracy.columns, accuracy.cells[0], strict=True))
    assert row["top-1 %"] == f"{mean:.2f} ± {spread:.2f}"
    assert row["paper: top-1 %"] == "63.2"
    assert dict(zip(costs.columns, costs.cells[0], strict=True))["paper: similarities"] == "0.53 M"
    table, _ = options.grids(study, [cbsa, mssa])
    assert table.cells[1][4] == "1"  # beside the first row
    assert any("edge" in note for note in accuracy.notes)


def test_the_table_has_the_rank_of_the_extraction_where_it_was_measured(finished, tmp_path):
    study, place = finished
    lines, plain = options.run(study, place.out)
    assert "rank of A" not in plain[0].columns
    (tmp_path / "small" / "rank").mkdir(parents=True)
    path = tmp_path / "small" / "rank" / "fig-rank.csv"
    path.write_text(
        "model,layer,head,init,rank,effective_rank,maximum\n"
        "CBSA-T,0,0,pool,16,7.5,16\nCBSA-T,0,1,pool,15,6.5,16\n"
    )
    table, _ = options.grids(study, lines, options.ranks_of(study, tmp_path))
    rows = {cells[0]: dict(zip(table.columns, cells, strict=True)) for cells in table.cells}
    measured = next(row for name, row in rows.items() if name.endswith("CBSA-T"))
    assert (measured["rank of A"], measured["effective"]) == ("15.5 of 16", "7.0")
    assert [row["rank of A"] for row in rows.values()].count("") == len(rows) - 1
    path.write_text("model,layer\nCBSA-T,0\n")
    with pytest.raises(ValueError, match=r"fig-rank\.csv is not what cbsa reproduce fig-rank writes"):
        options.ranks_of(study, tmp_path)


def test_tables_say_what_is_missing(manifest, tmp_path):
    code, output = answer(
        *("reproduce", "table-fair", "--study", manifest, "--results", tmp_path / "none"),
        *("--out", tmp_path / "table"),
    )
    assert code == 0
    assert "Missing 6 of the jobs: small/cbsa/seed0, small/cbsa/seed1, small/cbsa/speed" in output
    assert "CBSA-T" in output
    found = json.loads((tmp_path / "table" / "table-fair.json").read_text())
    assert found["lines"][0]["parameters"] == 2614
    assert found["paper"]["CBSA-T"]["top1"] == 63.2
    assert (tmp_path / "table" / "table-fair.md").read_text().startswith("### Table fair_comp: Digits")


def test_the_command(manifest, tmp_path):
    where = ("--out", tmp_path / "out", "--work", tmp_path / "work")
    code, output = answer("study", manifest, "epochs=1", "--only", "cbsa/rate*", "--limit", "300", *where)
    assert code == 0, output
    assert "2 done. Results:" in output
    code, output = answer("study", manifest, "--only", "mssa/seed*", "--limit", "1e-6", *where)
    assert code == 143
    assert "2 to do" in output
    code, output = answer("study", manifest, "epochs=1", "--list", *where)
    assert code == 0
    assert "small/mssa/seed0" in output


def test_the_list_of_studies():
    code, output = answer("study")
    assert code == 0
    assert "table fair_comp" in output
    assert "ablations" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fare",), "did you mean 'fair'"),
        (("fair", "--only", "cbsa-x"), "no job is called so"),
        (("fair", "epochz=3", "--only", "cbsa-t/speed"), "did you mean epochs"),
        (("fair", "--data", "/no/such/folder", "--only", "cbsa-t/rate0.0004"), "/no/such/folder"),
    ],
)
def test_mistakes_are_named(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, output = answer("study", *arguments)
    assert code == 2
    assert message in output


def test_a_study_needs_no_tuning(tmp_path):
    start, stop = MANIFEST.index("[tuning]"), MANIFEST.index("[[entries]]")
    text = (MANIFEST[:start] + MANIFEST[stop:]).replace('tuned_like = "cbsa"\nrate_factor = 0.5', "")
    study = read_study(str(write_manifest(tmp_path, text)))
    job = jobs_of(study)[0]
    place = Place(tmp_path / "out", tmp_path / "work")
    assert (job.variant, rate_of(job, place.records).value) == ("seed0", None)
    assert job.config(None).optimizer.lr == 2e-3  # the recipe's


def test_the_order_is_compared_with_the_papers():
    empty = {field.name: None for field in dataclasses.fields(Line)}

    def lines(**tops):
        names = {name.replace("_", "-"): top for name, top in tops.items()}
        return [Line(**empty | {"label": n, "paper": n, "top1": {0: top}}) for n, top in names.items()]

    same = lines(MSSA_T=48.0, Agent_T=47.0, CBSA_T=46.0, TSSA_T=40.0, MSSA_S=50.0)
    assert fair.verdicts(same) == ("Order by top-1: MSSA-T > Agent-T > CBSA-T > TSSA-T: the paper's order",)
    other = lines(CBSA_T=49.0, MSSA_T=48.0, Agent_T=47.0, TSSA_T=40.0)
    (told,) = fair.verdicts(other)
    assert told.startswith("Order by top-1: CBSA-T > MSSA-T > Agent-T > TSSA-T: the paper has MSSA-T >")
    assert fair.verdicts(same[:3]) == ()
    small = [dataclasses.replace(line, label=f"small {line.label}") for line in same]
    assert "small MSSA-T > small Agent-T" in fair.verdicts(small)[0]  # a row stands beside another's name
