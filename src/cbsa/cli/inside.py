"""Commands of ``cbsa`` run in the process of another program: it saves a start of Python and of a GPU."""

import shlex
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest import mock

import typer


def run_inside(words: Sequence[object], log: Path) -> int:
    """Run ``cbsa WORDS…`` and return its exit status; what it says is added to the file ``log``.

    An error that the command does not expect has status 1, and its trace is in the log.
    """
    with _as_command(words, log) as (app, arguments):
        try:
            app(arguments)
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else int(end.code is not None)
        except Exception:
            traceback.print_exc()
            return 1
    return 0


def call_inside(words: Sequence[object], log: Path) -> None:
    """Run ``cbsa WORDS…``; what it says is added to the file ``log``, and its errors are raised.

    Raises:
        RuntimeError: it ended with another status than 0, or refused what it was given; the message says why.
    """
    with _as_command(words, log) as (app, arguments):
        try:
            status = app(arguments, standalone_mode=False)
        except typer.BadParameter as error:
            print(error.message, file=sys.stderr)
            raise RuntimeError(error.message) from error
        except Exception:
            traceback.print_exc()
            raise
    if status:
        raise RuntimeError(f"cbsa {shlex.join(map(str, words))} ended with status {status}; see {log}")


@contextmanager
def _as_command(words: Sequence[object], log: Path) -> Iterator[tuple[Any, list[str]]]:
    """The program and its arguments; inside, it believes to be alone, and writes into the log."""
    from cbsa.cli import app

    arguments = [str(word) for word in words]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file, redirect_stdout(file), redirect_stderr(file):
        print(f"\n$ cbsa {shlex.join(arguments)}", flush=True)
        with mock.patch.object(sys, "argv", ["cbsa", *arguments]):
            yield app, arguments
