"""Reasons to stop before the end: a signal, a loss that is not finite."""

import signal
import threading
from types import FrameType, TracebackType


class StoppedError(RuntimeError):
    """The run was asked to stop; its state is saved.

    Attributes:
        signum: the signal that asked for it.
    """

    def __init__(self, signum: int, message: str) -> None:
        super().__init__(message)
        self.signum = signum


class NonFiniteError(RuntimeError):
    """A loss or a parameter became NaN or infinite; the message says where."""


class StopRequests:
    """Turns SIGTERM and SIGINT into a request to stop after the present step, with the state saved.

    A second SIGINT is Python's own: it stops at once. Outside of the main thread signals cannot be caught,
    and nothing is changed.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._previous: dict[int, signal._HANDLER] = {}

    def __enter__(self) -> "StopRequests":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received == number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number
