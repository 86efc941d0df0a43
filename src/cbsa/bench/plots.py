"""Pictures of results: time against the number of tokens, throughput against the resolution."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator

from cbsa.bench.geometry import MODES as OPERATOR_MODES
from cbsa.bench.model_forms import MODES as MODEL_MODES
from cbsa.bench.models import split_name
from cbsa.bench.results import Results, Row, done
from cbsa.report.style import FAINT, INK, QUIET, new_figure, plain_legend, tidy

_MARKERS = "os^Dv<>P*X"
_FAMILIES = {"cbt": "CBT (ours)", "vit": "ViT", "crate": "CRATE", "tost": "ToST"}
_FAMILIES |= {"cbt-tied": "CBT† (ours)", "depict": "DEPICT", "segmenter": "Segmenter"}
_FAMILIES |= {"vit-cbsa": "CBSA*", "vit-agent": "CBSA∨ (Agent)", "vit-linear": "linear attention"}
_OURS = {"cbt": 0, "cbt-tied": 1, "vit-cbsa": 0, "vit-agent": 1}  # families in blue, by place among the blues
_OTHERS = ("#ea580c", "#9333ea", "#475569", "#65a30d", "#0d9488", "#db2777", "#ca8a04")
_BLUES = ("#2563eb", "#0284c7", "#60a5fa", "#1e3a8a", "#38bdf8", "#93c5fd")
_LEGEND_COLUMNS = 5
_DASHES = (0, (4, 2))
_VARIANTS = ("-tied", "-compiled", "-eager", "-pooled")  # drawn in the colour of what they are variants of


def save_plots(results: Results, folder: Path) -> list[Path]:
    """Draw what the results hold, as PNG and SVG; the paths, none if no row holds a number."""
    if not done(results.rows):
        return []
    if results.kind == "ops":
        figures = {"ops": plot_operators(results)}
    else:
        figures = {f"{results.kind}-{name}": figure for name, figure in plot_models(results).items()}
    paths = []
    for name, figure in figures.items():
        for suffix in (".png", ".svg"):
            paths.append(folder / f"{name}{suffix}")
            figure.savefig(paths[-1], dpi=150, bbox_inches="tight")
    return paths


def plot_operators(results: Results) -> Figure:
    """Milliseconds against tokens on logarithmic axes, forward and forward+backward, with the byte floor."""
    rows = done(results.rows)
    names = list(dict.fromkeys(row["candidate"] for row in rows))
    styles = _operator_styles(rows, names)
    figure = new_figure(12, 4.6 + 0.22 * -(-(len(names) + 1) // _LEGEND_COLUMNS))
    for axes, mode in zip(figure.subplots(1, 2, sharex=True), OPERATOR_MODES, strict=True):
        _log_axes(axes, mode.replace("+", " + "), "tokens N (batch below)", "ms")
        these = [row for row in rows if row["mode"] == mode]
        for name in names:
            points = sorted(
                (r["tokens"], r["median_ms"], r["p20_ms"], r["p80_ms"])
                for r in these
                if r["candidate"] == name
            )
            if points:
                n, ms, low, high = zip(*points, strict=True)
                axes.plot(n, ms, **styles[name])
                axes.fill_between(n, low, high, color=styles[name]["color"], alpha=0.15, linewidth=0)
        floor = sorted({(r["tokens"], r["floor_ms"]) for r in these})
        if floor:
            axes.plot(*zip(*floor, strict=True), color=QUIET, linestyle=_DASHES, linewidth=1.3, zorder=1)
        batches = {r["tokens"]: r["batch"] for r in rows}
        _name_ticks(axes, {n: f"{n:,}\n×{batch}" for n, batch in sorted(batches.items())})
    labels = {row["candidate"]: row["label"] for row in rows}
    handles: list[Any] = [Line2D([], [], **styles[name]) for name in names]
    handles.append(Line2D([], [], color=QUIET, linestyle=_DASHES))
    copy = f" ({results.ceilings['copy_tb_s']:.3g} TB/s)" if results.ceilings else ""
    plain_legend(
        figure,
        handles,
        [*(labels[name] for name in names), f"fewest bytes by a copy{copy}"],
        loc="outside lower center",
        ncols=_LEGEND_COLUMNS,
        handlelength=4,
    )
    first = rows[0]
    _headline(
        figure,
        f"{results.environment['device']}, {first['dtype']}, {first['heads']} heads of {first['head_dim']}, "
        f"m = {first['representatives']}",
    )
    return figure


def plot_models(results: Results) -> dict[str, Figure]:
    """Images/s against the resolution on logarithmic axes, a row of panels per size; by kind of batch.

    Of adapted models and of large images the memory too.
    """
    rows = done(results.rows)
    kinds = {
        "large": [row for row in rows if row["batch"] > 1 or not _has_larger(row, rows)],
        "batch1": [row for row in rows if row["batch"] == 1 and _has_larger(row, rows)],
    }
    figures = {name: _plot_forms(results, chosen) for name, chosen in kinds.items() if chosen}
    held = [row | {"gb": row["peak_bytes"] / 1e9} for row in kinds["large"] if row["peak_bytes"] is not None]
    if held and results.kind in ("adapt", "scale"):
        figures["memory"] = _plot_forms(results, held, "gb", "peak memory in GB")
    return figures


def _has_larger(row: Row, rows: Sequence[Row]) -> bool:
    """Whether the same model was also measured with more images at a time."""
    same = ("model", "img_size", "mode")
    return any(other["batch"] > row["batch"] for other in rows if all(other[k] == row[k] for k in same))


def _plot_forms(
    results: Results, rows: Sequence[Row], value: str = "images_s", unit: str = "images/s"
) -> Figure:
    sizes = list(dict.fromkeys(split_name(row["model"])[1] for row in rows))
    families = list(dict.fromkeys(split_name(row["model"])[0] for row in rows))
    styles = {family: _family_style(family, place) for place, family in enumerate(families)}
    modes = [mode for mode in MODEL_MODES if any(row["mode"] == mode for row in rows)]
    figure = new_figure(5.6 * len(modes) + 0.6, 3.6 * len(sizes) + 0.6)
    panels = figure.subplots(len(sizes), len(modes), squeeze=False)
    for size, line in zip(sizes, panels, strict=True):
        for mode, axes in zip(modes, line, strict=True):
            _log_axes(axes, f"{size}: {mode}", "resolution in pixels", unit)
            these = [r for r in rows if r["mode"] == mode and split_name(r["model"])[1] == size]
            for family in families:
                mine = [r for r in these if split_name(r["model"])[0] == family]
                best: dict[int, float] = {}
                for r in mine:
                    best[r["img_size"]] = max(best.get(r["img_size"], 0.0), r[value])
                if best:
                    axes.plot(*zip(*sorted(best.items()), strict=True), **styles[family])
            batches = {(r["img_size"], r["batch"]) for r in these}
            ticks = {px: f"{px}\n×{max(b for p, b in batches if p == px)}" for px, _ in sorted(batches)}
            _name_ticks(axes, ticks)
    handles = [Line2D([], [], **styles[family]) for family in families]
    names = [_FAMILIES.get(family, family) for family in families]
    plain_legend(figure, handles, names, loc="outside lower center", ncols=len(names))
    _headline(figure, f"{results.environment['device']}, {rows[0]['precision']} (×: images at a time)")
    return figure


def _operator_styles(rows: Sequence[Row], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Ours in blues, the first one thick; others in other colours, a variant dashed in its first one's."""
    kind = {row["candidate"]: row["kind"] for row in rows}
    colours: dict[str, str] = {}
    left = {True: list(_BLUES), False: list(_OTHERS)}
    styles = {}
    for place, name in enumerate(names):
        mine, base = kind[name] == "ours", name
        for ending in _VARIANTS if not mine else ():
            base = base.replace(ending, "")
        variant = base in colours
        if not variant:
            remaining = left[mine]
            colours[base] = remaining.pop(0) if remaining else QUIET
        first = mine and colours[name] == _BLUES[0]
        styles[name] = {
            "color": colours[base],
            "marker": _MARKERS[place % len(_MARKERS)],
            **_marker(first),
            "linewidth": 3.2 if first else 1.4,
            "linestyle": _DASHES if variant else "-",
            "zorder": 4 if first else 3 if mine else 2,
        }
    return styles


