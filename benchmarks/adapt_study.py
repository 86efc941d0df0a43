"""A trained ViT adapted into every style for the same small budget, with and without distillation.

    cbsa train tiny_imagenet_vit_tiny data.root=/data/tiny-imagenet --out outputs/runs/vit
    python benchmarks/adapt_study.py outputs/runs/vit --seconds 450 --out benchmarks/results/adapt

On a CPU, a smaller ViT on CIFAR-10:

    cbsa train cifar10_vit data.root=/data --out outputs/runs/cifar10-vit
    python benchmarks/adapt_study.py outputs/runs/cifar10-vit --recipe cifar10_adapt --seconds 0 \\
        --out benchmarks/results/cpu/adapt

Each line of the table is a run as ``cbsa adapt`` makes it with the recipe, on the data of the run that
trained the ViT; settings after the options (name=value) change all of them. The runs follow each other in
one process, the ones that matter most first. After ``--seconds`` the run that is under way saves its state
and the program ends; the same command goes on from there, after a kill too. ``--out`` gets
``adapt_study.json``, ``.csv`` and ``.md``, written anew after each run, and the settings and logs of each
and of the original; ``--work`` gets checkpoints and weights.

``cbsa reproduce fig-vit-adapt --results benchmarks/results/adapt/adapt_study.json`` draws it.
"""

import argparse
import gc
import json
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from cbsa._checks import check_choice
from cbsa._environment import environment
from cbsa._files import prepare_folder, write_text_atomically
from cbsa.experiments.report import save_results, save_rows
from cbsa.experiments.vit_adapt import accuracy_grid, saving_share
from cbsa.studies import records
from cbsa.studies.clock import Clock
from cbsa.train import NonFiniteError, StoppedError, override, train
from cbsa.train.adaptation.config import AdaptConfig
from cbsa.train.adaptation.original import configure
from cbsa.train.adaptation.recipes import adapt_recipe
from cbsa.train.adaptation.report import STAGES, read_report
from cbsa.train.fields import to_dict
from cbsa.train.run_folder import read_run_config

NAME = "adapt_study"
ORIGINAL = "original"  # where the logs of the run that trained the ViT go
KEPT = ("summary.json", "adaptation.json", "epochs.csv", "log.jsonl")  # of a run's folder, and its settings


@dataclass(frozen=True)
class Line:
    """A line of the table; representatives are the recipe's unless they are given."""

    style: str
    distill: str = "none"
    groups: int = 1
    representatives: tuple[int, int] | None = None
    kernel: str = "relu"
    broadcast: str = "transpose"

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        parts = [self.style]
        if self.kernel != "relu":
            parts.append(self.kernel)
        if self.representatives is not None:
            parts.append("x".join(map(str, self.representatives)))
        if self.broadcast != "transpose":
            parts.append(f"by-{self.broadcast}")
        parts.append(self.distill)
        if self.groups > 1:
            parts.append(f"groups{self.groups}")
        return "-".join(parts)

    def settings(self) -> list[str]:
        """What the run changes in its recipe."""
        changed = [f"swap.style={self.style}", f"distill.what={self.distill}", f"swap.groups={self.groups}"]
        if self.kernel != "relu":
            changed.append(f"swap.kernel={self.kernel}")
        if self.broadcast != "transpose":
            changed.append(f"swap.broadcast={self.broadcast}")
        if self.representatives is not None:
            changed.append(f"swap.representatives={','.join(map(str, self.representatives))}")
        return changed


# By recipe. Fewer representatives of Agent: with a product more than CBSA*, it needs them for as many FLOPs.
LINES = {
    "short_adapt": (
        Line("cbsa", "both"),
        Line("agent", "both"),
        Line("cbsa"),
        Line("agent"),
        Line("softmax"),  # the original, fine-tuned for as long
        Line("linear", "both"),
        Line("linear"),
        Line("agent", "both", representatives=(7, 8)),
        Line("agent", representatives=(7, 8)),
        Line("cbsa", broadcast="softmax"),
        Line("cbsa", "both", broadcast="softmax"),
        Line("cbsa", "both", 4),
    ),
    "cifar10_adapt": (
        Line("softmax"),
        Line("cbsa"),
        Line("linear"),
        Line("agent"),
        Line("cbsa", "both"),
        Line("agent", "both", representatives=(3, 4)),
        Line("linear", "both"),
        Line("agent", "both"),
        Line("agent", representatives=(3, 4)),
        Line("linear", kernel="elu"),
        Line("linear", "both", kernel="elu"),
        Line("softmax", "both"),
        Line("cbsa", "both", 3),
        Line("cbsa", representatives=(6, 6)),
        Line("agent", representatives=(6, 6)),
        Line("cbsa", broadcast="softmax"),
        Line("cbsa", "both", broadcast="softmax"),
    ),
}


