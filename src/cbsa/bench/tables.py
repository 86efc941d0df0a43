"""Results as tables, in the terminal and in Markdown."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from cbsa._files import write_text_atomically
from cbsa.bench.results import DONE, NOT_RUN, Results, Row

_BOLD = "**"
# What the last column of a table of models is called, and the field of the rows that it shows.
_BESIDE = {"models": ("CBT is", "cbt_over_this"), "adapt": ("of the ViT's", "over_original")}


@dataclass(frozen=True)
class Grid:
    """A table as text; cells between ** are bold, as Markdown writes them."""

    title: str
    columns: tuple[str, ...]
    cells: list[tuple[str, ...]]
    notes: tuple[str, ...] = ()

    def markdown(self) -> str:
        """As Markdown: the first column to the left, the others to the right."""
        marks = ["---", *["---:"] * (len(self.columns) - 1)]
        lines = [self.columns, marks, *self.cells]
        table = "\n".join("| " + " | ".join(c.replace("|", "\\|") for c in line) + " |" for line in lines)
        notes = "".join(f"\n- {note}" for note in self.notes)
        return f"### {self.title}\n\n{table}\n" + (f"{notes}\n" if notes else "")

    def rich(self) -> Table:
        """For the terminal."""
        from rich import box

        notes = "\n".join(escape(note) for note in self.notes) or None
        look = {
            "box": box.SIMPLE_HEAD,
            "padding": (0, 1, 0, 0),
            "title_justify": "left",
            "caption_justify": "left",
        }
        table = Table(title=escape(self.title), caption=notes, **look)  # type: ignore[arg-type]
        for place, column in enumerate(self.columns):
            table.add_column(column, justify="right" if place else "left", overflow="fold", no_wrap=place > 0)
        for line in self.cells:
            table.add_row(*(_rich_cell(cell) for cell in line))
        return table


def grids(results: Results) -> list[Grid]:
    """The tables of a benchmark."""
    return _operator_grids(results) if results.kind == "ops" else _model_grids(results)


def save_markdown(results: Results, path: Path) -> None:
    """Write all tables with their origin into one Markdown file."""
    where = ", ".join(f"{name} {value}" for name, value in results.environment.items())
    head = [
        f"# cbsa bench {results.kind}",
        "",
        *(f"    {command}" for command in results.commands),
        "",
        where,
    ]
    if results.ceilings:
        head += ["", _ceilings_text(results)]
    write_text_atomically(path, "\n".join(head) + "\n\n" + "\n".join(g.markdown() for g in grids(results)))


def save_csv(results: Results, path: Path) -> None:
    """Write the rows as CSV, without what the gate says of each."""
    names = list(dict.fromkeys(name for row in results.rows for name in row if name != "errors"))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(results.rows)
    write_text_atomically(path, text.getvalue())


def _ceilings_text(results: Results) -> str:
    c = results.ceilings or {}
    return (
        f"Ceilings of {c['device']}: copy {c['copy_tb_s']:.3g} TB/s (read + written), "
        f"{c['matmul_dtype']} products {c['matmul_tflops']:.3g} TFLOP/s."
    )


def _operator_grids(results: Results) -> list[Grid]:
    columns = ("candidate", "ms (p20–p80)", "TB/s", "of floor", "memory", "× SDPA")
    table = ("tokens", "batch", "heads", "head_dim", "representatives", "dtype", "mode")
    found = []
    for size, rows in _groups(results.rows, lambda row: tuple(row[k] for k in table)):
        n, batch, heads, d, m, dtype, mode = size
        title = f"{mode}: {n} tokens × batch {batch}, {heads} heads of {d}, m = {m}, {dtype}"
        cells = [(row["label"], *_operator_cells(row)) for row in rows]
        found.append(Grid(title, columns, cells, _notes(rows, lambda row: row["label"])))
    return found


def _operator_cells(row: Row) -> list[str]:
    if row["status"] != DONE:
        return [row["status"], "", "", "", ""]
    memory = row["memory_ratio"]
    times = row.get("times_best_sdpa")
    shown = "" if times is None else f"{times:.3g}×"
    return [
        spread(row),
        f"{row['tb_s']:.3g}",
        f"{row['of_floor']:.0%}",
        "" if memory is None else f"{memory:.2f}×",
        f"{_BOLD}{shown}{_BOLD}" if shown and row["kind"] == "ours" else shown,
    ]


def _model_grids(results: Results) -> list[Grid]:
    from cbsa.bench.models import split_name

    beside, field = _BESIDE.get(results.kind, _BESIDE["models"])
    columns = ("model", "px", "batch", "images/s", "ms (p20–p80)", "GB", beside)
    how = {"none": "not compiled", "blocks": "blocks compiled", "model": "compiled"}
    form = ("precision", "compilation", "num_classes", "mode")
    found = []
    for kind, rows in _groups(results.rows, lambda r: (*split_name(r["model"])[1:], *(r[k] for k in form))):
        size, rest, precision, compilation, classes, mode = kind
        title = f"{mode}: {size} {rest}, {classes} classes, {precision}, {how[compilation]}"
        names = [r["model"].removesuffix(f"_{size}_{rest}") for r in rows]  # the title says the rest
        cells = [
            (name, str(r["img_size"]), str(r["batch"]), *_model_cells(r, field))
            for name, r in zip(names, rows, strict=True)
        ]
        notes = _notes(rows, lambda r: f"{r['model']} at {r['img_size']} px, batch {r['batch']}")
        found.append(Grid(title, columns, cells, notes + _growth(rows)))
    return found


def _growth(rows: Sequence[Row]) -> tuple[str, ...]:
    """How the time of each model grows with its tokens, where that was fitted."""
    fitted = {r["model"]: r["exponent"] for r in rows if r.get("exponent") is not None}
    return tuple(f"{name}: time grows as tokens to the power of {e:.2f}" for name, e in fitted.items())


def _model_cells(row: Row, field: str) -> list[str]:
    if row["status"] != DONE:
        return [row["status"], "", "", ""]
    memory, times = row["peak_bytes"], row.get(field)
    return [
        f"{row['images_s']:,.0f}" if row["images_s"] >= 10 else f"{row['images_s']:.3g}",
        spread(row),
        "" if memory is None else f"{memory / 1e9:.2f}",
        "" if times is None else f"{_BOLD}{times:.2f}×{_BOLD}",
    ]


def spread(row: Row) -> str:
    """Median with p20 and p80, in milliseconds."""
    median, low, high = (_three_digits(row[name]) for name in ("median_ms", "p20_ms", "p80_ms"))
    return f"{median} ({low}–{high})"


def _three_digits(value: float) -> str:
    """Three digits, or all those before the point; never an exponent for what is large."""
    return f"{value:,.0f}" if value >= 999.5 else f"{value:.3g}"


def _notes(rows: Sequence[Row], name: Callable[[Row], str]) -> tuple[str, ...]:
    """What did not get a number, and why."""
    return tuple(f"{name(row)}: {row['status']}: {row['reason']}" for row in rows if row["status"] != DONE)


def _rich_cell(cell: str) -> str:
    if cell.startswith(_BOLD) and cell.endswith(_BOLD) and len(cell) > 2 * len(_BOLD):
        return f"[bold]{escape(cell.strip('*'))}[/bold]"
    return f"[dim]{cell}[/dim]" if cell == NOT_RUN else escape(cell)


def _groups(rows: Sequence[Row], key: Callable[[Row], Any]) -> list[tuple[Any, list[Row]]]:
    """Rows with the same key together, in the order of their first appearance."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return list(groups.items())
