"""What the tests over several processes share."""

import pytest

from tests.parallel.processes import run_cases


@pytest.fixture(scope="module")
def outcomes(request, tmp_path_factory):
    """What each case of the module came to, by number of processes."""
    done = {}

    def of(processes):
        if processes not in done:
            folder = tmp_path_factory.mktemp("processes")
            done[processes] = run_cases(request.module.__name__, processes, folder)
        return done[processes]

    return of
