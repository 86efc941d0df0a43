"""The CamVid study of ``benchmarks/`` on stand-in data of a few pixels: it stops, goes on, and reports."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cbsa.models import create_model, save_model
from tests.segmentation.scenes import scene

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
ENCODER = {"embed_dim": 16, "depth": 1, "num_heads": 2}
SETTINGS = (
    *("model.encoder=cbt_tiny_patch4_32", *(f"model.encoder_kwargs.{k}={v}" for k, v in ENCODER.items())),
    *("model.decoder_kwargs.depth=1", "data.short_side=12", "data.crop=12,16", "data.workers=0"),
    *("windows.size=12,16", "windows.stride=8,8", "batch_size=4", "epochs=2", "schedule.warmup_epochs=0"),
    *("runtime.device=cpu", "runtime.precision=fp32", "runtime.compile=false", "data.store=device"),
)
# What is run in a stage.
COMMANDS = {"train": "segment train", "eval": "segment eval", "noise": "reproduce fig-seg-noise"}
COMMANDS |= {"curves": "plot", "predict": "segment predict"}


def encoded(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="PNG")
    return {"bytes": file.getvalue(), "path": None}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """CamVid's layout: classes 0 to 10, void 11."""
    root = tmp_path_factory.mktemp("camvid")
    for split, count in (("train", 8), ("val", 2), ("test", 3)):
        pairs = [scene(i) for i in range(count)]
        rows = [(encoded(image), encoded(np.where(mask == 255, 11, mask))) for image, mask in pairs]
        images, masks = zip(*rows, strict=True)
        pq.write_table(pa.table({"image": list(images), "mask": list(masks)}), root / f"{split}.parquet")
    return root


@pytest.fixture
def study(data, tmp_path, monkeypatch, one_thread):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import camvid_study

    encoder = tmp_path / "encoder"
    save_model(create_model("cbt_tiny_patch4_32", **ENCODER), encoder, architecture="cbt_tiny_patch4_32")

    def make(*settings, decoders=("cbt-tied", "segmenter"), kinds=camvid_study.STAGES):
        return camvid_study.Study(
            data,
            encoder,
            tmp_path / "out",
            tmp_path / "work",
            decoders=decoders,
            kinds=kinds,
            settings=(*SETTINGS, *settings),
            sigmas="0,1",
            seeds=1,
            pictures=2,
            seconds=1e-3,
        )

    return camvid_study, make


