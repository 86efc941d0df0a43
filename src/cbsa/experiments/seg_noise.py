"""mIoU under noise on the parameters of a decoder's attention layers (paper, figure segmentation)."""

from collections.abc import Collection, Sequence

from cbsa._checks import check_int
from cbsa.analysis import NoiseSweep, perturb, sweep
from cbsa.analysis.noise import PARTS
from cbsa.data import CorruptLog
from cbsa.data.resident import ResidentEvalLoader
from cbsa.segmentation import Segmenter
from cbsa.train.distributed import World, choose_device
from cbsa.train.segmentation.config import SegmentConfig
from cbsa.train.segmentation.task import Segmentation
from cbsa.train.segmentation.trained import check_classes, settle_for
from cbsa.train.task import Update


def noise_sweep(
    config: SegmentConfig,
    model: Segmenter,
    *,
    sigmas: Sequence[float],
    seeds: int = 3,
    parts: str | Collection[str] = PARTS,
    images: int = 0,
    corrupt: CorruptLog | None = None,
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
        corrupt: account of unreadable images; by default one that allows ``config.data.max_corrupt``.
        progress: called after each evaluation with how many are done and how many there are.
    """
    task, world = Segmentation(settle_for(config, model)), World(0, 1, choose_device(config.runtime.device))
    source = task.open(train=False)
    check_classes(model, len(source.classes), config)
    if check_int("images", images, at_least=0):
        source = source.evenly_spaced(images)
    corrupt = corrupt or CorruptLog(config.data.max_corrupt)
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
