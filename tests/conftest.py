"""Settings of the whole suite."""

import os

import pytest
import torch
from hypothesis import HealthCheck, settings

# Without a GPU, Triton's kernels run in its interpreter; it is chosen when they are first imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

settings.register_profile(
    "cbsa",
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("cbsa")

# Files that take longest: training, kernels in the interpreter, several processes, the compiler.
_LONGEST = ("tests/train/", "tests/ops/test_fused.py", "tests/ops/test_triton", "tests/ops/test_long")
_LONGEST += ("tests/cli/test_everything.py", "tests/segmentation/test_camvid_study.py", "tests/parallel/")
_LONGEST += ("tests/studies/", "tests/bench/", "tests/models/test_tracing.py", "tests/layers/test_every")

# The tensors are small: more threads only wait for each other, in the processes that tests start too.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"
torch.set_num_threads(1 if "PYTEST_XDIST_WORKER" in os.environ else 2)


def pytest_collection_modifyitems(items):
    """Mark what runs on a GPU (`make test-gpu`), and skip what needs one where there is none.

    The files that take longest come first, so that several processes end together.
    """
    for item in items:
        if item.get_closest_marker("gpu"):
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="needs a GPU"))
        elif hasattr(item, "callspec") and item.callspec.params.get("device") == "cuda":
            item.add_marker("gpu")
    items.sort(key=lambda item: not item.nodeid.startswith(_LONGEST))


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def _one_thread():
    """One thread alone: several would wait for each other over small tensors, and sum in another order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


one_thread = pytest.fixture(_one_thread)
one_thread_throughout = pytest.fixture(scope="module")(_one_thread)


@pytest.fixture(autouse=True)
def _forget_compiled_code():
    """Each test compiles from scratch: limits on recompilation count over one test, not over the suite."""
    yield
    torch.compiler.reset()
