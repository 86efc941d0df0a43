"""CamVid with four decoders on one encoder: training, scores, speed, noise and pictures, by cbsa's commands.

    python benchmarks/camvid_study.py --data /data/camvid --encoder outputs/runs/cbt --limit 480

Images are halved to 180 × 240 pixels, so that patches of 4 pixels, those of the encoder that was trained on
Tiny-ImageNet, are 45 × 60 tokens; scores are taken at the masks' own size. All decoders get the same encoder,
data and settings; settings after the options (name=value) change them for all.

The commands run in one process, one after another, which saves a start of Python and of the GPU for each. The
same command goes on where it was stopped, in the middle of a training run too. Several processes may do a
part of it each (``--decoders``, ``--stages``) in the same folders; at the end, the command without them does
what is left and writes the report. ``--out`` gets what is to be kept: commands and logs, JSON, CSV, tables,
curves, and predicted label maps. ``--work`` gets what is not: checkpoints, weights, and pictures that show
photographs of the data set. ``--report`` writes ``results.md`` anew from what lies in ``--out``.
"""

import argparse
import gc
import json
import os
import shlex
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from camvid_report import SegmenterForm, sheet_of, write_tables
from PIL import Image
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cbsa._checks import check_choice
from cbsa._files import write_text_atomically
from cbsa.bench.model_forms import MODES
from cbsa.bench.models import measure_form
from cbsa.cli.inside import run_inside
from cbsa.data import open_segmentation
from cbsa.experiments.report import save_figure, save_results
from cbsa.segmentation.cost import decoder_cost
from cbsa.studies.records import keep
from cbsa.train.distributed import choose_device
from cbsa.train.log import read_epochs
from cbsa.train.segmentation.assess import segment_config_of
from cbsa.train.segmentation.pictures import colours_of, overlay
from cbsa.train.segmentation.trained import read_segmenter

# Folder of a run: what it is called, its recipe, and what it changes there.
DECODERS = {
    "cbt": ("CBT", "camvid_cbt_tiny", ()),
    "cbt-tied": ("CBT†", "camvid_cbt_tiny", ("model.decoder_kwargs.tied=true",)),
    "depict": ("DEPICT", "camvid_depict_tiny", ()),
    "segmenter": ("Segmenter", "camvid_segmenter_tiny", ()),
}
SETTINGS = (
    *("model.encoder=cbt_tiny_patch4_64", "model.encoder_kwargs={}"),
    *("data.short_side=180", "data.crop=180,240", "windows.size=180,240", "windows.stride=120,160"),
    "data.workers=0",  # images are decoded once, and processes of several hundred MB are slow to fork
    *("optimizer.lr=1e-3", "schedule.warmup_epochs=8"),
    *("epochs=160", "eval_every=40", "checkpoint.every_epochs=40"),
)
KEPT = ("config.json", "summary.json", "epochs.csv", "log.jsonl", "confusion.csv")  # of a run's folder
STAGES = ("train", "eval", "speed", "noise", "curves", "predict", "pictures")
_WIDTH = 150  # of the tables on the screen
TEST = "data.val_split=test"  # runs are watched on val, scored on test


class OutOfTimeError(BaseException):  # not to be caught where a bad image or a failed row is
    """The limit is reached: what is done is kept, and the same command goes on."""


@dataclass(frozen=True)
class Stage:
    """A part of the study: it is done if the file is there that it leaves behind."""

    name: str  # one of STAGES, and the decoder if it is about one
    leaves: Path
    do: Callable[[], None]

    @property
    def kind(self) -> str:
        """One of STAGES."""
        return self.name.partition(" ")[0]


