"""Entries that start from trained ones, analyses of them, and the tables: one folder of manifests."""

import json
import os
import signal
import statistics
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from cbsa.cli.inside import call_inside
from cbsa.cli.study import folders_of
from cbsa.experiments import transfer
from cbsa.experiments.study_table import lines_of
from cbsa.studies.manifest import read_studies, read_study
from cbsa.studies.overview import expected_seconds, seconds_taken
from cbsa.studies.place import Place
from cbsa.studies.queue import choose_jobs, data_needed, work_through
from cbsa.studies.records import Records
from tests.commands import answer

SMALL = """
recipe = "digits_cbt"
data = "digits"
settings = ["data.img_size=16", "augment.padding=2", "epochs=1", "batch_size=480", "schedule.warmup_epochs=0"]
"""
BASE = f"""
title = "Digits"
order = 1
{SMALL}
[[entries]]
name = "cbsa"
label = "CBSA-T"
settings = ["model.kwargs.embed_dim=16", "model.kwargs.depth=1", "model.kwargs.num_heads=2"]
extra_seeds = [1]
"""
MOVED = f"""
title = "Digits again"
order = 2
table = "table-transfer"
{SMALL}
[[entries]]
name = "again"
label = "CBSA-T"
start_from = "base/cbsa"
settings = ["optimizer.lr=1e-30", "optimizer.weight_decay=0"]

[[analyses]]
name = "rate"
command = "fig-coding-rate"
models = ["base/cbsa", "again"]
options = ["--images", "4", "--device", "cpu"]

[[analyses]]
name = "wrong"
command = "fig-coding-rate"
models = ["base/cbsa"]
options = ["--images", "4", "--eps", "0"]

[[analyses]]
name = "throughput"
command = "table-throughput"
gpu = true
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    home = tmp_path_factory.mktemp("manifests")
    (home / "base.toml").write_text(BASE)
    (home / "moved.toml").write_text(MOVED)
    return home


@pytest.fixture(scope="module")
def finished(folder, tmp_path_factory, one_thread_throughout):
    """Both studies worked through, but for what is extra."""
    home = tmp_path_factory.mktemp("studies")
    place = Place(home / "out", home / "work")
    jobs = [job for job in choose_jobs(read_studies(str(folder))) if not job.is_extra]
    assert work_through(jobs[::-1], place, runner=call_inside)  # those that wait are passed over at first
    return jobs, place


def named(jobs, name):
    return next(job for job in jobs if job.name == name)


def test_it_starts_from_the_weights(finished):
    """With a learning rate of next to nothing they stay as they were, but for the stem's statistics."""
    jobs, place = finished
    runs = [named(jobs, name) for name in ("base/cbsa/seed0", "moved/again/seed0")]
    before, after = (load_file(place.run(run) / "model" / "model.safetensors") for run in runs)
    for name in (name for name in before if "running_" not in name and "num_batches" not in name):
        assert torch.equal(before[name], after[name]), name
    first, again = (place.records.find(run) for run in runs)
    assert again.config.model.weights == "WORK/base/cbsa/seed0"
    assert again.config.model.kwargs == first.config.model.kwargs
    assert str(place.work) not in (place.out / "moved/again/seed0.json").read_text()


def test_analyses_are_kept_with_their_command(finished):
    jobs, place = finished
    record = place.records.find(named(jobs, "moved/rate/analyse"))
    assert record.status == "done"
    assert record.result["files"] == ["fig-coding-rate.csv", "fig-coding-rate.json"]
    assert record.command == (
        "cbsa reproduce fig-coding-rate --model CBSA-T=WORK/base/cbsa/seed0 "
        "--model CBSA-T=WORK/moved/again/seed0 --data digits --images 4 --device cpu --out FOLDER"
    )
    assert (place.work / "moved/rate/analyse/fig-coding-rate.png").is_file()
    kept = json.loads((place.out / "moved/rate/fig-coding-rate.json").read_text())
    assert kept["command"].startswith("cbsa reproduce fig-coding-rate --model")
    rows = {row["job"]: row for row in json.loads((place.out / "manifest.json").read_text())["jobs"]}
    assert rows["moved/rate/analyse"]["models"] == ["base/cbsa/seed0", "moved/again/seed0"]
    assert rows["moved/again/seed0"]["start_from"] == "base/cbsa/seed0"


