"""Arrays as text in a page: quantised, laid end to end, deflated, base64.

Two forms, both decoded by ``decode.js``:

- ``"weights"``: values in [0, ∞) as 8-bit integers q with a scale per row, a = scale·(q/255)⁴. The fourth
  root gives small weights small steps, so that tokens which no representative gathers much keep their maps:
  with s = (a/scale)^¼, |error| ≤ scale·((s + 1/510)⁴ − s⁴), below 1 % of the row's largest weight.
- ``"numbers"``: values of either sign as 16-bit integers with a scale per matrix; |error| ≤ scale/65,534.
"""

import base64
import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[Any]
NOT_FINITE = "the model's activations are not finite (NaN or infinity) for this image"


@dataclass
class Packer:
    """Collects arrays into one block of bytes."""

    parts: list[bytes] = field(default_factory=list)
    size: int = 0

    def weights(self, values: Tensor) -> dict[str, Any]:
        """Store non-negative values (..., n), quantised in 8 bits with a scale per row; returns where."""
        scale = values.amax(-1)
        share = values.double() / scale.double().where(scale > 0, 1).unsqueeze(-1)
        levels = (255 * share**0.25).round().to(torch.uint8)
        return self._store("weights", levels, scale)

    def numbers(self, values: Tensor, batch: int) -> dict[str, Any]:
        """Store values, quantised in 16 bits with a scale per entry of the first ``batch`` axes."""
        scale = values.abs().flatten(batch).amax(-1)
        divisor = scale.double().where(scale > 0, 1).view(*scale.shape, *[1] * (values.dim() - batch))
        levels = (32767 * values.double() / divisor).round().to(torch.int16)
        return self._store("numbers", levels, scale)

    def text(self) -> str:
        """All that was stored, deflated, in base64."""
        return base64.b64encode(zlib.compress(b"".join(self.parts), 9)).decode("ascii")

    def _store(self, form: str, levels: Tensor, scale: Tensor) -> dict[str, Any]:
        if not bool(scale.isfinite().all()):
            raise ValueError(NOT_FINITE)
        return {
            "form": form,
            "shape": list(levels.shape),
            "levels": self._append(levels.cpu().numpy()),
            "scale": self._append(scale.float().cpu().numpy()),
            "scales": scale.numel(),
        }

    def _append(self, array: Array) -> int:
        """Add little-endian bytes, from a multiple of four on; returns the offset."""
        data = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes()
        offset = self.size
        data += b"\0" * (-len(data) % 4)
        self.parts.append(data)
        self.size += len(data)
        return offset
