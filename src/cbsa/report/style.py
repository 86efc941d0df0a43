"""The look of all pictures: colours that colour-blind readers can tell apart, quiet axes."""

from collections.abc import Sequence
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

INK, QUIET, FAINT = "#1f2430", "#6b7280", "#e5e7eb"  # text, secondary text, lines of the grid
RIGHT, WRONG = "#15803d", "#dc2626"
PALETTE = ("#2563eb", "#ea580c", "#0d9488", "#9333ea", "#ca8a04", "#db2777", "#475569", "#65a30d")
DOTTED: dict[str, Any] = {"color": QUIET, "linestyle": (0, (1, 2)), "linewidth": 1.1}  # for limits
UNTRAINED = ", untrained"  # how the name of a model with random weights ends, beside its trained twin
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


def colours(count: int) -> list[Any]:
    """One colour each for ``count`` things: the palette, or a range of hues where it is too short."""
    if count <= len(PALETTE):
        return list(PALETTE[:count])
    return [colormaps["turbo"](0.05 + 0.9 * i / (count - 1)) for i in range(count)]


def line_styles(count: int) -> list[dict[str, Any]]:
    """How to draw each of ``count`` lines: colour and marker both tell them apart."""
    looks = zip(colours(count), range(count), strict=True)
    return [
        {"color": colour, "marker": MARKERS[i % len(MARKERS)], "markersize": 4.5, "linewidth": 1.8}
        for colour, i in looks
    ]


def model_styles(names: Sequence[str]) -> list[dict[str, Any]]:
    """How to draw the line of each model; an untrained one is drawn as its twin, but dashed and hollow."""
    trained = [name for name in names if name.removesuffix(UNTRAINED) not in set(names) - {name}]
    looks = dict(zip(trained, line_styles(len(trained)), strict=True))
    pale: dict[str, Any] = {"linestyle": (0, (4, 2)), "markerfacecolor": "white", "linewidth": 1.3}
    return [looks[name] if name in looks else looks[name.removesuffix(UNTRAINED)] | pale for name in names]


def new_figure(width: float, height: float) -> Figure:
    """An empty white figure of so many inches that lays itself out."""
    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def tidy(axes: Axes, title: str, xlabel: str = "", ylabel: str = "") -> None:
    """Title on the left, no box, a faint horizontal grid behind the data."""
    axes.set_title(title, loc="left", fontsize=10.5, fontweight="bold", color=INK)
    axes.set_xlabel(xlabel, color=QUIET, fontsize=9)
    axes.set_ylabel(ylabel, color=QUIET, fontsize=9)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color("#9ca3af")
    axes.tick_params(colors=QUIET, labelsize=8.5, length=0)
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)


def layer_axis(axes: Axes, layers: int) -> None:
    """Layers 1, 2, … on the horizontal axis."""
    axes.xaxis.set_major_locator(MaxNLocator(nbins=12, integer=True, min_n_ticks=1))
    axes.set_xlim(0.5, layers + 0.5)


def bare(axes: Axes, frame: str | None = None, width: float = 2.0) -> None:
    """No ticks; no frame, or one of a colour."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(frame is not None)
    if frame is not None:
        axes.spines[:].set(color=frame, linewidth=width)


def plain_legend(owner: Axes | Figure, handles: Sequence[Any], names: Sequence[str], **kwargs: Any) -> Legend:
    """A legend that shows names as they are: no mathematics between dollar signs, no hidden underscores."""
    legend: Legend = owner.legend(
        handles, [str(i) for i in range(len(names))], frameon=False, fontsize=8.5, labelcolor=INK, **kwargs
    )
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set_parse_math(False)
        text.set_text(name)
    return legend


def legend_below(figure: Figure, names: Sequence[str], styles: Sequence[dict[str, Any]]) -> Legend:
    """A legend of lines under all panels, in as many columns as fit the width."""
    shown = [shorten(name, 40) for name in names]
    letters = 12.5 * figure.get_figwidth()
    columns = min(max(1, int(letters / (8 + max(map(len, shown))))), len(shown))
    handles = [Line2D([], [], **style) for style in styles]
    return plain_legend(figure, handles, shown, loc="outside lower left", ncols=columns)


def shorten(name: str, length: int) -> str:
    """``name`` on one line, cut to ``length`` characters."""
    name = " ".join(str(name).split())
    return name if len(name) <= length else name[: length - 1] + "…"
