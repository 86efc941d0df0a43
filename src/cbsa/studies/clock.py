"""A limit on time that runs of the trainer respect."""

import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cbsa.train import StoppedError

_AGAIN = 1.0  # seconds between two requests to stop: one may come before a run listens


class _Interrupted(BaseException):
    """Not an Exception: no command may take it for a failure of its own."""


class Clock:
    """Asks the run that is under way to stop, as SIGTERM does, once the time is over.

    The run then saves its state, and the same call goes on with it later.

    Args:
        seconds: how long from now; 0 for no limit.
    """

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds if seconds else math.inf
        self.asked = False

    @property
    def is_over(self) -> bool:
        """Whether the time is over, or somebody else asked to stop."""
        return self.asked or time.monotonic() >= self.end

    @contextmanager
    def running(self) -> Iterator[None]:
        """Watch the time."""
        done = threading.Event()
        before = signal.signal(signal.SIGTERM, self._note)  # between two runs
        watch = threading.Thread(target=self._watch, args=(done,), daemon=True)
        watch.start()
        try:
            yield
        finally:
            done.set()
            watch.join()
            signal.signal(signal.SIGTERM, before)

    @contextmanager
    def interrupting(self, name: str) -> Iterator[None]:
        """Inside, the end of the time and Ctrl-C end at once what cannot save a state; it begins anew later.

        Raises:
            StoppedError: they did.
        """
        raised: list[int] = []

        def interrupt(signum: int, _: Any) -> None:
            self.asked = True
            if not raised:  # once: what it interrupts may take a moment to clear up
                raised.append(signum)
                raise _Interrupted

        before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        except _Interrupted:
            message = f"{name} was stopped by signal {raised[0]}; the same command begins it anew"
            raise StoppedError(raised[0], message) from None
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _watch(self, done: threading.Event) -> None:
        left = self.end - time.monotonic()
        wait = None if left == math.inf else max(left, 0.0)
        while not done.wait(wait):
            os.kill(os.getpid(), signal.SIGTERM)
            wait = _AGAIN

    def _note(self, *_: Any) -> None:
        self.asked = True