def test_an_analysis_that_fails_says_why(finished):
    jobs, place = finished
    record = place.records.find(named(jobs, "moved/wrong/analyse"))
    assert record.status == "failed"
    assert "eps" in record.reason
    assert "eps" in (place.work / "moved/wrong/analyse/log.txt").read_text()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_what_needs_a_gpu_is_left_out_elsewhere(finished):
    jobs, place = finished
    assert place.status(named(jobs, "moved/throughput/analyse")) == "needs a GPU"


def test_results_are_enough_but_for_weights(finished, tmp_path):
    """On another machine, say, where the runs are gone."""
    jobs, place = finished
    elsewhere = Place(place.out, tmp_path / "work")
    assert work_through(jobs, elsewhere)  # all is done: nobody asks for weights
    wanted = named(jobs, "moved/again/seed0")
    fresh = Place(tmp_path / "out", tmp_path / "work")
    (tmp_path / "out/base/cbsa").mkdir(parents=True)
    (tmp_path / "out/base/cbsa/seed0.json").write_bytes((place.out / "base/cbsa/seed0.json").read_bytes())
    with pytest.raises(
        FileNotFoundError, match=r"the weights of base/cbsa/seed0 are needed.*remove .*seed0.json"
    ):
        work_through([wanted], fresh)


def test_it_waits_for_the_run_it_starts_from(finished, tmp_path):
    jobs, _ = finished
    place, said = Place(tmp_path / "out", tmp_path / "work"), Console(record=True, width=300)
    wanted = [named(jobs, "moved/again/seed0"), named(jobs, "moved/rate/analyse")]
    assert not work_through(wanted, place, console=said, runner=call_inside)
    told = said.export_text()
    assert "moved/again/seed0 waits for base/cbsa/seed0" in told
    assert "moved/rate/analyse waits for base/cbsa/seed0, moved/again/seed0" in told
    assert [place.status(job) for job in wanted] == ["waiting for others"] * 2
    assert data_needed(wanted, place) == ["digits"]


def test_results_of_other_commands_are_not_mixed(finished, tmp_path):
    _, place = finished
    (tmp_path / "base.toml").write_text(BASE)
    (tmp_path / "moved.toml").write_text(
        MOVED.replace('"--images", "4", "--device"', '"--images", "5", "--device"')
    )
    with pytest.raises(
        ValueError, match=r"analyse.json is a result of other settings \(the command differ\)"
    ):
        work_through(choose_jobs(read_studies(str(tmp_path)), ["rate"]), place, runner=call_inside)


def test_the_end_of_the_time_ends_an_analysis_and_the_next_call_begins_it_anew(finished):
    jobs, place = finished
    job = named(jobs, "moved/rate/analyse")
    kept = place.records.path(job).read_bytes()
    place.records.path(job).unlink()
    tries = []

    def stopped(words, log):
        tries.append(words)
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("it went on")

    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    said = Console(record=True, width=300)
    assert not work_through([job], place, console=said, runner=stopped)
    assert (
        "moved/rate/analyse was stopped by signal 15; the same command begins it anew" in said.export_text()
    )
    assert place.status(job) == "to do"
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    place.records.path(job).write_bytes(kept)
    assert work_through([job], place, runner=stopped)
    assert len(tries) == 1


def test_expected_time_is_that_of_the_speeds_so_far(finished, folder):
    _, place = finished
    jobs = choose_jobs(read_studies(str(folder)))
    record = place.records.find(named(jobs, "base/cbsa/seed0"))
    speeds = [
        place.records.find(named(jobs, name)).result["images_per_second"]
        for name in ("base/cbsa/seed0", "moved/again/seed0")
    ]
    assert expected_seconds(jobs, place) == {"base/cbsa/seed1": 1438 / statistics.median(speeds)}
    assert seconds_taken(record) == record.result["seconds"]
    code, output = answer("study", folder, "--list", "--out", place.out, "--work", place.work)
    assert code == 0
    assert "1 jobs are left: about 0 minutes for 1 of them" in output


