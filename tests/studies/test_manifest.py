"""Manifests: what they stand for, and mistakes in them."""

from collections import Counter

import pytest
import torch

from cbsa import paper
from cbsa.studies.manifest import (
    SPEED,
    TRAIN,
    TUNE,
    find_run,
    jobs_of,
    read_studies,
    read_study,
    runs_of,
    scale_names,
    speed_of,
    study_names,
    tuning_of,
)
from cbsa.studies.queue import choose_jobs
from cbsa.train import override
from cbsa.train.initial import build_model
from tests.studies.small import MANIFEST, write_manifest
from tests.test_package import ROOT, table_in

STUDIES = study_names()


def test_studies_of_the_package():
    assert STUDIES == ["fair", "transfer", "analyses", "gap", "ablations", "laptop"]
    assert [study.name for study in read_studies("all")] == STUDIES[:-1]  # the last is for a CPU
    assert scale_names() == ["pocket", "smoke"]
    assert [study.name for study in read_studies("pocket")] == ["fair", "gap", "ablations"]
    for name in ("fair", "pocket/fair"):
        assert read_study(name).reference == name


def test_in_a_pocket_all_take_the_rates_of_the_fair_comparison():
    fair, *others = read_studies("pocket")
    sources = {e.name: {job.name for job in tuning_of(runs_of(fair, e)[0])} for e in fair.entries}
    for study in others:
        for entry in (e for e in study.entries if not e.of):
            job = runs_of(study, entry)[0]
            twin = "mssa-t" if job.config(1e-3).model.name.startswith("crate") else "cbsa-t"
            assert {job.name for job in tuning_of(job)} == sources[twin], entry.name
    for entry in fair.entries:  # the paper's rows by name, and what is not of the paper without one
        assert entry.paper in paper.FAIR or not entry.paper


@pytest.mark.parametrize("name", [*STUDIES, "pocket/fair", "pocket/gap", "pocket/ablations"])
def test_every_model_of_a_study_can_be_made_and_trained(name):
    """All entries, narrow and shallow, through a forward and a backward pass."""
    study = read_study(name)
    for entry in (entry for entry in study.entries if not entry.start_from):
        job = runs_of(study, entry)[0]
        config = override(job.config(job.rate), ["model.kwargs.embed_dim=12", "model.kwargs.num_heads=2"])
        by_layer = "crate_cbt" in config.model.name or isinstance(config.model.kwargs.get("attention"), list)
        depth = [] if by_layer else ["model.kwargs.depth=1"]
        model = build_model(override(config, depth), 5)
        model(torch.randn(2, 3, config.data.img_size, config.data.img_size)).sum().backward()
        missing = [name for name, p in model.named_parameters() if p.grad is None]
        assert not missing, (entry.name, missing)


def test_the_documentation_counts_the_jobs():
    counts = {name: Counter(job.kind for job in jobs_of(read_study(name))) for name in STUDIES}
    told = {
        "fair": "{tune} runs that tune, {train} that count, 14 of them extra seeds, {speed} speeds",
        "transfer": "{tune} runs that tune, {train} that count",
        "analyses": "{analyse} analyses",
        "gap": "{train} runs, {speed} speeds",
        "ablations": "{train} runs, 3 of them shared with `gap`, {analyse} analysis",
        "laptop": "{train} runs",
    }
    rows = table_in((ROOT / "docs" / "studies.md").read_text(), "study | what")
    assert [name.strip("`") for name, _, _ in rows] == STUDIES
    for study, (_, _, cell) in zip(STUDIES, rows, strict=True):
        assert cell == told[study].format(**counts[study])


def test_fair_is_fair():
    """One recipe for all of a size: they differ in the model and the learning rate, nothing else."""
    study = read_study("fair")
    for group in ("T", "S"):
        settings = set()
        for entry in (e for e in study.entries if e.group[0] == group):
            config = runs_of(study, entry)[0].config(1e-3)
            settings.add(repr(override(config, ["model.name=x", "model.kwargs={}"])))
            assert (entry.seeds, entry.extra_seeds) == (((0, 1, 2), ()) if group == "T" else ((0,), (1, 2)))
        assert len(settings) == 1
    tuned = [job for job in jobs_of(study) if job.kind == TUNE]
    assert all(job.config(job.rate).data.holdout == 0.1 for job in tuned)
    assert {job.entry.name for job in tuned} == {e.name for e in study.entries if e.group[0] == "T"}


def test_transfer_starts_from_the_models_of_fair():
    study, fair = read_study("transfer"), read_study("fair")
    for entry in study.entries:
        (job,) = runs_of(study, entry)
        source = runs_of(fair, fair.entry(entry.start_from.removeprefix("fair/")))[0]
        assert job.start == source
        assert job.needs == (source,)
        config = job.config(None)
        assert config.model == source.config(None).model
        assert (config.data.img_size, config.data.dataset) == (64, job.data)
        assert source.label.startswith(entry.label)
        assert study.classes_of(entry) == {"cifar10": 10, "pets": 37}[job.data]
        command = job.command(None, ["data.root=/secret", f"model.weights=/secret/{source.name}"])
        assert f"model.weights=WORK/{source.name}" in command
        assert "/secret" not in command


def test_what_matters_most_comes_first():
    jobs = choose_jobs(read_studies("all"))
    names = [job.name for job in jobs]
    assert len(set(names)) == len(names)
    for place, job in enumerate(jobs):  # nothing waits for what comes after it
        assert not {run.name for run in job.needs} & set(names[place:])
    assert [job.is_extra for job in jobs] == sorted(job.is_extra for job in jobs)
    assert names.index("fair/cbsa-t/seed0") < names.index("transfer/cifar10-cbsa-t/seed0")
    assert names.index("transfer/cifar10-cbsa-t/seed0") < names.index("gap/cbsa/seed0")
    assert names[-1] == "fair/hybrid-s/seed2"


