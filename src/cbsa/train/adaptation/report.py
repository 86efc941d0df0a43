"""What a run that adapts a ViT reports: the original, right after the swap, after fine-tuning."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cbsa._files import write_text_atomically
from cbsa.train.evaluation import Metrics

FILE = "adaptation.json"
STAGES = {"original": "original", "swapped": "right after the swap", "fine_tuned": "after fine-tuning"}


@dataclass(frozen=True)
class Accuracy:
    """Top-1 and top-5 accuracy in percent, and the loss, on the evaluation split."""

    top1: float
    top5: float
    loss: float

    @classmethod
    def of(cls, metrics: Metrics) -> "Accuracy":
        """What is reported of an evaluation."""
        return cls(metrics.top1, metrics.top5, metrics.loss)


@dataclass(frozen=True)
class Baseline:
    """What is known before the first step.

    Attributes:
        original: accuracy of the original model.
        swapped: accuracy of the same weights with the new attention, all layers replaced.
        gflops: FLOPs of the original for one image in G, twice the counted multiply-accumulates.
        swapped_gflops: the same after the swap.
        paper_saved_gflops: what the paper's adaptation saves at this size, by its formula; see
            :func:`cbsa.adaptation.costs.paper_saving`.
        new_classifier: whether the original was for other classes: its classifier is random here, and the
            accuracies say nothing.
    """

    original: Accuracy
    swapped: Accuracy
    gflops: float
    swapped_gflops: float
    paper_saved_gflops: float
    new_classifier: bool


def read_baseline(folder: Path) -> Baseline | None:
    """The baseline of a run that was begun before; None if there is none that can be read."""
    try:
        content = json.loads((folder / FILE).read_text())
        original, swapped = (Accuracy(**content[stage]) for stage in ("original", "swapped"))
        before, after = float(content["gflops"]), float(content["swapped_gflops"])
        saved, new = float(content["paper_saved_gflops"]), bool(content["new_classifier"])
        return Baseline(original, swapped, before, after, saved, new)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_report(folder: Path, run: dict[str, Any], baseline: Baseline, tuned: Accuracy | None) -> None:
    """Write ``adaptation.json``, and as soon as all is known ``adaptation.md``.

    Args:
        folder: folder of the run.
        run: what was done: model, style, layers, distillation, …
        baseline: what was known before the first step.
        tuned: accuracy after fine-tuning; None before.
    """
    content = {**run, **asdict(baseline), "fine_tuned": None if tuned is None else asdict(tuned)}
    write_text_atomically(folder / FILE, json.dumps(content, indent=2) + "\n")
    if tuned is not None:
        write_text_atomically(folder / "adaptation.md", as_markdown(content))


def as_markdown(report: dict[str, Any]) -> str:
    """The table of a report."""
    lines = [
        f"### {report['model']}: {report['style']}, distillation {report['distill']['what']}",
        "",
        "| | top-1 % | top-5 % | loss | GFLOPs |",
        "|---|---:|---:|---:|---:|",
        *("| " + " | ".join(row) + " |" for row in stage_rows(report)),
    ]
    if report["new_classifier"]:
        lines += ["", "The original was for other classes: its classifier is random before fine-tuning."]
    return "\n".join(lines) + "\n"


def stage_rows(report: dict[str, Any]) -> list[tuple[str, ...]]:
    """Cells of the table: stage, top-1, top-5, loss, GFLOPs."""
    rows: list[tuple[str, ...]] = []
    for stage, title in STAGES.items():
        found = report[stage]
        gflops = report["gflops" if stage == "original" else "swapped_gflops"]
        values = (f"{found['top1']:.2f}", f"{found['top5']:.2f}", f"{found['loss']:.4f}", f"{gflops:.4g}")
        rows.append((title, *values))
    return rows


def read_report(folder: Path) -> dict[str, Any]:
    """The report of a finished run."""
    path = folder / FILE
    try:
        report: dict[str, Any] = json.loads(path.read_text())
        stage_rows(report)
    except OSError as error:
        raise FileNotFoundError(
            f"{path}: {error.strerror}; expected the folder of a run of cbsa adapt"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not the report of a finished run of cbsa adapt ({error!r})") from error
    return report
