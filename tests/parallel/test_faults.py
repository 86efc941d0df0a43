"""A process that dies or hangs in the middle of a step: the others say so, within the timeout."""

import os
import time
from datetime import timedelta

import pytest
import torch
from torch import distributed, multiprocessing
from torch.distributed.device_mesh import init_device_mesh

from cbsa.models import Transformer
from cbsa.parallel import LostProcessError, context_parallel
from tests.parallel.processes import PRELOAD

TIMEOUT = 6.0


def _step(rank, folder, fault):
    """Two steps; in the second backward, process 1 ends without a word, or sleeps."""
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=TIMEOUT),
    )
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    model = Transformer(32, 4, embed_dim=16, depth=2, num_heads=2, num_classes=5, representatives=(2, 2))
    parallel = context_parallel(model, mesh)
    steps = iter(range(2))

    def fail(module, grad_input, grad_output):
        if next(steps) == 1 and rank == 1:
            if fault == "hangs":
                time.sleep(3 * TIMEOUT)
            os._exit(0)

    parallel.blocks[1].register_full_backward_hook(fail)
    began = time.monotonic()
    try:
        for _ in range(2):
            began = time.monotonic()
            parallel(torch.randn(2, 3, 16, 32)).sum().backward()
        outcome = "no error"
    except LostProcessError as error:
        outcome = str(error)
    torch.save((outcome, time.monotonic() - began), f"{folder}/{rank}.pt")
    os._exit(0)  # the group cannot be left in order any more


@pytest.mark.parametrize("fault", ["dies", "hangs"])
def test_a_lost_process_is_an_error_in_the_others(tmp_path, fault):
    multiprocessing.set_forkserver_preload(PRELOAD)
    processes = multiprocessing.start_processes(
        _step, (str(tmp_path), fault), nprocs=2, join=False, start_method="forkserver"
    )
    processes.processes[0].join(60)
    processes.processes[1].kill()
    outcome, seconds = torch.load(tmp_path / "0.pt")
    assert "another process has ended, is stuck beyond the timeout" in outcome
    assert seconds < TIMEOUT + 4
