"""The demo: a small CBT learns digits on a CPU, and a page shows what it learnt and how it sees.

It is the first thing a newcomer runs, so it uses every part: a recipe, the training loop, evaluation, the
probes of :mod:`cbsa.analysis` and the pictures of :mod:`cbsa.report`.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor

from cbsa._environment import environment
from cbsa.analysis import attention_maps, coding_rates
from cbsa.data import DataConfig, build_eval_loader, normalise, open_source
from cbsa.explain import at_photographs, open_subject, photographs, write_explorer
from cbsa.explain.models import shipped_models
from cbsa.models import Transformer
from cbsa.report import (
    Picture,
    Section,
    per_class_accuracy,
    plot_attention,
    plot_confusion,
    plot_curves,
    plot_examples,
    plot_heads,
    plot_rates,
    write_page,
)
from cbsa.train import Metrics, TrainConfig
from cbsa.train.assess import assess, config_of_run
from cbsa.train.log import read_epochs
from cbsa.train.run_folder import read_config, read_summary


def write_demo_page(run: Path, out: Path) -> Path:
    """Write a page about a finished run of a small data set into ``out``.

    Args:
        run: folder of the run.
        out: folder of the page.

    Returns:
        Path of the page.
    """
    config, summary = read_config(run), read_summary(run)
    if summary is None:
        raise ValueError(f"{run} is not finished: run the same command again, it goes on")
    model: Any = timm.create_model(f"local-dir:{run / 'model'}", pretrained=True).eval()
    images, truth = _test_images(config.data)
    with torch.no_grad():
        probabilities = model(normalise(images, config.data.mean, config.data.std)).softmax(-1)
    confidence, predicted = probabilities.max(-1)
    metrics = assess(config_of_run(run)).metrics
    parameters = sum(p.numel() for p in model.parameters())
    tiles = [
        ("test accuracy", f"{metrics.top1:.2f} %"),
        ("test images", f"{metrics.count}"),
        ("parameters", f"{parameters:,}"),
        ("time", f"{summary['seconds']:.0f} s"),
        ("images per second", f"{summary['images_per_second']:,.0f}"),
    ]
    sections = [
        _training(run, config),
        _mistakes(metrics, images, truth, predicted, confidence, summary["classes"]),
        _compression(model, normalise(images[:128], config.data.mean, config.data.std)),
        _attention(model, images, truth, config.data, summary["classes"]),
        _settings(config, summary),
    ]
    return write_page(
        out,
        "A CBT reads digits",
        tiles,
        sections,
        lead="A Contract-and-Broadcast Transformer, trained from scratch on this computer. Its attention "
        "gathers a few representatives of all tokens, contracts them, and broadcasts the contractions back: "
        "a gradient step of a coding-rate objective, in time linear in the number of tokens.",
    )


def write_demo_explorer(out: Path) -> Path:
    """Write a page to look into the CBT that ships, on photographs, into ``out``; returns its path."""
    subjects = [at_photographs(open_subject(name)) for name in shipped_models()[:1]]
    return write_explorer(photographs(), subjects, out / "explorer.html")


def _test_images(data: DataConfig) -> tuple[Tensor, Tensor]:
    """All test images (n, C, S, S) as bytes, and their classes (n,)."""
    source = open_source(data, train=False)
    (batch,) = build_eval_loader(data, source, batch_size=len(source), device=torch.device("cpu"))
    return batch.images[batch.valid], batch.targets[batch.valid]


def _training(run: Path, config: TrainConfig) -> Section:
    return Section(
        "Training",
        f"{config.epochs} epochs with {config.optimizer.name}, batches of {config.batch_size}. The training "
        "loss is the higher one: training images are shifted at random, and its targets are smoothed.",
        [Picture(plot_curves({"digits_cbt": read_epochs(run)}), alt="Loss, accuracy and learning rate")],
    )


def _mistakes(
    metrics: Metrics, images: Tensor, truth: Tensor, predicted: Tensor, confidence: Tensor, classes: list[str]
) -> Section:
    assert metrics.confusion is not None
    wrong = int((truth != predicted).sum())
    accuracy = per_class_accuracy(metrics.confusion)
    worst = int(accuracy.nan_to_num(2).argmin())
    return Section(
        "What it gets right and wrong",
        f"{wrong} of {metrics.count} test images are misread. The hardest class is «{classes[worst]}» with "
        f"{100 * accuracy[worst]:.1f} % right.",
        [
            Picture(
                plot_confusion(metrics.confusion, classes), "Rows: true digit. Columns: predicted digit."
            ),
            Picture(
                plot_examples(images, truth, predicted, confidence, classes),
                "Test images with prediction and confidence; mistakes come first, framed in red.",
            ),
        ],
    )


def _compression(model: Transformer, images: Tensor) -> Section:
    rates = coding_rates(model, images)
    fallen, sparsity = int((rates.attention < rates.input).sum()), rates.sparsity.mean().item()
    return Section(
        "Compression, layer by layer",
        "The objective behind the attention is a coding rate: how many nats it takes to describe the tokens "
        "within each head's subspace, up to a precision of 0.1. Attention is derived as a descent step of "
        f"it. Here the rate falls through attention in {fallen} of {rates.input.numel()} heads. The "
        f"feed-forward, ISTA, then makes the tokens sparse: {sparsity:.0%} of their entries are exactly 0.",
        [Picture(plot_rates(rates), "Mean over heads, band: one standard deviation; 128 test images.")],
    )


def _attention(
    model: Transformer, images: Tensor, truth: Tensor, data: DataConfig, classes: list[str]
) -> Section:
    first = [int((truth == c).nonzero()[0]) for c in range(len(classes)) if bool((truth == c).any())]
    chosen = images[first]
    maps = attention_maps(model, normalise(chosen, data.mean, data.std))
    few = [0, 3, 5, 8]
    some = replace(maps, maps=maps.maps[:, few])
    titles = [classes[int(truth[i])] for i in first]
    return Section(
        "Where the class token looks",
        "CBSA never forms an N×N attention matrix. The map of the class token over the patches is a row of "
        "AAᵀ, with A the weights by which the representatives gather the tokens. Bright patches share "
        "representatives with the class token. On 8×8 patches of so small a model the maps are coarse.",
        [
            Picture(plot_attention(chosen, maps, titles=titles), "One row per digit, one column per layer."),
            Picture(
                plot_heads(chosen[few], some, titles=[titles[i] for i in few]),
                "The heads of the last layer: each looks in its own subspace.",
            ),
        ],
    )


def _settings(config: TrainConfig, summary: dict[str, Any]) -> Section:
    return Section(
        "Settings, and where to go from here",
        "The run's folder holds its settings, log, checkpoints and weights. «cbsa train --list» lists "
        "recipes for real data, «cbsa plot RUN» draws curves, «cbsa eval RUN» evaluates again.\n\n"
        "explorer.html, beside this page, looks into a CBT that learnt photographs: click any patch. "
        "«cbsa explain -m RUN» writes such a page about this one.",
        facts=[
            ("model", ", ".join([config.model.name, *(f"{k} {v}" for k, v in config.model.kwargs.items())])),
            (
                "optimiser",
                f"{config.optimizer.name}, lr {config.optimizer.lr:g}, {config.schedule.name} schedule",
            ),
            ("images", f"{config.data.dataset}, resized to {config.data.img_size} px"),
            ("seed", str(config.seed)),
            *((name, value) for name, value in environment().items()),
        ],
    )
