"""Analyses in manifests: every command takes the models that the manifests of the package give it."""

from pathlib import Path

import pytest
import torch

from cbsa.cli import reproduce
from cbsa.data import DataConfig
from cbsa.experiments import attn_map, coding_rate, perturb, rank, reduced_cr, zero_shot
from cbsa.experiments.images import ImageChoice
from cbsa.experiments.subjects import Subject
from cbsa.studies.analyses import COMMANDS, command_of, words_of
from cbsa.studies.data_sets import Root
from cbsa.studies.manifest import AnalysisJob, jobs_of, read_studies
from cbsa.train import override
from cbsa.train.initial import build_model
from cbsa.train.trained import Trained

JOBS = [job for study in read_studies("all") for job in jobs_of(study) if isinstance(job, AnalysisJob)]
EXPERIMENTS = {
    "fig-coding-rate": coding_rate.run,
    "fig-reduced-cr": reduced_cr.run,
    "fig-attn-map": attn_map.run,
    "fig-rank": rank.run,
    "fig-perturb": lambda *a: perturb.run(*a, sigmas=[0.1], seeds=1, parts=["bases"], batch_size=2),
    "table-zero-shot": zero_shot.run,
    "table-zero-shot-layers": zero_shot.run,
}


def narrow(run):
    """The model of a run, narrow, with random weights, for grey images."""
    settings = [
        "model.kwargs.embed_dim=12",
        "model.kwargs.num_heads=2",
        "data.in_chans=1",
        "data.img_size=32",
    ]
    config = override(run.config(run.rate), [*settings, "data.mean=0.5", "data.std=0.5"])
    depth = [] if "crate_cbt" in config.model.name else ["model.kwargs.depth=1"]
    config = override(config, depth)
    data = DataConfig("digits", img_size=32, in_chans=1, mean=(0.5,), std=(0.5,), workers=0)
    return Subject(
        run.name, Trained(build_model(config, 10).eval(), run.name, config.model.name, data, True, None)
    )


@pytest.mark.parametrize("job", [job for job in JOBS if job.needs], ids=lambda job: job.name)
def test_every_analysis_takes_its_models(job):
    with torch.no_grad():
        models = [narrow(run) for run in job.needs if not run.row.endswith("-s")]  # S is wider, no more
        EXPERIMENTS[job.analysis.command](models, ImageChoice("digits", count=2))


def test_every_command_is_one_of_reproduce():
    assert set(COMMANDS) <= {command.name for command in reproduce.app.registered_commands}
    assert {job.analysis.command for job in JOBS} == set(COMMANDS)


def test_the_command_leaves_folders_open():
    job = next(job for job in JOBS if job.name == "analyses/attention-maps/analyse")
    command = command_of(job)
    assert command.startswith("cbsa reproduce fig-attn-map --model CBSA-T=WORK/fair/cbsa-t/seed0 --model ")
    assert command.endswith("--data pets:DATA --images 6 --out FOLDER")
    words = words_of(job, Path("work"), Root("/data/pets", "parquet"), Path("out"))
    assert "parquet:/data/pets" in words
    masks = next(job for job in JOBS if job.name == "analyses/zero-shot/analyse")
    assert "pets:/data/pets" in words_of(masks, Path("work"), Root("/data/pets", "parquet"), Path("out"))
