"""Paper figure 3d: ten noisy classes are compressed onto ten lines by the operator alone.

Points of each class are drawn from a one-dimensional subspace of R³ plus noise. The linear attention variant
(eq. variant-2) is iterated on each class in the ambient space: no parameters, forward only,

    Z ← Z − κ·∇R_c(Z),    ∇R_c(Z) = (1/ε²)·F(ZZᵀ) Z.

A singular value σ of a class then follows σ ← σ − κ·σ/(ε² + σ²), whatever its direction: small ones, the
noise, vanish first, and the principal direction stays.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cbsa._files import prepare_folder
from cbsa.experiments.report import save_figure, save_results
from cbsa.ops import linear_cbsa

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER_SNAPSHOTS = (0, 1, 256, 512, 640, 768, 896, 1024)
_CLOSEST_LINES = 25.0  # degrees: lines drawn closer to one of the others are drawn again


@dataclass(frozen=True)
class Config:
    """Settings. The paper gives classes, iterations and snapshots; the rest is our choice."""

    classes: int = 10
    points: int = 200
    noise: float = 0.1
    eps: float = 0.1
    step_size: float = 1.25e-3
    iterations: int = 1024
    seed: int = 0

    def __post_init__(self) -> None:
        for name, low in (("classes", 2), ("points", 3), ("iterations", 1)):
            if getattr(self, name) < low:
                raise ValueError(f"{name} must be at least {low}, got {getattr(self, name)}")
        if self.classes > 12:
            raise ValueError(
                f"classes must be at most 12, got {self.classes}: more lines at {_CLOSEST_LINES:g}° from "
                "each other take long to find in R³"
            )
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must be at least 0 and below 2**63, got {self.seed}")
        for name in ("noise", "eps", "step_size"):
            if not 1e-6 <= getattr(self, name) <= 1e6:
                raise ValueError(f"{name} must be between 1e-6 and 1e6, got {getattr(self, name)}")


@dataclass
class Snapshot:
    """The classes after some iterations, and how much they look like lines."""

    iteration: int
    points: Tensor  # (classes, points, 3)
    off_line: list[float]  # per class: share of the energy outside its principal direction
    closest_lines: float  # smallest angle between two classes' principal directions, in degrees
    nearest_line_accuracy: float  # share of the points that are nearest to the line of their own class

    @property
    def worst_off_line(self) -> float:
        """Share of the energy off the line, of the class for which it is largest."""
        return max(self.off_line)


@dataclass
class Result:
    """Snapshots of a run, and the energy off the line of each class after every iteration."""

    config: Config
    snapshots: list[Snapshot]
    off_line_history: list[list[float]] = field(repr=False)


def synthetic_classes(config: Config) -> Tensor:
    """Points near one line through the origin per class, (classes, points, 3) in float64."""
    generator = torch.Generator().manual_seed(config.seed)
    lines = torch.empty(0, 3, dtype=torch.float64)
    cosine = torch.tensor(_CLOSEST_LINES, dtype=torch.float64).deg2rad().cos()
    while len(lines) < config.classes:
        line = torch.randn(3, generator=generator, dtype=torch.float64)
        line = line / line.norm()
        if (lines @ line).abs().lt(cosine).all():
            lines = torch.cat([lines, line[None]])
    along = torch.rand(config.classes, config.points, 1, generator=generator, dtype=torch.float64) * 2 - 1
    noise = torch.randn(config.classes, config.points, 3, generator=generator, dtype=torch.float64)
    return along * lines[:, None] + config.noise * noise


def compress(z: Tensor, eps: float, step_size: float) -> Tensor:
    """One descent step of the compression of each class, by the linear attention variant."""
    return z - step_size / eps**2 * linear_cbsa(z, eps)


def off_line(z: Tensor) -> Tensor:
    """Share of each class's energy outside its principal direction, 0 for a line, (classes,)."""
    energy: Tensor = torch.linalg.svdvals(z).square()
    return energy[..., 1:].sum(-1) / energy.sum(-1)


def measure(iteration: int, z: Tensor) -> Snapshot:
    """Describe the classes at one moment."""
    lines = torch.linalg.svd(z, full_matrices=False).Vh[:, 0]  # (classes, 3)
    cosines = (lines @ lines.T).abs().fill_diagonal_(0)
    nearest = torch.einsum("cpd,kd->cpk", z, lines).abs().argmax(-1)
    own = torch.arange(len(z)).unsqueeze(-1)
    return Snapshot(
        iteration,
        z.clone(),
        off_line(z).tolist(),
        cosines.max().clamp(max=1).acos().rad2deg().item(),
        (nearest == own).double().mean().item(),
    )


