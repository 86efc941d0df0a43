"""Where a number comes from: the machine, the versions and the code it depends on."""

import hashlib
import importlib.metadata
import shlex
import sys
from functools import cache
from pathlib import Path

import torch

import cbsa
from cbsa._environment import environment
from cbsa.bench.ceilings import device_name

_PACKAGES = ("triton", "timm")
CODE = ("ops", "layers", "models")  # folders of the package that a speed depends on


def describe_environment(device: torch.device, code: tuple[str, ...] = CODE) -> dict[str, str]:
    """Versions and hardware, as :func:`cbsa._environment.environment` has them, and what speed depends on.

    Args:
        device: where the work happens.
        code: folders of the package whose files count.
    """
    found = environment() | {"device": device_name(device)}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    if device.type == "cuda":
        found["cuda"] = str(torch.version.cuda)
        found["cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
    found["threads"] = str(torch.get_num_threads())
    found["code"] = code_fingerprint(code)
    return found


@cache
def code_fingerprint(code: tuple[str, ...] = CODE) -> str:
    """A few letters that change with any change to the code in some folders of the package."""
    package = Path(cbsa.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(p for folder in code for p in (package / folder).rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def command_line() -> str:
    """The command that is running, as one would type it."""
    program = Path(sys.argv[0]).name
    return shlex.join(["cbsa" if program == "__main__.py" else program, *sys.argv[1:]])
