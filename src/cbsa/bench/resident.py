"""Memory of this process as the operating system counts it: what a call on the CPU takes.

Linux alone tells the largest resident set since a moment; elsewhere nothing is measured.
"""

import ctypes
import gc
from pathlib import Path

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  # what to write for it; man 5 proc


def resident_bytes() -> int | None:
    """Memory of this process now, after it has given back what it does not use."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)
    return _read("VmRSS")


def reset_peak() -> None:
    """Let the largest resident set be that from now on, where the system allows it."""
    try:
        _CLEAR.write_text(_RESET_PEAK)
    except OSError:
        return


def peak_resident_bytes() -> int | None:
    """The largest resident set since :func:`reset_peak`, or since the process began where it has none."""
    return _read("VmHWM")


def _read(field: str) -> int | None:
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith(f"{field}:")]
    return 1024 * int(found[0]) if found else None