def run(config: Config, progress: Callable[[], object] = lambda: None) -> Result:
    """Iterate the operator; ``progress`` is called after each iteration."""
    z = synthetic_classes(config)
    limit = 1e3 * z.abs().max()
    wanted = {min(i, config.iterations) for i in PAPER_SNAPSHOTS} | {config.iterations}
    snapshots, history = [measure(0, z)], [off_line(z).tolist()]
    for iteration in range(1, config.iterations + 1):
        z = compress(z, config.eps, config.step_size)
        if not z.abs().max() < limit:
            raise ValueError(f"the points diverge at iteration {iteration}: take a smaller step_size")
        history.append(off_line(z).tolist())
        if iteration in wanted:
            snapshots.append(measure(iteration, z))
        progress()
    return Result(config, snapshots, history)


def plot(result: Result) -> "Figure":
    """Snapshots in three dimensions, and the energy off the lines over the iterations below them."""
    from matplotlib import colormaps, rc_context

    from cbsa.report.style import FAINT, INK, new_figure, plain_legend, tidy

    columns = 4
    rows = -(-len(result.snapshots) // columns)
    figure = new_figure(3.1 * columns, 3.0 * rows + 2.8)
    grid = figure.add_gridspec(rows + 1, columns, height_ratios=[3.0] * rows + [2.4])
    palette = colormaps["tab10" if result.config.classes <= 10 else "tab20"]
    colors = [palette(c) for c in range(result.config.classes)]
    limit = result.snapshots[0].points.abs().max().item()
    for place, snapshot in enumerate(result.snapshots):
        with rc_context({"grid.color": FAINT}):
            axes = figure.add_subplot(grid[place // columns, place % columns], projection="3d")
        for points, color in zip(snapshot.points, colors, strict=True):
            axes.scatter(*points.T.tolist(), s=5, color=color, linewidths=0, rasterized=True)
        axes.set(xlim=(-limit, limit), ylim=(-limit, limit), zlim=(-limit, limit))
        axes.set_box_aspect((1, 1, 1), zoom=1.15)
        for axis in (axes.xaxis, axes.yaxis, axes.zaxis):
            axis.set_ticklabels([])
            axis.line.set_color(FAINT)
            axis.set_pane_color("white")
        name = "Raw" if snapshot.iteration == 0 else f"Iteration {snapshot.iteration}"
        axes.set_title(
            f"{name}\nenergy off the lines ≤ {snapshot.worst_off_line:.2g}", fontsize=9.5, color=INK
        )
    axes = figure.add_subplot(grid[rows, :])
    by_class = zip(*result.off_line_history, strict=True)
    tidy(axes, "Energy off the line, by class", "iteration")
    drawn = [
        axes.plot([max(v, 1e-16) for v in values], color=color, linewidth=1.4)[0]
        for values, color in zip(by_class, colors, strict=True)
    ]
    for snapshot in result.snapshots:
        axes.axvline(snapshot.iteration, color=FAINT, linewidth=0.8, zorder=0)
    axes.set(yscale="log", xlim=(0, result.config.iterations))
    names = [f"class {label}" for label in range(len(drawn))]
    plain_legend(axes, drawn, names, ncols=5, loc="lower left")
    figure.suptitle(
        f"{result.config.classes} noisy classes in R³, compressed onto lines by the linear attention "
        "variant of CBSA",
        fontsize=11,
        color=INK,
    )
    return figure


def save(result: Result, out: Path) -> list[Path]:
    """Write the picture (PNG, SVG) and the numbers (JSON) into ``out``; return the paths."""
    prepare_folder(out)
    snapshots = [
        {
            "iteration": s.iteration,
            "off_line_per_class": s.off_line,
            "closest_lines_degrees": s.closest_lines,
            "nearest_line_accuracy": s.nearest_line_accuracy,
        }
        for s in result.snapshots
    ]
    numbers = out / "fig-3d.json"
    save_results(numbers, {"config": asdict(result.config), "snapshots": snapshots})
    return [*save_figure(plot(result), out / "fig-3d"), numbers]