def test_the_table_has_the_papers_numbers_beside_ours(finished, folder):
    jobs, place = finished
    study = read_study(str(folder / "moved.toml"))
    lines = lines_of(study, place.records)
    (row,) = transfer.rows_of(study, lines, place.records)
    top1, again = (
        place.records.find(named(jobs, name)).result["top1"]
        for name in ("base/cbsa/seed0", "moved/again/seed0")
    )
    assert (row.data, row.pretrained, list(row.lines)) == ("digits", {0: top1}, ["digits"])
    (grid,) = transfer.grids(study, lines, [row])
    cells = dict(zip(grid.columns, grid.cells[0], strict=True))
    assert (cells["digits: pretrained"], cells["digits %"]) == (f"{top1:.2f}", f"{again:.2f}")
    assert cells["paper: ImageNet-1k %"] == "63.2"
    real = read_study("transfer")
    empty = transfer.run(real, place.out)[1][0]
    shown = {cells[0]: dict(zip(empty.columns, cells, strict=True)) for cells in empty.cells}
    assert list(shown) == [f"{m}-{s}" for s in "TS" for m in ("CBSA", "MSSA", "TSSA", "ViT", "CRATE+CBT")]
    paper = {name: (cells["paper: CIFAR-10 %"], cells["paper: Pets %"]) for name, cells in shown.items()}
    assert (paper["CBSA-T"], paper["CBSA-S"]) == (("94.8", "86.8"), ("96.3", "91.6"))
    assert paper["MSSA-T"] == ("", "")
    assert "Rates not tuned for themselves: CBSA-S (0.5 × that of CBSA-T)" in empty.notes[0]
    with pytest.raises(ValueError, match="starts from no other"):
        transfer.run(read_study("fair"), place.out)


def test_the_laboratory_goes_on_and_shows_the_tables(finished, folder):
    _, place = finished
    words = ("reproduce", "all", "--scale", "laboratory", "--studies", folder)
    where = ("--out", place.out, "--work", place.work)
    code, output = answer(*words, *where, "--limit", "1e-6")
    assert code == 143  # the extra seed is left
    assert "1 to do" in output
    code, output = answer(*words, *where)
    assert code == 0
    assert "Table CBT_tab: Digits again" in output
    found = json.loads((place.out / "tables/moved/table-transfer.json").read_text())
    assert found["paper"]["top1"]["CBSA-T"]["pets"] == 86.8
    assert Records(place.out).path(choose_jobs(read_studies(str(folder)))[-1]).is_file()


def test_missing_data_sets_are_named_before_any_time_is_spent(tmp_path):
    where = ("--out", tmp_path / "out", "--work", tmp_path / "work")
    code, output = answer("reproduce", "all", "--scale", "laboratory", *where)
    assert code == 2
    assert "--data tiny-imagenet=FOLDER --data cifar10=FOLDER --data pets=FOLDER" in output
    assert not (tmp_path / "out").exists()
    code, output = answer("study", "fair", *where)
    assert code == 2
    assert "need tiny-imagenet: add --data tiny-imagenet=FOLDER" in output
    code, output = answer("reproduce", "all", "--limit", "5")
    assert code == 2
    assert "go with --scale pocket and laboratory" in output
    code, output = answer("reproduce", "all", "--scale", "pocket", *where)
    assert code == 2
    assert "need cifar10: add --data cifar10=FOLDER" in output


def test_scales_keep_to_folders_of_their_own(tmp_path):
    given = tmp_path / "out"
    assert folders_of("fair", None, None) == (Path("outputs/studies"), Path("outputs/studies-work"))
    assert folders_of("pocket", None, None) == (Path("outputs/pocket"), Path("outputs/pocket-work"))
    assert folders_of("pocket/gap", None, None) == folders_of("pocket", None, None)
    assert folders_of("pocket", given, None) == (given, Path("outputs/pocket-work"))
