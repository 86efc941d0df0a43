"""Speed of a training run: its loop and input pipeline against the same step on data that never changes.

    python benchmarks/training_speed.py tiny_imagenet_cbt_tiny data.root=/data/tiny-imagenet \\
        --out benchmarks/results/training_speed_h200.json

Three rates, in images/s, of one recipe in one process:

- ``whole``: the run as `cbsa train` does it: reading, augmentation, forward, backward, optimiser, log;
- ``step``: the same without the pipeline: one prepared batch on the device, again and again;
- ``model``: forward and backward alone.

The model's step is warmed up first; compilation is not counted.
"""

import argparse
import itertools
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console

from cbsa._environment import environment
from cbsa.train import override, recipe
from cbsa.train.config import TrainConfig
from cbsa.train.display import Display
from cbsa.train.distributed import join_world
from cbsa.train.engine import _Run
from cbsa.train.stopping import StopRequests


def rate(function, images: int, steps: int, device: torch.device) -> float:
    """Images/s of ``steps`` calls."""
    _wait(device)
    started = time.perf_counter()
    for _ in range(steps):
        function()
    _wait(device)
    return images * steps / (time.perf_counter() - started)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(config: TrainConfig, steps: int, rounds: int) -> dict[str, float]:
    """The three rates, each the median of some rounds taken in turn."""
    with (
        tempfile.TemporaryDirectory() as folder,
        join_world(config.runtime) as world,
        Display(Console()) as display,
    ):
        run = _Run(config, Path(folder), world, display, StopRequests(), lambda step, loss: None)
        run.model.train()
        epochs = itertools.count()
        batches = itertools.chain.from_iterable(run.data.train.epoch(epoch) for epoch in epochs)
        batch = next(batches)
        same = itertools.repeat(batch)
        images, targets = run.gradients.prepare(batch)

        def whole() -> None:
            run._step(batches)

        def step() -> None:
            run._step(same)

        def model() -> None:
            if run.gradients.graph is not None:
                run.gradients.graph(images, targets)
            else:
                run.model.zero_grad(set_to_none=True)
                run.gradients.forward_backward(images, targets)

        functions = {"whole": whole, "step": step, "model": model}
        rates: dict[str, list[float]] = {name: [] for name in functions}
        for function in functions.values():
            rate(function, config.batch_size, 5, world.device)
        for _ in range(rounds):
            for name, function in functions.items():
                rates[name].append(rate(function, config.batch_size, steps, world.device))
                run.unseen.clear()
        medians = {name: sorted(values)[len(values) // 2] for name, values in rates.items()}
    shares = {f"{name}_of_model": medians[name] / medians["model"] for name in ("whole", "step")}
    return {**medians, **shares, "whole_of_step": medians["whole"] / medians["step"]}


def main() -> None:
    """Measure recipes and write the rates."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipes", help="recipes, separated by commas")
    parser.add_argument("settings", nargs="*", help="settings, as name=value")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    results = {}
    for name in given.recipes.split(","):
        config = override(replace(recipe(name)), given.settings)
        results[name] = measure(config, given.steps, given.rounds)
        print(name, json.dumps(results[name], indent=2), flush=True)
    if given.out is not None:
        command = f"python benchmarks/training_speed.py {given.recipes} {' '.join(given.settings)}"
        payload = {
            "command": f"{command} --steps {given.steps} --rounds {given.rounds}",
            "environment": environment(),
            "unit": "images/s",
            "results": results,
        }
        given.out.write_text(json.dumps(payload, indent=2) + "\n")


if __name__ == "__main__":
    main()