def test_the_study_stops_in_time_goes_on_and_reports(study, tmp_path, monkeypatch, capsys):
    """One process trains a decoder, as if beside another; then all of it is asked for, and stopped once."""
    program, make = study
    assert program.go(make(decoders=("cbt-tied",), kinds=("train",)))
    assert not (tmp_path / "out/results.json").exists()  # there is nothing to report yet
    train, stopped = program.Study.train, []

    def interrupted(self, name):
        if name == "segmenter" and not stopped:
            stopped.append(name)
            raise program.OutOfTimeError
        train(self, name)

    monkeypatch.setattr(program.Study, "train", interrupted)
    assert not program.go(make())
    assert "the same command goes on" in capsys.readouterr().out
    first = (tmp_path / "work/runs/cbt-tied/summary.json").stat().st_mtime_ns
    assert program.go(make())
    assert (tmp_path / "work/runs/cbt-tied/summary.json").stat().st_mtime_ns == first

    found = json.loads((tmp_path / "out/results.json").read_text())["decoders"]
    assert [part["label"] for part in found.values()] == ["CBT†", "Segmenter"]
    for name, part in found.items():
        assert part["test"]["split"] == "test"
        assert part["test"]["evaluated_images"] == 3
        assert part["speed"]["grid"] == [3, 4]
        assert part["speed"]["inference"]["status"] == part["speed"]["training"]["status"] == "done"
        assert (tmp_path / f"out/runs/{name}/epochs.csv").is_file()
    small, large = (part["speed"]["decoder_parameters"] for part in found.values())
    assert small != large
    config = json.loads((tmp_path / "out/runs/cbt-tied/config.json").read_text())
    assert config["model"]["decoder_kwargs"] == {"depth": 1, "tied": True}
    assert config["model"]["encoder_weights"] == str(tmp_path / "encoder")

    noise = json.loads((tmp_path / "out/fig-seg-noise.json").read_text())
    assert noise["command"].startswith("cbsa reproduce fig-seg-noise '--model=CBT†=")
    assert noise["by_sigma"]["Segmenter"][0]["mean"] == pytest.approx(found["segmenter"]["test"]["miou"])
    logs = {file.stem: file.read_text().splitlines() for file in (tmp_path / "out/logs").iterdir()}
    of_each = {f"{kind}-{name}" for kind in ("train", "eval", "predict") for name in found}
    assert logs.keys() == of_each | {"noise", "curves"}
    for stage, lines in logs.items():
        (command,) = (line for line in lines if line.startswith("$"))
        assert command.startswith(f"$ cbsa {COMMANDS[stage.partition('-')[0]]} ")
    tables = (tmp_path / "out/results.md").read_text()
    assert "| CBT† | " in tables
    assert "| bicyclist | — | — |" in tables
    without = " | ".join(f"{part['test']['miou']:.1f}" for part in found.values())
    assert f"| σ | CBT† | Segmenter |\n| --- | ---: | ---: |\n| 0 | {without} |\n" in tables
    (tmp_path / "out/results.md").unlink()
    monkeypatch.setattr("sys.argv", ["camvid_study.py", "--report", "--out", str(tmp_path / "out")])
    program.main()
    assert (tmp_path / "out/results.md").read_text() == tables
    with pytest.raises(ValueError, match=r"of other settings \(epochs=2, epochs=3\): remove the folder"):
        program.go(make("epochs=3"))
    for picture in ("out/predictions.png", "out/curves.png", "out/fig-seg-noise.png", "work/overlays.png"):
        assert (tmp_path / picture).stat().st_size > 5_000
    kept = {path.suffix for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert kept <= {".json", ".jsonl", ".csv", ".md", ".txt", ".png", ".svg"}  # no weights
    assert set(json.loads((tmp_path / "out/times.json").read_text())) >= {"train segmenter", "noise"}


def test_the_limit_stops_a_run_which_saves_its_state(study, tmp_path):
    """Then the same command goes on from there."""
    program, make = study
    long = make("epochs=5000", "eval_every=5000", "checkpoint.every_epochs=5000")
    assert not program.go(long, limit=4)
    assert list((tmp_path / "work/runs/cbt-tied/checkpoints").glob("step-*.pt"))
    log = (tmp_path / "out/logs/train-cbt-tied.txt").read_text()
    assert "the state is saved: the same command goes on" in log


def test_a_command_that_fails_is_named(study, tmp_path):
    program, make = study
    with pytest.raises(RuntimeError, match=r"cbsa segment train camvid_cbt_tiny .* failed; see"):
        program.go(make("data.crop=12"))
    assert "data.crop" in (tmp_path / "out/logs/train-cbt-tied.txt").read_text()
    with pytest.raises(ValueError, match=r"--decoders='cbd': expected one of .* did you mean 'cbt'"):
        make(decoders=("cbd",))


def test_numbers_in_the_documentation_are_those_committed():
    folder = BENCHMARKS / "results/cpu/camvid"
    found = json.loads((folder / "results.json").read_text())["decoders"]
    noise = json.loads((folder / "fig-seg-noise.json").read_text())["by_sigma"]
    text = (BENCHMARKS.parent / "docs/segmentation_training.md").read_text()
    for part in found.values():
        means = {row["sigma"]: f"{row['mean']:.1f}" for row in noise[part["label"]]}
        cells = (part["label"], f"{part['test']['miou']:.1f}")
        cells += (f"{part['speed']['decoder_parameters'] / 1e6:.3f} M",)
        assert f"| {' | '.join(cells)} | {means[0]} → {means[0.1]} → {means[0.5]} |" in text
    nowhere = [
        c for c in found["cbt"]["test"]["iou"] if all(p["test"]["iou"][c] < 0.1 for p in found.values())
    ]
    assert len(nowhere) == 5
    assert "five of the eleven classes have an IoU\nbelow 0.1 % with all of them" in text
