"""The time and the memory of a call.

On a GPU calls are replayed from a CUDA graph, so that kernels follow each other as they do in compiled
models, and 256 MB are written between two replays, so that no replay finds its data in the L2 cache. A graph
holds several short calls, each on data of its own; what lies between the two events of a replay is these
calls and nothing else.
"""

import gc
import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from cbsa.bench.resident import peak_resident_bytes, reset_peak

Call = Callable[[], Any]

_WARM_UPS = 3  # calls before a capture: compilation, autotuning and lazy initialisation happen in them
_GRAPH_MS = 2.0  # short calls share a graph until it takes so long
_FLUSH_BYTES = 256 << 20  # several times the L2 cache of any GPU so far
_FEWEST, _MOST = 7, 300  # samples of a number
_SLOW, _FEWEST_SLOW = 5.0, 3  # seconds of a call on a CPU after which one warms up, and few samples suffice


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one call, and the memory it takes above what was there before."""

    median_ms: float
    p20_ms: float
    p80_ms: float
    samples: int
    calls_per_sample: int
    peak_bytes: int | None  # None where it is not measured

    def as_row(self) -> dict[str, Any]:
        """As fields of a row of results."""
        return asdict(self)


class DeviceLostError(RuntimeError):
    """The GPU can no longer be used by this process: nothing more can be measured."""


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` (0 to 1) of the values lie, interpolated between neighbours."""
    if not values:
        raise ValueError("no values to take a percentile of")
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def summarise(milliseconds: Sequence[float], calls: int = 1, peak_bytes: int | None = None) -> Timing:
    """Median and percentiles of samples that each hold the time of ``calls`` calls."""
    each = [t / calls for t in milliseconds]
    median, p20, p80 = (percentile(each, share) for share in (0.5, 0.2, 0.8))
    return Timing(median, p20, p80, len(each), calls, peak_bytes)


def measure(
    calls: Sequence[Call],
    device: torch.device,
    *,
    seconds: float = 0.2,
    flush: bool = True,
    baseline_bytes: int | None = None,
) -> Timing:
    """Time calls that do the same work on different data.

    Args:
        calls: the work; on a GPU as many of them as are short enough share one graph.
        device: where the work happens.
        seconds: time to spend on measuring, warm-up and compilation not counted.
        flush: on a GPU, empty the L2 cache between replays.
        baseline_bytes: memory that is not the call's: allocated on a GPU, by default all that is there before
            it; on a CPU the process's resident set, without which no memory is measured.
    """
    if not calls:
        raise ValueError("no call to time")
    if not seconds > 0:
        raise ValueError(f"seconds must be above 0, got {seconds}")
    if device.type == "cuda":
        with torch.cuda.device(device):
            return _measure_cuda(calls, seconds, flush, baseline_bytes)
    return _measure_cpu(calls, seconds, baseline_bytes)


def attempt(work: Callable[[], Timing]) -> tuple[Timing | None, str | None]:
    """The timing, or why there is none: a failed row must not cost the other rows."""
    try:
        return work(), None
    except Exception as error:  # whatever a kernel, a compiler or a capture raises
        reason = describe(error)
    recover()
    return None, reason


def describe(error: BaseException) -> str:
    """An error in one line."""
    if isinstance(error, torch.OutOfMemoryError):
        return "out of memory"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}"[:300] if lines else type(error).__name__


def recover() -> None:
    """Give back what a failed call left behind, or raise if the GPU is lost."""
    gc.collect()
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):  # type: ignore[no-untyped-call]
        return
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except RuntimeError as error:
        raise DeviceLostError(f"the GPU failed and must be left: {describe(error)}") from error


def _measure_cpu(calls: Sequence[Call], seconds: float, baseline_bytes: int | None) -> Timing:
    fewest = _FEWEST
    for _ in range(_WARM_UPS):
        start = time.perf_counter()
        calls[0]()
        if time.perf_counter() - start > _SLOW:
            fewest = _FEWEST_SLOW
            break
    times: list[float] = []
    reset_peak()
    end = time.perf_counter() + seconds
    for call in itertools.cycle(calls):
        start = time.perf_counter()
        call()
        now = time.perf_counter()
        times.append(1e3 * (now - start))
        if len(times) >= _MOST or (len(times) >= fewest and now >= end):
            peak = None if baseline_bytes is None else peak_resident_bytes()
            return summarise(times, peak_bytes=None if peak is None else max(0, peak - (baseline_bytes or 0)))
    raise AssertionError("cycle never ends")


def _measure_cuda(calls: Sequence[Call], seconds: float, flush: bool, baseline_bytes: int | None) -> Timing:
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UPS):
            calls[0]()
        once = _event_ms(calls[0])
        together = calls[: max(1, math.ceil(_GRAPH_MS / max(once, 1e-3)))]
        for call in together[1:]:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    peak = peak_bytes(calls[0], baseline_bytes)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = [call() for call in together]  # kept: each call writes to memory of its own
    buffer = torch.empty(_FLUSH_BYTES if flush else 0, dtype=torch.uint8, device="cuda")

    def replay() -> tuple[torch.cuda.Event, torch.cuda.Event]:
        buffer.zero_()
        events = _new_event(), _new_event()
        events[0].record()
        graph.replay()
        events[1].record()
        return events

    first = [replay() for _ in range(2)][-1]
    torch.cuda.synchronize()
    estimate = 1e-3 * max(first[0].elapsed_time(first[1]), 0.05)
    samples = min(_MOST, max(_FEWEST, round(seconds / estimate)))
    pairs = [replay() for _ in range(samples)]
    torch.cuda.synchronize()
    times = [start.elapsed_time(end) for start, end in pairs]
    del results
    graph.reset()
    return summarise(times, len(together), peak)


def peak_bytes(call: Call, baseline_bytes: int | None = None) -> int:
    """Most memory that PyTorch's allocator held during a call, above the baseline."""
    gc.collect()  # what earlier calls left in reference cycles would be freed during this one
    torch.cuda.synchronize()
    baseline = torch.cuda.memory_allocated() if baseline_bytes is None else baseline_bytes
    torch.cuda.reset_peak_memory_stats()
    result = call()
    torch.cuda.synchronize()
    del result
    return torch.cuda.max_memory_allocated() - baseline


def _event_ms(call: Call) -> float:
    start, end = _new_event(), _new_event()
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end))


def _new_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
