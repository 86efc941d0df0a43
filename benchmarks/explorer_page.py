"""How large a page of the explorer is, and how long `cbsa explain` takes to write it.

    python benchmarks/explorer_page.py --out benchmarks/results/cpu/explorer_page.json

One photograph (scikit-learn's china.jpg), random weights, each page by a process of its own: imports count.
Wall time depends on who else uses the machine, so the time that the process itself computed stands beside it,
and the load average before it started: on a machine of so many cores, a load above 1 means that some shared.
"""

import argparse
import json
import os
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_sample_image

from cbsa._environment import environment

MODELS = ("cbt_tiny_patch16_224", "crate_tiny_patch16_224")
SIZES = (224, 960)


def write_page(image: Path, model: str, size: int, page: Path) -> dict[str, object]:
    """Write one page; what it took."""
    arguments = ["explain", str(image), "-m", model, "--size", str(size), "-o", str(page)]
    load, before, started = os.getloadavg()[0], resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run([sys.executable, "-m", "cbsa", *arguments], check=True, stdout=subprocess.DEVNULL)
    wall, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "model": model,
        "size": size,
        "bytes": page.stat().st_size,
        "wall_s": round(wall, 2),
        "cpu_s": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 2),
        "load_before": round(load, 2),
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder) / "china.png"
        Image.fromarray(load_sample_image("china.jpg")).save(image)
        rows = [
            write_page(image, model, size, Path(folder) / "page.html") for model in MODELS for size in SIZES
        ]
    table = Table("model", "size, px", "page, MB", "wall, s", "computing, s", "load before")
    for row in rows:
        cells = (row["wall_s"], row["cpu_s"], row["load_before"])
        table.add_row(
            str(row["model"]), str(row["size"]), f"{int(str(row['bytes'])) / 1e6:.1f}", *map(str, cells)
        )
    Console().print(table)
    if options.out is not None:
        result = {
            "command": shlex.join(["python", *sys.argv]),
            "image": "scikit-learn's china.jpg, 640×427",
            "weights": "random",
            "cores": os.cpu_count(),
            "cores_shared": any(float(str(row["load_before"])) > 1 for row in rows),
            "rows": rows,
            "environment": environment(),
        }
        options.out.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
