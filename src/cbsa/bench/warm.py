"""Compile operators ahead, in several processes at once: caches on disk then serve the one that measures.

Compilation takes most of the time of a benchmark and one core of the machine. What fails here fails again,
and is reported, where it is measured.
"""

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from typing import Any

import torch

from cbsa.bench.candidates import CANDIDATES
from cbsa.bench.compiling import fresh_compiler
from cbsa.bench.geometry import BOTH, Geometry

_THREADS = "2"  # of the compiler in each process


def compile_ahead(
    work: Callable[..., object],
    tasks: Sequence[tuple[Any, ...]],
    jobs: int,
    say: Callable[[str], object] = lambda text: None,
) -> int:
    """Do ``work(*task)`` for each task in ``jobs`` processes; the number of tasks that raised nothing."""
    if not tasks or jobs < 1:
        return 0
    say(f"compiling ahead: {len(tasks)} pieces in {jobs} process{'es' if jobs > 1 else ''}")
    context = multiprocessing.get_context("spawn")
    succeeded = 0
    with ProcessPoolExecutor(min(jobs, len(tasks)), context, initializer=_limit_threads) as pool:
        for future in as_completed([pool.submit(work, *task) for task in tasks]):
            succeeded += future.exception() is None
    return succeeded


def compile_candidate(name: str, geometry: Geometry, dtype: torch.dtype, device: str, mode: str) -> None:
    """Compile a candidate as it will be timed, by running it once."""
    candidate, place = CANDIDATES[name], torch.device(device)
    draw = candidate.problem.draw(geometry, dtype, place, torch.Generator(place).manual_seed(0))
    with fresh_compiler():
        function = candidate.build(geometry)
        if mode != BOTH:
            with torch.no_grad():
                function(*draw)
            return
        leaves = [x.detach().requires_grad_() for x in draw]
        out = function(*leaves)
        torch.autograd.grad(out, leaves, torch.randn_like(draw[0]))


def _limit_threads() -> None:
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = _THREADS
    with suppress(RuntimeError):
        torch.set_num_threads(1)
