"""``cbsa bench adapt``: ViTs before and after their attention is swapped, in one run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from cbsa._checks import check_choice
from cbsa.adaptation import STYLES, adapt
from cbsa.bench import models
from cbsa.bench.model_forms import Form
from cbsa.bench.results import Row, ratio

ORIGINAL = "vit"  # the family that is compared with; others have the style behind it: vit-cbsa
RESOLUTIONS = (224, 384, 512, 1024, 2048)
_REST = "patch16_224"


class AdaptedForm(Form):
    """How an adapted ViT is run; its name says style and size: ``vit-cbsa_small_patch16_224``."""

    def create(self) -> nn.Module:
        """timm's ViT with random weights, in float32, its attention swapped."""
        family, size, rest = models.split_name(self.name)
        vit = Form(f"{ORIGINAL}_{size}_{rest}", self.img_size, *self._how()).create()
        return adapt(vit, family.partition("-")[2] or "softmax")

    def _how(self) -> tuple[int, str, str, str, int]:
        return self.batch, self.mode, self.precision, self.compilation, self.num_classes


@dataclass(frozen=True)
class Config(models.Config):
    """What is measured, and how long."""

    img_sizes: tuple[int, ...] = RESOLUTIONS
    batches: tuple[int, ...] = (models.LARGE,)
    kind: ClassVar[str] = "adapt"
    form: ClassVar[type[Form]] = AdaptedForm
    code: ClassVar[tuple[str, ...]] = (*models.Config.code, "adaptation")

    def compare(self, rows: Sequence[Row]) -> None:
        """Enter how many times the images per second of the ViT, and how much of its memory, each row has."""
        for row in rows:
            _, size, rest = models.split_name(row["model"])
            original = f"{ORIGINAL}_{size}_{rest}"
            shared = [k for k in models.KEY if k != "model"]
            same = [r for r in rows if r["model"] == original and all(r[k] == row[k] for k in shared)]
            found = same[0] if same and row["model"] != original else {}
            row["over_original"] = ratio(row.get("images_s"), found.get("images_s"))
            row["memory_of_original"] = ratio(row.get("peak_bytes"), found.get("peak_bytes"))


def names(sizes: Sequence[str] = models.SIZES, styles: Sequence[str] = STYLES) -> tuple[str, ...]:
    """Names of ViTs of some sizes in some styles, as forms have them; softmax, the ViT itself, is first."""
    chosen = dict.fromkeys(check_choice("style", style, STYLES) for style in styles)
    families = {style: ORIGINAL if style == "softmax" else f"{ORIGINAL}-{style}" for style in chosen}
    ordered = sorted(chosen, key=lambda style: style != "softmax")
    return tuple(
        f"{families[style]}_{check_choice('size', size, models.SIZES)}_{_REST}"
        for size in sizes
        for style in ordered
    )
