"""Commands of ``cbsa`` run in the process of another program: it saves a start of Python and of a GPU."""

import shlex
import sys
import traceback
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock


def run_inside(words: Sequence[object], log: Path) -> int:
    """Run ``cbsa WORDS…`` and return its exit status; what it says is added to the file ``log``.

    An error that the command does not expect has status 1, and its trace is in the log.
    """
    from cbsa.cli import app

    arguments = [str(word) for word in words]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file, redirect_stdout(file), redirect_stderr(file):
        print(f"\n$ cbsa {shlex.join(arguments)}", flush=True)
        try:
            with mock.patch.object(sys, "argv", ["cbsa", *arguments]):
                app(arguments)
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else int(end.code is not None)
        except Exception:
            traceback.print_exc()
            return 1
    return 0
