"""mIoU under noise on the parameters of a decoder's attention layers (paper, figure segmentation)."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from cbsa._checks import check_int
from cbsa.analysis import NoiseSweep, perturb, sweep
from cbsa.analysis.noise import PARTS
from cbsa.bench.tables import Grid
from cbsa.data import CorruptLog
from cbsa.data.resident import ResidentEvalLoader
from cbsa.experiments.perturb import Sweeps, rows_of
from cbsa.experiments.report import save_analysis
from cbsa.experiments.study_table import spread
from cbsa.report import plot_noise
from cbsa.segmentation import Segmenter
from cbsa.train.distributed import World, choose_device
from cbsa.train.segmentation.config import SegmentConfig
from cbsa.train.segmentation.task import Segmentation
from cbsa.train.segmentation.trained import check_classes, settle_for
from cbsa.train.task import Update

NAME = "fig-seg-noise"
CAPTION = (
    "Noise N(0, σ²) on the parameters of the decoder's attention layers, σ absolute; mean over the seeds. "
    "The paper draws mIoU on ADE20K, without numbers: CBSA is «extremely robust», the black box "
    "«collapses»."
)


def noise_sweep(
    config: SegmentConfig,
    model: Segmenter,
    *,
    sigmas: Sequence[float],
    seeds: int = 3,
    parts: str | Collection[str] = PARTS,
    images: int = 0,
    progress: Update = lambda done, total: None,
) -> NoiseSweep:
    """Measure the mIoU of a segmenter in percent, by the noise on its decoder and by the noise's seed.

    Args:
        config: settings of its run: the split to evaluate on, sizes and windows.
        model: the segmenter; its weights are afterwards what they were.
        sigmas: standard deviations σ of the noise, absolute.
        seeds: how many draws of the noise for each σ.
        parts: which parameters of the attention layers; see :func:`cbsa.analysis.perturb`.
        images: how many images of the split, evenly spaced; 0 for all.
        progress: called after each evaluation with how many are done and how many there are.
    """
    task, world = Segmentation(settle_for(config, model)), World(0, 1, choose_device(config.runtime.device))
    source = task.open(train=False)
    check_classes(model, len(source.classes), config)
    if check_int("images", images, at_least=0):
        source = source.evenly_spaced(images)
    corrupt = CorruptLog(config.data.max_corrupt)
    kept = ResidentEvalLoader(task.load_eval(source, world, corrupt, progress))  # read once, seen often
    model = model.to(world.device)
    total, done = len(sigmas) * check_int("seeds", seeds), 0

    def miou(sigma: float, seed: int) -> float:
        nonlocal done
        with perturb(model.decoder, sigma, seed, parts):
            score = task.evaluate(model, kept, model.num_classes, world, lambda done, total: None).miou
        done += 1
        progress(done, total)
        return score

    return sweep(miou, sigmas, range(seeds))


def grid(results: Sweeps) -> Grid:
    """mIoU of each segmenter by σ."""
    first = next(iter(results.values()))
    cells = [
        (f"{sigma:g}", *(spread(found.scores[i].tolist(), 1) for found in results.values()))
        for i, sigma in enumerate(first.sigmas)
    ]
    title = "Figure segmentation (middle, right): mIoU in % under noise on the decoder"
    if len(first.seeds) > 1:
        title += f", mean ± standard deviation over {len(first.seeds)} draws"
    return Grid(title, ("σ", *results), cells)


def save(results: Sweeps, runs: dict[str, Any], parts: Collection[str], out: Path) -> list[Path]:
    """Write the picture, and the mIoU for every σ and seed.

    Args:
        results: by label of the segmenter.
        runs: the same labels, with what to say of the run.
        parts: which parameters were perturbed.
        out: folder.
    """
    by_sigma = {label: found.table() for label, found in results.items()}
    about = {"runs": runs, "parts": list(parts), "by_sigma": by_sigma}
    return save_analysis(out, NAME, {"": plot_noise(results, "Mean IoU, %")}, rows_of(results, "miou"), about)
