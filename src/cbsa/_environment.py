"""What a result depends on beside the code."""

import platform

import torch

from cbsa._version import __version__


def environment() -> dict[str, str]:
    """Versions and hardware that a number depends on."""
    return {
        "cbsa": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
    }
