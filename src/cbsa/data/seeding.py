"""Random numbers that depend on what is drawn for, not on what was drawn before.

A seed is a hash of its purpose, the run's seed, the epoch and the image, so that batches do not depend on the
number of processes, and a run that is resumed in mid-epoch sees what it would have seen.
"""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def derive_seed(*parts: int | str) -> int:
    """Return a seed below 2⁶³ that is a hash of ``parts``, e.g. ``("augment", seed, epoch, index)``."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(*parts: int | str) -> torch.Generator:
    """Return a CPU generator seeded by :func:`derive_seed`."""
    return torch.Generator().manual_seed(derive_seed(*parts))


@contextmanager
def seeded(*parts: int | str) -> Iterator[None]:
    """Seed torch (CPU), ``random`` and NumPy by ``parts`` inside the block and restore all three after it.

    Transforms of torchvision and timm draw from these three. CUDA's generators are left alone.
    """
    states = torch.default_generator.get_state(), random.getstate(), np.random.get_state()  # noqa: NPY002
    seed = derive_seed(*parts)
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    try:
        yield
    finally:
        torch.default_generator.set_state(states[0])
        random.setstate(states[1])
        np.random.set_state(states[2])  # noqa: NPY002
