"""A trained ViT adapted into every style for the same small budget, with and without distillation.

    cbsa train tiny_imagenet_vit_tiny data.root=/data/tiny-imagenet --out outputs/runs/vit
    python benchmarks/adapt_study.py outputs/runs/vit --seconds 450 --out benchmarks/results/adapt

Each line of the table is a run as ``cbsa adapt --recipe short_adapt`` makes it, on the data of the run that
trained the ViT; settings after the options (name=value) change all of them. The runs follow each other in one
process, the ones that matter most first. After ``--seconds`` the run that is under way saves its state and
the program ends; the same command goes on from there. ``--out`` gets ``adapt_study.json`` and ``.md``,
written anew after each run, and the settings and logs of each; ``--work`` gets checkpoints and weights.

``cbsa reproduce fig-vit-adapt --results benchmarks/results/adapt/adapt_study.json`` draws it.
"""

import argparse
import gc
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from cbsa._files import prepare_folder, write_text_atomically
from cbsa.experiments.report import save_results
from cbsa.experiments.vit_adapt import accuracy_grid
from cbsa.studies import records
from cbsa.studies.clock import Clock
from cbsa.train import StoppedError, override, train
from cbsa.train.adaptation.config import AdaptConfig
from cbsa.train.adaptation.original import configure
from cbsa.train.adaptation.recipes import adapt_recipe
from cbsa.train.adaptation.report import read_report

NAME = "adapt_study"
KEPT = ("config.json", "summary.json", "adaptation.json", "epochs.csv", "log.jsonl")  # of a run's folder


@dataclass(frozen=True)
class Line:
    """A line of the table."""

    style: str
    distill: str = "none"
    groups: int = 1

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        return f"{self.style}-{self.distill}" + (f"-groups{self.groups}" if self.groups > 1 else "")

    def settings(self) -> list[str]:
        """What the run changes in its recipe."""
        return [f"swap.style={self.style}", f"distill.what={self.distill}", f"swap.groups={self.groups}"]


LINES = (
    Line("cbsa", "both"),
    Line("agent", "both"),
    Line("cbsa"),
    Line("agent"),
    Line("softmax"),  # the original, fine-tuned for as long
    Line("linear", "both"),
    Line("linear"),
    Line("cbsa", "both", 4),
)


def config_of(model: Path, line: Line, settings: list[str]) -> AdaptConfig:
    """Settings of a line's run."""
    config = configure(adapt_recipe("short_adapt"), str(model))
    return override(config, [*line.settings(), *settings])


def study(
    model: Path,
    out: Path,
    work: Path,
    *,
    seconds: float,
    settings: list[str],
    lines: tuple[Line, ...] = LINES,
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """Run what is not done yet, and write the table after each run; returns its lines.

    Args:
        model: the folder of the run that trained the ViT.
        out: folder for what is to be kept.
        work: folder of the runs.
        seconds: time after which the program ends.
        settings: settings that all runs change.
        lines: the runs.
        console: where to show progress.
    """
    for folder in (out, work):
        prepare_folder(folder)
    clock, reports = Clock(seconds), []
    with clock.running():
        for line in lines:
            folder, finished = work / line.name, (work / line.name / "summary.json").is_file()
            if not finished and clock.is_over:
                continue
            try:
                train(config_of(model, line, settings), folder, console=console)
            except StoppedError as stop:
                if console is not None:
                    console.print(str(stop), highlight=False, soft_wrap=True)
                continue
            finally:
                torch.compiler.reset()  # the next model must not count as one recompilation too many
                gc.collect()  # images and graphs of this run
            reports.append(keep(folder, out / "runs" / line.name) | {"run": line.name})
            write(reports, out)
    return reports


def keep(folder: Path, to: Path) -> dict[str, Any]:
    """Copy the settings and logs of a run, and return its report with the time it took."""
    records.keep(folder, to, KEPT)
    summary = json.loads((folder / "summary.json").read_text())
    return read_report(folder) | {k: summary[k] for k in ("seconds", "images_per_second", "environment")}


def write(reports: list[dict[str, Any]], out: Path) -> None:
    """Write the table as JSON and Markdown."""
    save_results(out / f"{NAME}.json", {"runs": reports})
    write_text_atomically(out / f"{NAME}.md", accuracy_grid(reports).markdown())


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="folder of the run that trained the ViT")
    parser.add_argument("settings", nargs="*", help="settings of all runs, as name=value")
    parser.add_argument("--out", type=Path, default=Path("outputs/adapt-study"))
    parser.add_argument("--work", type=Path, default=Path("outputs/adapt-study/work"))
    parser.add_argument("--seconds", type=float, default=450.0, help="end after so long; go on later")
    parser.add_argument("--lines", default="", help="some of the runs by name, separated by commas")
    given = parser.parse_args()
    known = {line.name: line for line in LINES}
    wanted = [name.strip() for name in given.lines.split(",") if name.strip()] or list(known)
    unknown = [name for name in wanted if name not in known]
    if unknown or given.seconds <= 0:
        wrong = (
            f"--lines {unknown[0]}: expected some of {', '.join(known)}" if unknown else "--seconds: above 0"
        )
        parser.error(wrong)
    console = Console()
    try:
        reports = study(
            given.model,
            given.out,
            given.work,
            seconds=given.seconds,
            settings=given.settings,
            lines=tuple(known[name] for name in wanted),
            console=console,
        )
    except (ValueError, TypeError, FileNotFoundError) as error:
        parser.error(str(error))
    console.print(accuracy_grid(reports).rich())
    left = [name for name in wanted if name not in {report["run"] for report in reports}]
    console.print(f"Left for the same command: {', '.join(left)}" if left else f"Done: {given.out / NAME}.md")


if __name__ == "__main__":
    main()
