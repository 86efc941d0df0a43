"""Prepare measurements in several processes at once, and take them one after another.

Compiling and checking is most of the work of a benchmark of models, and takes one core of the machine. Each
process builds, compiles and checks a model; then all wait, and one after another has the machine for itself
while it takes its time. What fails in company, for want of memory say, is tried once more alone.
"""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any

from cbsa.bench.results import NOT_RUN, Row

Alone = Callable[[], AbstractContextManager[object]]
Measure = Callable[..., Row]
"""``measure(*task, alone=…)`` returns a row; ``alone`` is the context in which time is taken."""

_READY, _TURN = "ready", "turn"
_COMPILER_THREADS = "1"  # of each process: it is the processes that keep the cores busy
PROCESS_ENDED = "the process that measured it ended without a word"


class Crew:
    """Processes that measure; close them by leaving the ``with``.

    Args:
        measure: what each does for a task; a function of a module, since processes import it anew.
        count: how many processes.
    """

    def __init__(self, measure: Measure, count: int) -> None:
        self._measure = measure
        self._members = [self._hire() for _ in range(count)]

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *_: object) -> None:
        for process, connection in self._members:
            with suppress(OSError):
                connection.send(None)
            connection.close()
            process.join(timeout=10)
            process.kill()

    def __len__(self) -> int:
        return len(self._members)

    def measure(self, tasks: Sequence[tuple[Any, ...]]) -> Iterator[Row | None]:
        """The row of each task, at most as many as there are processes; None where a process ended."""
        if len(tasks) > len(self):
            raise ValueError(f"{len(tasks)} tasks for {len(self)} processes")
        found = self._together(tasks)
        for index, (task, row) in enumerate(zip(tasks, found, strict=True)):
            if len(tasks) > 1 and (row is None or row["status"] == NOT_RUN):
                found[index] = self._together([task])[0]
        yield from found

    def _together(self, tasks: Sequence[tuple[Any, ...]]) -> list[Row | None]:
        for place, task in enumerate(tasks):
            self._send(place, task)
        # All are prepared before the first takes its time.
        answers = [self._receive(place) for place in range(len(tasks))]
        for place, answer in enumerate(answers):
            if answer == _READY:
                self._send(place, _TURN)
                answers[place] = self._receive(place)
        return answers

    def _send(self, place: int, message: object) -> None:
        with suppress(OSError):  # one that has ended is noticed when its answer is awaited
            self._members[place][1].send(message)

    def _receive(self, place: int) -> Any:
        process, connection = self._members[place]
        try:
            return connection.recv()
        except (EOFError, OSError):
            process.kill()
            self._members[place] = self._hire()
            return None

    def _hire(self) -> tuple[multiprocessing.process.BaseProcess, Connection]:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(self._measure, theirs), daemon=False)
        process.start()
        theirs.close()
        return process, ours


def _work(measure: Measure, connection: Connection) -> None:
    """What a process does: tasks until None comes, or until the one who gives them is gone."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = _COMPILER_THREADS

    @contextmanager
    def alone() -> Iterator[None]:
        connection.send(_READY)
        connection.recv()
        yield

    with suppress(EOFError, OSError, KeyboardInterrupt):
        while (task := connection.recv()) is not None:
            connection.send(measure(*task, alone=alone))
