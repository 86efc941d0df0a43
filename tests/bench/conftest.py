"""Settings of the tests of the benchmarks."""

import pytest


@pytest.fixture(autouse=True)
def _one_thread(one_thread):
    """The tensors are tiny, and time is not what is tested."""