def _family_style(family: str, place: int) -> dict[str, Any]:
    ours = family in _OURS
    colour = _BLUES[_OURS[family]] if ours else _OTHERS[place % len(_OTHERS)]
    return {
        "color": colour,
        "marker": _MARKERS[place % len(_MARKERS)],
        **_marker(ours),
        "linewidth": 2.6 if ours else 1.6,
        "zorder": 3 if ours else 2,
    }


def _marker(full: bool) -> dict[str, Any]:
    """Small and full, or around these: what lies in the same place can be told apart."""
    return {"markersize": 4.5} if full else {"markersize": 7.5, "markerfacecolor": "none"}


def _log_axes(axes: Axes, title: str, xlabel: str, ylabel: str) -> None:
    tidy(axes, title, xlabel, ylabel)
    axes.set(xscale="log", yscale="log")
    axes.grid(axis="both", which="major", color=FAINT, linewidth=0.8)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.yaxis.set_minor_formatter(lambda value, _: "")  # over less than a decade there would be labels
    axes.tick_params(which="minor", length=0)


def _name_ticks(axes: Axes, names: dict[int, str]) -> None:
    """Ticks at the sizes measured, and nowhere else."""
    axes.set_xticks(list(names), list(names.values()))
    axes.xaxis.set_minor_locator(NullLocator())
    low, high = axes.get_ylim()
    if high / low < 1000:  # decades alone would be few ticks
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    if high / low < 12:  # less than a decade might hold no tick
        middle = (low * high) ** 0.5
        axes.set_ylim(middle / 12**0.5, middle * 12**0.5)


def _headline(figure: Figure, text: str) -> None:
    figure.suptitle(text, fontsize=11, color=INK, x=0.01, ha="left")
    figure.get_layout_engine().set(h_pad=0.1, w_pad=0.1)  # type: ignore[union-attr, call-arg]
