"""What a person sees of a run while it goes on."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Display:
    """Progress bars with loss, learning rate, speed and memory, and one line an epoch.

    Args:
        console: where to show them; None for a process that shows nothing.
    """

    def __init__(self, console: Console | None) -> None:
        self.console = console if console is not None else Console(quiet=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            TextColumn("{task.fields[status]}"),
            console=self.console,
            transient=True,
            disable=console is None or not console.is_terminal,
        )

    def __enter__(self) -> "Display":
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def say(self, message: str) -> None:
        """Print a message, with rich's markup, above the bars."""
        self.console.print(message, soft_wrap=True, highlight=False)

    def warn(self, message: str) -> None:
        """Print a message that needs attention, as it is."""
        self.console.print(f"[yellow]Warning:[/yellow] {escape(message)}", soft_wrap=True, highlight=False)

    @contextmanager
    def task(self, name: str, total: int | None = None) -> Iterator[Callable[..., None]]:
        """A bar for one piece of work; yields ``update(done, total=None, **status)``."""
        task = self._progress.add_task(name, total=total, status="")

        def update(done: int, total: int | None = None, **status: str) -> None:
            text = {"status": "  ".join(f"{k} {v}" for k, v in status.items())} if status else {}
            self._progress.update(task, completed=done, total=total, **text)  # type: ignore[arg-type]

        try:
            yield update
        finally:
            self._progress.remove_task(task)
