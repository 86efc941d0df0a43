"""What the collectives of context parallelism send, counted as they are called."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

_counting: list["Traffic"] = []


class Traffic:
    """Payloads that this process has handed to collectives, by their names.

    Attributes:
        calls: number of calls.
        numbers: numbers handed over; a ring sends 2·(P − 1)/P of those of an ``"all_reduce"`` over the wire.
        bytes: the same in bytes.
    """

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.numbers: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def total_bytes(self) -> int:
        """Bytes over all collectives."""
        return sum(self.bytes.values())


@contextmanager
def count_traffic() -> Iterator[Traffic]:
    """Count what this process sends through :mod:`cbsa.parallel` within the context."""
    traffic = Traffic()
    _counting.append(traffic)
    try:
        yield traffic
    finally:
        _counting.remove(traffic)


def record(collective: str, sent: Tensor) -> None:
    """Add a payload to all counts under way."""
    for traffic in _counting:
        traffic.calls[collective] += 1
        traffic.numbers[collective] += sent.numel()
        traffic.bytes[collective] += sent.numel() * sent.element_size()
