"""Cases that run in several gloo processes, all of a module in one start of them."""

import importlib
import traceback
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed, multiprocessing
from torch.distributed.device_mesh import init_device_mesh

PRELOAD = ["cbsa.parallel", "torch._dynamo", "torch.distributed.fsdp", "pytest"]


def run_cases(module: str, size: int, folder: Path, timeout: float = 60.0) -> dict[str, list[str | None]]:
    """Run ``CASES`` of a module, functions of a mesh, in ``size`` processes; what went wrong, by rank.

    A case that fails in one process ends them all: the later ones are not run. Processes are forked from a
    server that has imported everything.
    """
    multiprocessing.set_forkserver_preload(PRELOAD)
    given = (module, size, str(folder), timeout)
    multiprocessing.start_processes(_run, given, nprocs=size, start_method="forkserver")
    ranks = [torch.load(folder / f"{rank}.pt") for rank in range(size)]
    return {case: [rank.get(case, "not run") for rank in ranks] for case in ranks[0]["names"]}


def _run(rank: int, module: str, size: int, folder: str, timeout: float) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=timeout),
    )
    mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("context",))
    cases = importlib.import_module(module).CASES
    outcomes = {"names": list(cases)}
    for name, case in cases.items():
        torch.manual_seed(0)
        try:
            case(mesh)
            outcomes[name] = None
        except Exception:
            outcomes[name] = traceback.format_exc()
            break
        finally:
            torch.compiler.reset()
    torch.save(outcomes, f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


def summed(x: torch.Tensor) -> torch.Tensor:
    """Sum over all processes."""
    x = x.detach().clone()
    distributed.all_reduce(x)
    return x