def test_the_run_of_the_same_seed_is_started_from(tmp_path):
    text = MANIFEST + '[[entries]]\nname = "more"\nstart_from = "cbsa"\nseeds = [1, 7]\n'
    study = read_study(str(write_manifest(tmp_path, text)))
    assert [run.start.name for run in runs_of(study, study.entry("more"))] == [
        "small/cbsa/seed1",
        "small/cbsa/seed0",
    ]
    assert find_run(study, "small/mssa/seed1").name == "small/mssa/seed1"


def test_jobs_come_in_the_order_in_which_a_table_fills(tmp_path):
    study = read_study(str(write_manifest(tmp_path)))
    assert [job.name for job in jobs_of(study)] == [
        *("small/cbsa/rate0.001", "small/cbsa/rate0.004", "small/cbsa/seed0", "small/mssa/seed0"),
        *("small/cbsa/seed1", "small/mssa/seed1", "small/cbsa/speed", "small/mssa/speed"),
    ]
    kinds = [job.kind for job in jobs_of(study)]
    assert kinds == [TUNE] * 2 + [TRAIN] * 4 + [SPEED] * 2
    mssa = study.entry("mssa")
    assert [job.name for job in tuning_of(runs_of(study, mssa)[0])] == [
        "small/cbsa/rate0.001",
        "small/cbsa/rate0.004",
    ]
    assert "--only mssa/speed" in speed_of(study, mssa).command(None)


def test_the_command_of_a_job_is_the_job(tmp_path):
    job = jobs_of(read_study(str(write_manifest(tmp_path))))[3]
    command = job.command(2e-3, ["data.root=/secret", "epochs=3"])
    assert command.startswith("cbsa train digits_cbt data.root=DATA ")
    assert "model.name=crate_tiny_patch4_32 optimizer.lr=0.002 seed=0 epochs=3" in command
    assert "/secret" not in command
    config = job.config(2e-3, ["epochs=3"])
    assert (config.model.name, config.optimizer.lr, config.epochs) == ("crate_tiny_patch4_32", 2e-3, 3)


def test_shared_entries_are_the_jobs_of_the_other_study():
    ablations = read_study("ablations")
    shared = [job.name for job in jobs_of(ablations) if job.study.name != "ablations"]
    assert shared == ["gap/cbsa/seed0", "gap/cbsa/seed1", "gap/cbsa/seed2"]
    assert set(shared) <= {job.name for job in jobs_of(read_study("gap"))}


def _analysis(command, models, data=""):
    return f'''
[[analyses]]
name = "look"
command = "{command}"
models = [{models}]
data = "{data}"
'''


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("title = ", "is not TOML"),
        (MANIFEST.replace("rates = ", "lrs = "), r"small.toml: unknown setting tuning.lrs"),
        (MANIFEST.replace("epochs=2", "epochz=2"), "did you mean epochs"),
        (MANIFEST.replace("data.holdout=0.2", "seed=3"), "tuning.settings has no data.holdout"),
        (MANIFEST.replace('tuned_like = "cbsa"', 'tuned_like = "cbsb"'), "did you mean 'cbsa'"),
        (MANIFEST.replace('tuned_like = "cbsa"', 'tuned_like = "mssa"'), "must name an entry whose rate is"),
        (MANIFEST.replace('tuned_like = "cbsa"', 'tuned_like = "laptop/cbsa-t"'), "whose rate is tuned"),
        (MANIFEST.replace('name = "mssa"', 'name = "cbsa"'), "entry 'cbsa': names are unique"),
        (MANIFEST.replace('name = "mssa"', 'name = "../mssa"'), "of letters, digits"),
        (MANIFEST[: MANIFEST.index("[[entries]]")] + "entries = []", "unknown setting tuning.entries"),
        (MANIFEST.replace("digits_cbt", "digits_cbb"), "did you mean 'digits_cbt'"),
        (MANIFEST + 'start_from = "cbsb"', "did you mean 'cbsa'"),
        (MANIFEST + 'start_from = "fare/cbsa-t"', "did you mean 'fair'"),
        (MANIFEST + 'start_from = "a/b/c/d"', "expected STUDY/ENTRY"),
        (MANIFEST + 'start_from = "mssa"', "mssa itself starts from another entry"),
        (MANIFEST + 'data = "digit"', "did you mean 'digits'"),
        (MANIFEST + _analysis("fig-ranks", '"cbsa"'), "did you mean 'fig-rank'"),
        (MANIFEST + _analysis("fig-rank", ""), r"analysis 'look': fig-rank needs models"),
        (MANIFEST + _analysis("table-complexity", '"cbsa"'), "table-complexity takes no models"),
        (MANIFEST + _analysis("fig-rank", '"cbsa"'), "say which images, data = NAME"),
        (MANIFEST + _analysis("fig-rank", '"small/cbsa/seed9"'), r"run of small/cbsa.*seed0"),
        (MANIFEST + _analysis("table-zero-shot", '"cbsa"', "cifar10"), "data with masks"),
    ],
)
def test_mistakes_are_named(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        read_study(str(write_manifest(tmp_path, text)))


def test_unknown_studies_are_named():
    with pytest.raises(ValueError, match="did you mean 'fair'"):
        read_study("fare")
    with pytest.raises(ValueError, match="did you mean 'pocket'"):
        read_studies("pockett")
    with pytest.raises(FileNotFoundError, match=r"no\.toml"):
        read_study("no.toml")
