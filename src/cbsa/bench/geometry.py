"""Sizes at which operators are timed, and the fewest bytes they can move there."""

import math
import re
from dataclasses import dataclass

import torch

from cbsa._checks import check_int

FORWARD, BOTH = "forward", "forward+backward"
MODES = (FORWARD, BOTH)
# Tensors of the size of the tokens that must cross the memory bus: forward reads w and writes O; forward and
# backward together 8, the two-pass schedule's (DESIGN: 16·N·D bytes in 16 bits).
LEAST_TENSORS = {FORWARD: 2, BOTH: 8}

# N × batch: CLS and the patches of 224, 512, 1024, 2048 and 4096 px, with about 50,000 tokens in a batch.
SIZES = {
    "cuda": ((197, 256), (1025, 64), (4097, 16), (16385, 4), (65537, 1)),
    "cpu": ((197, 8), (1025, 2), (4097, 1)),
}


@dataclass(frozen=True)
class Geometry:
    """One size: N tokens of each of B sequences, in H heads of d channels, with m representatives."""

    tokens: int
    batch: int
    heads: int = 6
    head_dim: int = 64
    representatives: int = 64

    def __post_init__(self) -> None:
        for name in ("tokens", "batch", "heads", "head_dim", "representatives"):
            check_int(name, getattr(self, name))

    def __str__(self) -> str:
        return f"{self.tokens}×{self.batch}"

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape (B, H, N, d) of the projected tokens."""
        return self.batch, self.heads, self.tokens, self.head_dim

    def token_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of one tensor of tokens."""
        return math.prod(self.shape) * dtype.itemsize

    def least_bytes(self, mode: str, dtype: torch.dtype) -> int:
        """Fewest bytes that must be read and written in a mode."""
        return LEAST_TENSORS[mode] * self.token_bytes(dtype)

    def grid(self) -> tuple[int, int]:
        """The square of patches after one CLS token."""
        side = math.isqrt(max(self.tokens - 1, 0))
        if side < 1 or side * side != self.tokens - 1:
            raise ValueError(f"{self.tokens - 1} patches after CLS do not form a square to pool over")
        return side, side

    def windows(self) -> tuple[int, int]:
        """Layout of the representatives that is closest to a square."""
        rows = max(r for r in range(1, math.isqrt(self.representatives) + 1) if self.representatives % r == 0)
        return rows, self.representatives // rows


def parse_size(text: str) -> tuple[int, int]:
    """``"1025x64"`` as (tokens, batch)."""
    match = re.fullmatch(r"(\d+)[x×](\d+)", text.strip())
    if match is None:
        raise ValueError(f"size {text!r}: expected TOKENSxBATCH, for example 1025x64")
    tokens, batch = int(match[1]), int(match[2])
    return check_int("tokens", tokens), check_int("batch", batch)
