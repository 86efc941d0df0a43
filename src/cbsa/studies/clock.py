"""A limit on time that runs of the trainer respect."""

import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_AGAIN = 1.0  # seconds between two requests to stop: one may come before a run listens


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

    def _watch(self, done: threading.Event) -> None:
        left = self.end - time.monotonic()
        wait = None if left == math.inf else max(left, 0.0)
        while not done.wait(wait):
            os.kill(os.getpid(), signal.SIGTERM)
            wait = _AGAIN

    def _note(self, *_: Any) -> None:
        self.asked = True