class Study:
    """Where things lie, and the stages.

    Args:
        data: folder of CamVid's Parquet files.
        encoder: run of ``cbsa train``, saved model, or name of weights that ship with the package, whose
            weights the encoder begins with; or None.
        out: folder for what is to be kept.
        work: folder for the rest.
        decoders: some of :data:`DECODERS`.
        kinds: some of :data:`STAGES`.
        settings: further settings of all runs.
        sigmas: of the noise, separated by commas.
        seeds: draws of the noise for each.
        noisy_images: images of the test split that noise is tried on, evenly spaced; 0 for all.
        pictures: images to predict.
        seconds: for each measurement of speed.
    """

    def __init__(
        self,
        data: Path,
        encoder: Path | None,
        out: Path,
        work: Path,
        *,
        decoders: tuple[str, ...] = tuple(DECODERS),
        kinds: tuple[str, ...] = STAGES,
        settings: tuple[str, ...] = (),
        sigmas: str = "0,0.01,0.02,0.05,0.1,0.2,0.5",
        seeds: int = 3,
        noisy_images: int = 0,
        pictures: int = 6,
        seconds: float = 0.5,
    ) -> None:
        self.out, self.work = out, work
        self.decoders = tuple(check_choice("--decoders", name, DECODERS) for name in decoders)
        self.kinds = tuple(check_choice("--stages", kind, STAGES) for kind in kinds)
        self.log = out / "log.txt"  # of the stage that is on
        weights = (f"model.encoder_weights={encoder}",) if encoder is not None else ()
        self.settings = last_of_each((f"data.root={data}", *SETTINGS, *weights, *settings))
        self.sigmas, self.seeds, self.noisy_images = sigmas, seeds, noisy_images
        self.pictures, self.seconds = pictures, seconds
        self.training = False  # whether a signal would be heeded by a run that saves its state

    def run(self, decoder: str) -> Path:
        """The folder of a decoder's run."""
        return self.work / "runs" / decoder

    def stages(self) -> Iterator[Stage]:
        """All of it, in order: what the table needs comes first."""
        for name in self.decoders:
            yield Stage(f"train {name}", self.run(name) / "summary.json", lambda n=name: self.train(n))
        for name in self.decoders:
            scores = self.out / "scores" / f"{name}.json"
            yield Stage(f"eval {name}", scores, lambda n=name, s=scores: self.evaluate(n, s))
        for name in self.decoders:
            speed = self.out / "speed" / f"{name}.json"
            yield Stage(f"speed {name}", speed, lambda n=name, s=speed: self.measure(n, s))
        yield Stage("noise", self.out / "fig-seg-noise.json", self.noise)
        yield Stage("curves", self.out / "curves.png", self.curves)
        for name in self.decoders:
            done = self.work / "predictions" / name / "done"
            yield Stage(f"predict {name}", done, lambda n=name, d=done: self.predict(n, d))
        yield Stage("pictures", self.out / "predictions.png", self.show)

    # --- stages ------------------------------------------------------------------------------------------

    def train(self, name: str) -> None:
        """``cbsa segment train``; a stop saves the state of the run."""
        _, recipe, own = DECODERS[name]
        self.training = True
        try:
            self.command("segment", "train", recipe, *self.settings, *own, "--out", self.run(name))
        finally:
            self.training = False

    def evaluate(self, name: str, scores: Path) -> None:
        """``cbsa segment eval`` on the test split."""
        self.command("segment", "eval", self.run(name), TEST, "--out", scores)

    def measure(self, name: str, speed: Path) -> None:
        """Images/s of the segmenter, taken as ``cbsa bench models`` takes them, and costs of its decoder."""
        folder = self.run(name)
        config, model = segment_config_of(folder), read_segmenter(folder)
        grid = tuple(
            -(-side // patch) for side, patch in zip(config.data.crop, model.patch_size, strict=True)
        )
        cost = decoder_cost(model.decoder, grid)
        device = choose_device(config.runtime.device)
        rows = {
            mode: measure_form(
                SegmenterForm.of(folder, config, model.num_classes, mode), device, self.seconds
            )
            for mode in MODES
        }
        content = {
            "parameters": sum(p.numel() for p in model.parameters()),
            "decoder_parameters": cost.parameters,
            "decoder_gflops": 2 * cost.counted_macs / 1e9,
            "decoder_similarities": cost.similarities,
            "grid": list(grid),
            **rows,
        }
        speed.parent.mkdir(parents=True, exist_ok=True)
        save_results(speed, content)

    def noise(self) -> None:
        """``cbsa reproduce fig-seg-noise`` over all decoders on the test split."""
        models = [f"--model={DECODERS[name][0]}={self.run(name)}" for name in self.decoders]
        options = (
            "--sigmas",
            self.sigmas,
            "--seeds",
            self.seeds,
            "--images",
            self.noisy_images,
            "--set",
            TEST,
        )
        self.command("reproduce", "fig-seg-noise", *models, *options, "--out", self.out)

    def curves(self) -> None:
        """``cbsa plot``: loss and mIoU of all runs."""
        self.command("plot", *(self.run(name) for name in self.decoders), "--out", self.out / "curves.png")

    def predict(self, name: str, done: Path) -> None:
        """``cbsa segment predict`` on some images of the test split, which are written for it."""
        images = self.work / "images"
        images.mkdir(parents=True, exist_ok=True)
        for index, (image, _) in enumerate(self.examples()):
            image.save(images / f"{index}.png")
        self.command("segment", "predict", self.run(name), images, "--out", done.parent)
        done.touch()

    def show(self) -> None:
        """Predicted label maps side by side; with photographs and true labels, for one's own eyes only."""
        config, examples = segment_config_of(self.run(self.decoders[0])), self.examples()
        colours = colours_of(config.data, read_segmenter(self.run(self.decoders[0])).num_classes)
        seen: dict[str, list[Any]] = {
            "image": [image for image, _ in examples],
            # Ignored pixels get the colour after the classes': black.
            "truth": [
                overlay(image, mask.clip(max=len(colours)), (*colours, (0, 0, 0))) for image, mask in examples
            ],
        }
        maps: dict[str, list[Any]] = {}
        for name in self.decoders:
            folder, label = self.work / "predictions" / name, DECODERS[name][0]
            for kind, sheet in (("overlays", seen), ("labels", maps)):
                files = (folder / kind / f"{index}.png" for index in range(len(examples)))
                sheet[label] = [Image.open(file).convert("RGB") for file in files]
        save_figure(sheet_of(seen), self.work / "overlays")
        save_figure(sheet_of(maps), self.out / "predictions")

    # --- around them -------------------------------------------------------------------------------------

    def examples(self) -> list[tuple[Image.Image, Any]]:
        """Evenly spaced images of the test split with their masks."""
        from cbsa.train import override

        config = override(segment_config_of(self.run(self.decoders[0])), [TEST])
        source = open_segmentation(config.data, train=False).evenly_spaced(self.pictures)
        pairs = (source.read(index) for index in range(len(source)))
        return [(image.convert("RGB"), mask) for image, mask in pairs]

    def command(self, *arguments: object) -> None:
        """A command of cbsa, in this process; what it says goes to the log of its stage."""
        code = run_inside(arguments, self.log)
        if code == 128 + signal.SIGTERM:
            raise OutOfTimeError
        if code:
            raise RuntimeError(f"cbsa {shlex.join(map(str, arguments))} failed; see {self.log}")

    def keep(self, name: str) -> None:
        """Copy what a run has written, but for its weights."""
        keep(self.run(name), self.out / "runs" / name, KEPT)

    def report(self) -> dict[str, Any]:
        """Write ``results.json`` and ``results.md`` from what is there, if anything; return the numbers."""
        found: dict[str, Any] = {}
        for name in self.decoders:
            self.keep(name)
            files = {"test": self.out / "scores", "speed": self.out / "speed"}
            parts = {part: folder / f"{name}.json" for part, folder in files.items()}
            if not all(path.exists() for path in parts.values()):
                continue
            found[name] = {part: json.loads(path.read_text()) for part, path in parts.items()}
            summary = json.loads((self.run(name) / "summary.json").read_text())
            rates = [record["images_per_second"] for record in read_epochs(self.run(name))]
            found[name] |= {
                "label": DECODERS[name][0],
                "val_miou": summary["miou"],
                "training_seconds": summary["seconds"],
                "training_images_s": statistics.median(rates),  # with reading, augmentation and optimiser
            }
        if found:
            save_results(self.out / "results.json", {"settings": self.settings, "decoders": found})
            for grid in write_tables(self.out, found):
                Console(width=_WIDTH).print(grid.rich())
        return found


def last_of_each(settings: tuple[str, ...]) -> tuple[str, ...]:
    """Settings without those that a later one of the same name overrides."""
    return tuple({setting.partition("=")[0]: setting for setting in settings}.values())


@contextmanager
def time_limit(seconds: int, study: Study) -> Iterator[None]:
    """Stop after so many seconds (0: never); by SIGTERM if a run is training, which then saves its state."""

    def stop(signum: int, frame: object) -> None:
        if not study.training:
            raise OutOfTimeError
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def go(study: Study, limit: int = 0, console: Console | None = None) -> bool:
    """Do the stages that are not done yet, write the report, and return whether all are done."""
    study.out.mkdir(parents=True, exist_ok=True)
    check_settings(study)
    console = console or Console(file=sys.stdout)
    stages = [stage for stage in study.stages() if stage.kind in study.kinds]
    bars = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    in_time = True
    with Progress(*bars, console=console, transient=True) as progress:
        task = progress.add_task("", total=len(stages))
        try:
            with time_limit(limit, study):
                for stage in stages:
                    progress.update(task, description=stage.name)
                    began = time.perf_counter()
                    if not stage.leaves.exists():
                        study.log = study.out / "logs" / f"{stage.name.replace(' ', '-')}.txt"
                        try:
                            stage.do()
                        finally:
                            spent = time.perf_counter() - began
                            add_time(study.out / "times.json", stage.name, spent)
                            torch.compiler.reset()
                            gc.collect()
                        console.print(f"{stage.name}: {spent:.0f} s", highlight=False)
                    progress.advance(task)
        except OutOfTimeError:
            in_time = False
            console.print("The time is up; what is done is kept: the same command goes on.")
    study.report()
    return in_time


def check_settings(study: Study) -> None:
    """Raise if ``--out`` holds results of other settings: their stages would be taken for done."""
    file = study.out / "results.json"
    before = set(json.loads(file.read_text())["settings"]) if file.exists() else set(study.settings)
    if differing := sorted(before ^ set(study.settings)):
        raise ValueError(
            f"{file} has results of other settings ({', '.join(differing)}): remove the folder, or choose "
            "another --out"
        )


def add_time(file: Path, stage: str, seconds: float) -> None:
    """Add to the seconds of a stage; the file is read anew, since other processes write into it too."""
    times: dict[str, float] = json.loads(file.read_text()) if file.exists() else {}
    times[stage] = times.get(stage, 0.0) + seconds
    write_text_atomically(file, json.dumps(times, indent=2) + "\n")


def main() -> None:
    """Run the study from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("settings", nargs="*", help="settings of all runs, as name=value")
    parser.add_argument("--data", type=Path, help="folder with {train,val,test}.parquet")
    parser.add_argument(
        "--encoder", type=Path, help="run of cbsa train, saved model, or name of weights that ship with cbsa"
    )
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/camvid"))
    parser.add_argument("--work", type=Path, default=Path("outputs/camvid_study"))
    parser.add_argument("--decoders", default=",".join(DECODERS), help="separated by commas")
    parser.add_argument("--stages", default=",".join(STAGES), help="separated by commas")
    parser.add_argument("--report", action="store_true", help="write results.md anew, from --out alone")
    parser.add_argument("--sigmas", default="0,0.01,0.02,0.05,0.1,0.2,0.5", help="of the noise")
    parser.add_argument("--seeds", type=int, default=3, help="draws of the noise for each sigma")
    parser.add_argument("--noisy-images", type=int, default=0, help="to try noise on; 0 for all of the split")
    parser.add_argument("--pictures", type=int, default=6, help="images to predict")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each measurement of speed")
    parser.add_argument("--limit", type=int, default=0, help="stop after so many seconds; 0 for never")
    given = vars(parser.parse_args())
    limit, settings = given.pop("limit"), tuple(given.pop("settings"))
    decoders, kinds = (tuple(given.pop(name).split(",")) for name in ("decoders", "stages"))
    if given.pop("report"):
        write_tables(given["out"], json.loads((given["out"] / "results.json").read_text())["decoders"])
        return
    if given["data"] is None:
        parser.error("--data is required: the folder with {train,val,test}.parquet")
    if not go(Study(**given, decoders=decoders, kinds=kinds, settings=settings), limit):
        raise SystemExit(128 + signal.SIGTERM)


if __name__ == "__main__":
    main()
