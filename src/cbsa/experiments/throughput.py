"""Paper table wall-clock: images per second at 512 px in training and inference, ours beside the paper's."""

from collections.abc import Callable
from pathlib import Path

import torch

from cbsa import paper
from cbsa._files import write_text_atomically
from cbsa.bench import models as bench
from cbsa.bench.model_forms import INFERENCE, TRAINING
from cbsa.bench.results import DONE, Results, Row, ratio
from cbsa.bench.tables import Grid

FILE = "table-throughput.json"
IMG_SIZE, NUM_CLASSES = 512, 10  # the paper's: CIFAR-10 at 512×512
_COLUMNS = {TRAINING: 0, INFERENCE: 1}  # of paper.THROUGHPUT
CAPTION = (
    "The paper names neither its GPU, nor the batch, nor the precision; its listing computes attention by "
    "plain matrix products. Ours: the device, precision and batch in the table, random images, SDPA for ViT "
    "and CRATE, no optimiser step and no data loading. Compare the ratios, not the rates."
)


def configure(
    device: torch.device,
    *,
    models: tuple[str, ...] = tuple(paper.THROUGHPUT),
    img_size: int = IMG_SIZE,
    batch: int = bench.LARGE,
    precision: str = "bf16",
    compilation: str = "blocks",
    seconds: float = 0.5,
) -> bench.Config:
    """The paper's table as a benchmark of models."""
    unknown = [name for name in models if name not in paper.THROUGHPUT]
    if unknown:
        raise ValueError(f"{unknown[0]} is not in the paper's table: {', '.join(paper.THROUGHPUT)}")
    return bench.Config(
        models,
        device,
        (img_size,),
        (TRAINING, INFERENCE),
        (batch,),
        precision,
        compilation,
        seconds,
        NUM_CLASSES,
    )


def run(
    config: bench.Config,
    out: Path,
    *,
    fresh: bool = False,
    jobs: int = 0,
    say: Callable[[str], object] = lambda text: None,
    advance: Callable[[], object] = lambda: None,
) -> Results:
    """Measure what ``out`` does not hold yet."""
    return bench.run(config, out, fresh=fresh, jobs=jobs, say=say, advance=advance, file=FILE)


def tables(results: Results, config: bench.Config) -> list[Grid]:
    """Training and inference: the paper's rates and ours, and what CBT makes of each in both."""
    columns = ("model", "batch", "paper", "ours", "CBT is: paper", "CBT is: ours")
    px, where = config.img_sizes[0], results.environment["device"]
    differs = "" if px == IMG_SIZE else f" (ours at {px} px)"
    found = []
    for mode in _COLUMNS:
        cells, notes = [], []
        for name in config.models:
            row = find(results, config, name, mode)
            batch = config.batches[0] or bench.large_batch(name, px)
            cells.append((name, str(batch), *_cells(name, mode, row)))
            if row is not None and row["status"] != DONE:
                notes.append(f"{name}: {row['status']}: {row['reason']}")
        title = f"Table wall-clock, {mode}: images/s at {IMG_SIZE} px{differs}, {config.precision}, {where}"
        found.append(Grid(title, columns, cells, tuple(notes)))
    return found


def find(results: Results, config: bench.Config, name: str, mode: str) -> Row | None:
    """The row of a model in a mode."""
    form = next((f for f in config.forms() if f.name == name and f.mode == mode), None)
    return None if form is None else results.find(bench.row_key(form))


def paper_ratio(name: str, mode: str) -> float | None:
    """How many times the paper's rate of a model the paper's CBT of the same size makes."""
    family, size, rest = bench.split_name(name)
    ours = paper.THROUGHPUT[f"{bench.OURS}_{size}_{rest}"][_COLUMNS[mode]]
    return None if family == bench.OURS else ratio(ours, paper.THROUGHPUT[name][_COLUMNS[mode]])


def _cells(name: str, mode: str, row: Row | None) -> list[str]:
    theirs, times = paper.THROUGHPUT[name][_COLUMNS[mode]], paper_ratio(name, mode)
    rate, measured = "", None
    if row is not None:
        rate = _rate(row["images_s"]) if row["status"] == DONE else row["status"]
        measured = row.get("cbt_over_this")
    return [
        f"{theirs:g}",
        rate,
        "" if times is None else f"{times:.2f}×",
        "" if measured is None else f"**{measured:.2f}×**",
    ]


def _rate(images_s: float) -> str:
    return f"{images_s:,.0f}" if images_s >= 10 else f"{images_s:.3g}"


def save(results: Results, config: bench.Config, out: Path) -> list[Path]:
    """Write the tables as Markdown beside the numbers; both paths."""
    text = out / "table-throughput.md"
    where = ", ".join(f"{name} {value}" for name, value in results.environment.items())
    commands = "\n".join(f"    {command}" for command in results.commands)
    shown = "\n".join(grid.markdown() for grid in tables(results, config))
    body = f"{commands}\n\n{where}\n\n{shown}\n{CAPTION}\n"
    write_text_atomically(text, body)
    return [out / FILE, text]
