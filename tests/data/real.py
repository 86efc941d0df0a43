"""Where the tests look for real data: the environment variable CBSA_DATA, or beside the repository."""

import os
from pathlib import Path

import pytest


def real_data(name):
    """The folder of a real data set; skips the test where it is absent."""
    root = Path(os.environ.get("CBSA_DATA") or Path(__file__).parents[3] / "shared" / "data")
    if not (root / name).is_dir():
        pytest.skip(f"no real data at {root / name}: set CBSA_DATA to the folder that holds {name}/")
    return root / name