def config_of(model: Path, line: Line, settings: list[str], recipe: str = "short_adapt") -> AdaptConfig:
    """Settings of a line's run."""
    config = configure(adapt_recipe(recipe), str(model))
    return override(config, [*line.settings(), *settings])


def study(
    model: Path,
    out: Path,
    work: Path,
    *,
    seconds: float,
    settings: list[str],
    recipe: str = "short_adapt",
    lines: tuple[Line, ...] = (),
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """Run what is not done yet, and write the table after each run; returns its lines.

    Args:
        model: the folder of the run that trained the ViT.
        out: folder for what is to be kept.
        work: folder of the runs.
        seconds: time after which the program ends.
        settings: settings that all runs change.
        recipe: recipe of the runs.
        lines: the runs; by default all of the recipe's.
        console: where to show progress.
    """
    for folder in (out, work):
        prepare_folder(folder)
    keep_logs(model, out / "runs" / ORIGINAL)
    clock, reports = Clock(seconds), []
    with clock.running():
        for line in lines or LINES[check_choice("recipe", recipe, LINES)]:
            folder, finished = work / line.name, (work / line.name / "summary.json").is_file()
            if not finished and clock.is_over:
                continue
            try:
                train(config_of(model, line, settings, recipe), folder, console=console)
            except (StoppedError, NonFiniteError) as stop:  # a run that diverges costs its line alone
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
    keep_logs(folder, to)
    summary = json.loads((folder / "summary.json").read_text())
    return read_report(folder) | {k: summary[k] for k in ("seconds", "images_per_second", "environment")}


def keep_logs(folder: Path, to: Path) -> None:
    """Copy what tells how a run went, and its settings without where the data lay."""
    records.keep(folder, to, KEPT)
    config = to_dict(read_run_config(folder))
    config["data"]["root"] = None
    write_text_atomically(to / "config.json", json.dumps(config, indent=2) + "\n")
    summary = json.loads((to / "summary.json").read_text())
    summary.pop("config", None)  # the same again, with the folder
    write_text_atomically(to / "summary.json", json.dumps(summary, indent=2) + "\n")


def write(reports: list[dict[str, Any]], out: Path) -> None:
    """Write the table as JSON, CSV and Markdown."""
    save_results(out / f"{NAME}.json", {"runs": reports})
    save_rows(out / f"{NAME}.csv", [row_of(report) for report in reports])
    command = shlex.join(["python", f"benchmarks/{NAME}.py", *sys.argv[1:]])
    where = ", ".join(f"{name} {value}" for name, value in environment().items())
    text = f"    {command}\n\n{where}\n\n{accuracy_grid(reports).markdown()}"
    write_text_atomically(out / f"{NAME}.md", text)


def row_of(report: dict[str, Any]) -> dict[str, Any]:
    """A run in a row of the CSV file."""
    copied = ("run", "style", "kernel", "epochs", "seed", "gflops", "swapped_gflops")
    return {
        **{name: report[name] for name in copied},
        "representatives": "x".join(map(str, report["representatives"] or ())),
        "distill": report["distill"]["what"],
        "groups": len(report["replaced"]),
        **{f"{stage}_top1": report[stage]["top1"] for stage in STAGES},
        "paper_saving_share": saving_share(report),
        "seconds": report["seconds"],
        "images_per_second": report["images_per_second"],
    }


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="folder of the run that trained the ViT")
    parser.add_argument("settings", nargs="*", help="settings of all runs, as name=value")
    parser.add_argument("--out", type=Path, default=Path("outputs/adapt-study"))
    parser.add_argument("--work", type=Path, default=Path("outputs/adapt-study/work"))
    parser.add_argument("--recipe", choices=sorted(LINES), default="short_adapt", help="of all runs")
    parser.add_argument(
        "--seconds", type=float, default=450.0, help="end after so long, 0 for never; go on later"
    )
    parser.add_argument("--lines", default="", help="some of the runs by name, separated by commas")
    given = parser.parse_intermixed_args()
    known = {line.name: line for line in LINES[given.recipe]}
    wanted = [name.strip() for name in given.lines.split(",") if name.strip()] or list(known)
    unknown = [name for name in wanted if name not in known]
    if unknown:
        parser.error(f"--lines {unknown[0]}: expected some of {', '.join(known)}")
    if given.seconds < 0:
        parser.error(f"--seconds {given.seconds}: expected a number of seconds, or 0 for no limit")
    console = Console()
    try:
        reports = study(
            given.model,
            given.out,
            given.work,
            seconds=given.seconds,
            settings=given.settings,
            recipe=given.recipe,
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
