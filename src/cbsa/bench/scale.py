"""``cbsa bench scale``: one image from 512 to 16,384 pixels, and how time grows with its tokens."""

import math
import os
import statistics
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from cbsa._checks import check_positive_number
from cbsa.bench import models
from cbsa.bench.model_forms import PRECISIONS, Form
from cbsa.bench.results import Row, done

MODELS = ("cbt_small_patch16_224", "vit_small_patch16_224")
RESOLUTIONS = (512, 1024, 2048, 4096, 8192, 16384)
_KEPT = 3  # of the device's memory, a third may be what training keeps for the backward
FEWEST_TOKENS = 4096  # from which on the growth is fitted: below, launches and weights weigh more than tokens


class ScaleForm(Form):
    """How a model is run: softmax attention, a ViT's, by cuDNN on a GPU, the fastest of its backends.

    Models that recompute activations by their size do so from a third of the device's memory on.
    """

    plain_impl: ClassVar[str] = "sdpa"  # the plainest that stores nothing of size N×m

    def create(self) -> nn.Module:
        """The model for images of its size, told how much memory there is."""
        model = super().create()
        if isinstance(kept := getattr(model, "kept_bytes", None), int):
            model.kept_bytes = min(kept, device_bytes(next(model.parameters()).device) // _KEPT)  # type: ignore[assignment]
        return model

    def attending(self, device: torch.device) -> AbstractContextManager[object]:
        """cuDNN's attention and no other; it has none in float32."""
        if device.type == "cuda" and PRECISIONS[self.precision] != torch.float32:
            return sdpa_kernel(SDPBackend.CUDNN_ATTENTION)
        return super().attending(device)


@dataclass(frozen=True)
class Config(models.Config):
    """What is measured, and how long.

    Attributes:
        longest: seconds that a call may take, as far as the smaller images tell; longer ones are not run.
    """

    img_sizes: tuple[int, ...] = RESOLUTIONS
    batches: tuple[int, ...] = (1,)
    longest: float = 20.0
    kind: ClassVar[str] = "scale"
    form: ClassVar[type[Form]] = ScaleForm
    one_size_at_a_time: ClassVar[bool] = True  # by which it is known what would take too long

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive_number("longest", self.longest)

    def why_not(self, form: Form, rows: Sequence[Row]) -> str | None:
        """That a call would take too long, by the growth of the two largest images that were measured."""
        smaller = sorted(
            (r for r in _alike(models.row_key(form), done(rows)) if r["img_size"] < form.img_size),
            key=lambda r: int(r["img_size"]),
        )[-2:]
        if not smaller:
            return None
        growth = max(1.0, exponent(smaller, fewest=0) or 1.0)
        tokens = token_count(form.name, form.img_size) / token_count(form.name, smaller[-1]["img_size"])
        seconds = 1e-3 * smaller[-1]["median_ms"] * tokens**growth
        if seconds <= self.longest:
            return None
        return f"a call would take about {seconds:,.0f} s, above --longest {self.longest:g}"

    def compare(self, rows: Sequence[Row]) -> None:
        """Enter into rows what they are beside others, and how their model's time grows."""
        super().compare(rows)
        for row in rows:
            row["tokens"] = token_count(row["model"], row["img_size"])
            row["exponent"] = exponent(_alike(row, done(rows)))


def device_bytes(device: torch.device) -> int:
    """Memory of a device: of a GPU its own, else the machine's."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def token_count(name: str, img_size: int) -> int:
    """Tokens of a square image, CLS included."""
    return (img_size // models.patch_size(name)) ** 2 + 1


def exponent(rows: Sequence[Row], fewest: int = FEWEST_TOKENS) -> float | None:
    """The power of the number of tokens that fits the time best, over rows with ``fewest`` tokens or more."""
    points = [
        (math.log(tokens), math.log(row["median_ms"]))
        for row in rows
        if (tokens := token_count(row["model"], row["img_size"])) >= fewest
    ]
    if len({x for x, _ in points}) < 2:
        return None
    sizes, times = zip(*points, strict=True)
    return statistics.linear_regression(sizes, times).slope


def _alike(wanted: Row, rows: Sequence[Row]) -> list[Row]:
    """Rows that differ in the size of the image alone."""
    return [r for r in rows if all(r[k] == wanted[k] for k in models.KEY if k != "img_size")]
