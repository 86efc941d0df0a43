"""What candidates compute: their inputs, and the truth they are held to.

A problem fixes the mathematics. Several candidates may solve the same one; candidates of different problems
(CBSA, softmax attention, linear attention) are compared in speed alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from cbsa.bench.geometry import Geometry
from cbsa.bench.listing import listing, pooled_listing
from cbsa.layers import TSSA, Attention, LinearAttention
from cbsa.ops import api, contract_broadcast

Function = Callable[..., Tensor]
_MOST_ROWS = 64  # queries of softmax attention that are checked


@dataclass(frozen=True)
class Problem:
    """One function of given inputs.

    Attributes:
        name: what it is called in results.
        inputs: names of the inputs, in order; all are differentiated.
        draw: makes the inputs of a geometry, laid out as a projection leaves them.
        truth: makes, for a geometry, the function that is run in float64 to give the truth.
        plain: makes the plain PyTorch whose error in a dtype is the yardstick.
        shared: inputs that all batch elements share (step sizes): their gradients are sums over the batch.
        by_rows: the truth is for some query rows alone, given to ``truth`` and ``plain`` as ``rows=``.
    """

    name: str
    inputs: tuple[str, ...]
    draw: Callable[[Geometry, torch.dtype, torch.device, Generator], list[Tensor]]
    truth: Callable[[Geometry], Function]
    plain: Callable[[Geometry], Function]
    shared: frozenset[str] = frozenset()
    by_rows: bool = False

    def rows(self, geometry: Geometry) -> list[int] | None:
        """The queries that are checked, spread over the sequence with its ends; None for all."""
        if not self.by_rows:
            return None
        count, last = min(_MOST_ROWS, geometry.tokens), geometry.tokens - 1
        return sorted({round(i * last / max(count - 1, 1)) for i in range(count)})


def random_tokens(
    geometry: Geometry, dtype: torch.dtype, device: torch.device, generator: Generator, streams: int = 1
) -> list[Tensor]:
    """Streams of tokens (B, H, N, d), in memory as one projection writes them: (B, N, streams, H, d)."""
    batch, heads, n, d = geometry.shape
    size = (batch, n, streams, heads, d)
    x = torch.randn(size, dtype=torch.float32, device=device, generator=generator).to(dtype)
    return list(x.permute(2, 0, 3, 1, 4).unbind(0))


def pooled_contract_broadcast(
    w: Tensor, step_rep: Tensor, step_out: Tensor, grid: tuple[int, int], windows: tuple[int, int], impl: str
) -> Tensor:
    """CBSA with representatives pooled from the tokens themselves, all but CLS."""
    return api.pooled_contract_broadcast(w, grid, windows, step_rep, step_out, first=1, impl=impl)


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, rows: list[int] | None = None) -> Tensor:
    """Softmax attention of some queries, in plain PyTorch."""
    q = q if rows is None else q[:, :, rows]
    weights = torch.softmax((q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5, dim=-1)
    return weights @ v


class Attend(nn.Module):
    """What a layer does between its projections, as a module: (B, H, N, d) streams -> (B, H, N, d)."""

    def __init__(self, layer: Attention) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *streams: Tensor) -> Tensor:
        """Mix the tokens within each head."""
        return self.layer.attend(streams, None, None)


@cache
def _attend(kind: type[TSSA] | type[LinearAttention], heads: int, head_dim: int) -> Attend:
    with torch.device("meta"):  # its projections are not used
        return Attend(kind(heads * head_dim, heads))


def linear_attention(geometry: Geometry) -> Function:
    """Linear attention over q, k, v: the layer's own."""
    return _attend(LinearAttention, geometry.heads, geometry.head_dim)


def token_statistics(geometry: Geometry) -> Function:
    """TSSA over w with the temperatures given: the layer's own."""
    module = _attend(TSSA, geometry.heads, geometry.head_dim)

    def call(w: Tensor, temp: Tensor) -> Tensor:
        out: Tensor = functional_call(module, {"layer.temp": temp}, (w,))
        return out

    return call


def _steps(geometry: Geometry, device: torch.device, generator: Generator) -> list[Tensor]:
    return list(torch.randn(2, geometry.heads, device=device, generator=generator).unbind(0))


def _draw_cbsa(g: Geometry, dtype: torch.dtype, device: torch.device, generator: Generator) -> list[Tensor]:
    (w,) = random_tokens(g, dtype, device, generator)
    few = Geometry(g.representatives, g.batch, g.heads, g.head_dim, g.representatives)
    (reps,) = random_tokens(few, dtype, device, generator)
    return [w, reps, *_steps(g, device, generator)]


def _draw_pooled(g: Geometry, dtype: torch.dtype, device: torch.device, generator: Generator) -> list[Tensor]:
    return [*random_tokens(g, dtype, device, generator), *_steps(g, device, generator)]


def _draw_tssa(g: Geometry, dtype: torch.dtype, device: torch.device, generator: Generator) -> list[Tensor]:
    temp = 1 + 0.1 * torch.randn(g.heads, 1, device=device, generator=generator)
    return [*random_tokens(g, dtype, device, generator), temp]


def _pooling(g: Geometry) -> dict[str, Any]:
    return {"grid": g.grid(), "windows": g.windows()}


def _tied_attention(_: Geometry) -> Function:
    return lambda w, rows=None: softmax_attention(w, w, w, rows)


_STEPS = ("step_rep", "step_out")
CBSA = Problem(
    "CBSA, representatives given",
    ("w", "reps", *_STEPS),
    _draw_cbsa,
    truth=lambda g: listing,
    plain=lambda g: partial(contract_broadcast, impl="reference"),
    shared=frozenset(_STEPS),
)
AGENT = Problem(
    "Agent, representatives given",
    CBSA.inputs,
    _draw_cbsa,
    truth=lambda g: partial(listing, contraction="none"),
    plain=lambda g: partial(contract_broadcast, contraction="none", impl="reference"),
    shared=CBSA.shared,
)
POOLED = Problem(
    "CBSA with its pooling",
    ("w", *_STEPS),
    _draw_pooled,
    truth=lambda g: partial(pooled_listing, **_pooling(g)),
    plain=lambda g: partial(pooled_contract_broadcast, **_pooling(g), impl="reference"),
    shared=CBSA.shared,
)
SOFTMAX = Problem(
    "softmax attention",
    ("q", "k", "v"),
    partial(random_tokens, streams=3),
    truth=lambda g: softmax_attention,
    plain=lambda g: softmax_attention,
    by_rows=True,
)
TIED_SOFTMAX = Problem(
    "softmax attention, q = k = v",
    ("w",),
    random_tokens,
    truth=_tied_attention,
    plain=_tied_attention,
    by_rows=True,
)
LINEAR = Problem(
    "linear attention",
    ("q", "k", "v"),
    partial(random_tokens, streams=3),
    truth=linear_attention,
    plain=linear_attention,
)
STATISTICS = Problem(
    "TSSA",
    ("w", "temp"),
    _draw_tssa,
    truth=token_statistics,
    plain=token_statistics,
    shared=frozenset({"temp"}),
)


def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """PyTorch's attention, by the backend it is allowed."""
    return F.scaled_dot_product_attention(q, k, v)
