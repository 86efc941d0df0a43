"""Manifests: what they stand for, and mistakes in them."""

from collections import Counter

import pytest
import torch

from cbsa.studies.manifest import (
    SPEED,
    TRAIN,
    TUNE,
    jobs_of,
    read_study,
    runs_of,
    speed_of,
    study_names,
    tuning_of,
)
from cbsa.train import override
from cbsa.train.initial import build_model
from tests.studies.small import MANIFEST, write_manifest
from tests.test_package import ROOT, table_in

STUDIES = study_names()


def test_studies_of_the_package():
    assert STUDIES == ["fair", "gap", "ablations"]


@pytest.mark.parametrize("name", STUDIES)
def test_every_model_of_a_study_can_be_made_and_trained(name):
    """All entries, narrow and shallow, through a forward and a backward pass."""
    study = read_study(name)
    for entry in study.entries:
        job = runs_of(study, entry)[0]
        config = override(job.config(job.rate), ["model.kwargs.embed_dim=12", "model.kwargs.num_heads=2"])
        depth = [] if "crate_cbt" in config.model.name else ["model.kwargs.depth=1"]
        model = build_model(override(config, depth), 5)
        model(torch.randn(2, 3, 64, 64)).sum().backward()
        missing = [name for name, p in model.named_parameters() if p.grad is None]
        assert not missing, (entry.name, missing)


def test_the_documentation_counts_the_jobs():
    counts = {name: Counter(job.kind for job in jobs_of(read_study(name))) for name in STUDIES}
    told = {
        "fair": "{tune} runs that tune, {train} that count, {speed} speeds",
        "gap": "{train} runs, {speed} speeds",
        "ablations": "{train} runs, 3 of them shared with `gap`",
    }
    for name, _, cell in table_in((ROOT / "docs" / "studies.md").read_text(), "study | what"):
        study = name.strip("`")
        assert cell == told[study].format(**counts[study])


def test_fair_is_fair():
    """One recipe for all of a size: they differ in the model and the learning rate, nothing else."""
    study = read_study("fair")
    for group in ("T", "S"):
        settings = set()
        for entry in (e for e in study.entries if e.group[0] == group):
            config = runs_of(study, entry)[0].config(1e-3)
            settings.add(repr(override(config, ["model.name=x", "model.kwargs={}"])))
            assert len(entry.seeds) == (3 if group == "T" else 1)
        assert len(settings) == 1
    tuned = [job for job in jobs_of(study) if job.kind == TUNE]
    assert all(job.config(job.rate).data.holdout == 0.1 for job in tuned)
    assert {job.entry.name for job in tuned} == {e.name for e in study.entries if e.group[0] == "T"}


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("title = ", "is not TOML"),
        (MANIFEST.replace("rates = ", "lrs = "), r"small.toml: unknown setting tuning.lrs"),
        (MANIFEST.replace("epochs=2", "epochz=2"), "did you mean epochs"),
        (MANIFEST.replace("data.holdout=0.2", "seed=3"), "tuning.settings has no data.holdout"),
        (MANIFEST.replace('tuned_like = "cbsa"', 'tuned_like = "cbsb"'), "did you mean 'cbsa'"),
        (MANIFEST.replace('name = "mssa"', 'name = "cbsa"'), "entry 'cbsa': names are unique"),
        (MANIFEST.replace('name = "mssa"', 'name = "../mssa"'), "of letters, digits"),
        (MANIFEST[: MANIFEST.index("[[entries]]")] + "entries = []", "unknown setting tuning.entries"),
        (MANIFEST.replace("digits_cbt", "digits_cbb"), "did you mean 'digits_cbt'"),
    ],
)
def test_mistakes_are_named(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        read_study(str(write_manifest(tmp_path, text)))


def test_unknown_studies_are_named():
    with pytest.raises(ValueError, match="did you mean 'fair'"):
        read_study("fare")
    with pytest.raises(FileNotFoundError, match=r"no\.toml"):
        read_study("no.toml")
