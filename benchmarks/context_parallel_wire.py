"""Bytes that processes which share a sequence really send, beside the cost model's.

    python benchmarks/context_parallel_wire.py --out benchmarks/results/cpu/wire.json

One CBSA layer of CBT-S, forward and backward, in gloo processes on the CPU of one machine. Each process adds
up what it has sent through its TCP sockets and others have received (Linux), before and after a step:
payloads with what gloo puts around them and a barrier, without headers of packets. The cost model's number is
a ring's,
``cbsa.parallel.costs.context_parallel_wire``, of all processes together.
"""

import argparse
import json
import os
import socket
import struct
import tempfile
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import distributed, multiprocessing
from torch.distributed.device_mesh import init_device_mesh

from cbsa.bench.origin import command_line, describe_environment
from cbsa.layers import CBSA
from cbsa.parallel import ContextGroup, Shard, costs, count_traffic, shard_attention

PROBLEMS = {2: ((16, 32), (64, 128)), 4: ((32, 32), (128, 128))}  # processes: grids of patches in all
_BYTES_ACKED = 120  # where struct tcp_info of linux/tcp.h has tcpi_bytes_acked, 64 bits


def bytes_sent() -> int:
    """What this process has sent through the TCP sockets that it has open, each byte once."""
    total = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as opened:
                if opened.type == socket.SOCK_STREAM and opened.family in (socket.AF_INET, socket.AF_INET6):
                    told = opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED + 8)
                    total += struct.unpack_from("=Q", told, _BYTES_ACKED)[0]
        except OSError:  # closed meanwhile, or no connection
            continue
    return total


def measure(rank: int, processes: int, folder: str) -> None:
    """Two steps of each problem, of which the second is counted; the first process writes the rows."""
    torch.set_num_threads(1)
    store = distributed.FileStore(f"{folder}/store", processes)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=processes)
    group = ContextGroup.of(init_device_mesh("cpu", (processes,)))
    torch.manual_seed(0)
    layer = CBSA(384, 6)
    sharded, rows = shard_attention(layer, group), []
    for height, width in PROBLEMS[processes]:
        here = height // processes
        x = torch.randn(1, 1 + here * width, 384, requires_grad=True)
        shard = Shard((here, width), rank * here, height)
        for _ in range(2):
            distributed.barrier()
            before = bytes_sent()
            with count_traffic() as traffic:
                sharded(x, shard).square().sum().backward()
            distributed.barrier()
            sent = torch.tensor([bytes_sent() - before, traffic.total_bytes()])
        distributed.all_reduce(sent)
        rows.append(
            {
                "processes": processes,
                "tokens": 1 + height * width,
                "sent_bytes": sent[0].item(),
                "payload_bytes": sent[1].item(),
                "model_bytes": processes * costs.context_parallel_wire(layer, processes, torch.float32),
            }
        )
    if rank == 0:
        Path(folder, "rows.json").write_text(json.dumps(rows))
    distributed.barrier()
    distributed.destroy_process_group()


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for processes in PROBLEMS:
        with tempfile.TemporaryDirectory() as folder:
            multiprocessing.spawn(measure, (processes, folder), nprocs=processes)
            rows += json.loads(Path(folder, "rows.json").read_text())
    table = Table("processes", "tokens", "sent, MB", "cost model, MB")
    for row in rows:
        sent, expected = (f"{row[what] / 1e6:.3f}" for what in ("sent_bytes", "model_bytes"))
        table.add_row(str(row["processes"]), f"{row['tokens']:,}", sent, expected)
    Console().print(table)
    if options.out is not None:
        environment = describe_environment(torch.device("cpu"), ("ops", "layers", "parallel"))
        result = {"command": command_line(), "environment": environment, "rows": rows}
        options.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
