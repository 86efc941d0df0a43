"""One attention layer as probes see it; those of :mod:`cbsa.layers`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from cbsa.layers import CBSA, MHSA, MSSA, TSSA, Attention, LinearAttention
from cbsa.ops.extended import both_weights
from cbsa.ops.precision import accumulation_dtype
from cbsa.ops.reference import per_head

Grid = tuple[int, int]
KINDS = ("extraction", "softmax", "kernel", "membership", "none")  # of maps over tokens


@dataclass(frozen=True)
class Extraction:
    """What a layer with representatives does with the tokens of a batch, within each head."""

    tokens: Tensor  # (B, H, N, p): w, what representatives gather
    initial: Tensor  # (B, H, m, p): Q, from where they gather; the last time, if they do so several times
    weights: Tensor  # (B, H, m, N): A, by which they gather, eq. cross-attn
    broadcast: Tensor  # (B, H, m, N): by which tokens take them up; ``weights`` itself where that is Aᵀ
    step_rep: Tensor  # (H,): η
    step_out: Tensor  # (H,): κ
    contract: Callable[[Tensor], Tensor]

    def representatives(self) -> tuple[Tensor, Tensor]:
        """R = Q + η A w as they are extracted, and C as they are contracted, (B, H, m, p) each."""
        extracted = self.initial + per_head(self.step_rep, self.tokens.dtype) * (self.weights @ self.tokens)
        return extracted, self.contract(extracted)


class Layer(ABC):
    """An attention layer, and the block that it is in.

    Attributes:
        block: what tokens enter and leave.
        attention: the layer itself.
        norm: the norm before it.
        next_norm: the norm that sees the tokens after attention and residual; None where nothing follows.
        projection: the linear map into the heads, values last; of several maps, that of the values.
        num_heads: number of heads H.
        head_dim: their dimension p.
        kind: what map over tokens it has, one of :data:`KINDS`; see :class:`cbsa.analysis.LayerFactors`.
        scale: of the scores of its softmax.
        kernel: of linear attention.
        init: initial representatives: ``"pool"``, ``"learned"``, or ``"queries"`` if all queries are.
        num_representatives: number m of the representatives; None if all queries are.
        transposes: whether representatives are broadcast by the transpose of the weights they gather by.
        name: what to call it.
        title: what the paper calls it.
    """

    projection: nn.Linear
    num_heads: int
    head_dim: int
    kind: str
    scale: float
    kernel: str = ""
    init: str = ""
    num_representatives: int | None = 0
    transposes: bool = True
    name: str
    title: str

    def __init__(self, block: nn.Module, attention: nn.Module, norms: tuple[Any, Any]) -> None:
        self.block: Any = block
        self.attention: Any = attention
        self.norm, self.next_norm = norms

    @abstractmethod
    def grid(self, args: tuple[Any, ...]) -> Grid:
        """Layout of the patches in a call of the attention with these arguments."""

    @abstractmethod
    def extraction(self, streams: Sequence[Tensor], grid: Grid) -> Extraction:
        """What representatives do with tokens by heads, in their dtype; for ``kind="extraction"`` alone."""

    def heads(self, projected: Tensor) -> tuple[Tensor, ...]:
        """What ``projection`` returns, or its last streams, by heads: (B, H, N, p) for each stream."""
        sizes = -1, self.num_heads, self.head_dim
        return projected.view(*projected.shape[:2], *sizes).permute(2, 0, 3, 1, 4).unbind(0)

    def value_map(self) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of the part of ``projection`` that makes the tokens (or values) of the heads."""
        rows, bias = slice(-self.num_heads * self.head_dim, None), self.projection.bias
        return self.projection.weight[rows], None if bias is None else bias[rows]

    def streams(self, x: Tensor) -> tuple[Tensor, ...]:
        """Normed tokens x (B, N, dim) as they are mixed, (B, H, N, p) each, in their accumulation dtype."""
        return tuple(s.to(accumulation_dtype(s.dtype)) for s in self.heads(self.projection(x)))


class OwnLayer(Layer):
    """An attention of :mod:`cbsa.layers`, in a block of a model or of a decoder."""

    def __init__(self, block: nn.Module) -> None:
        attention: Attention = block.attn  # type: ignore[assignment]
        norm = getattr(block, "norm1", None) or block.norm
        super().__init__(block, attention, (norm, getattr(block, "norm2", None)))
        self.projection = attention.proj
        self.num_heads, self.head_dim = attention.num_heads, attention.head_dim
        self.scale, self.name = attention.head_dim**-0.5, type(attention).__name__
        self.title = self.name
        self.kind = "none"
        if isinstance(attention, CBSA):
            self.kind, self.init = "extraction", attention.init
            self.num_representatives = attention.num_representatives
            self.transposes = attention.broadcast == "transpose"
            self.title = "Agent" if attention.contraction == "none" else self.name
        elif isinstance(attention, MHSA) or (
            isinstance(attention, MSSA) and attention.contraction == "softmax"
        ):
            self.kind = "softmax"
        elif isinstance(attention, LinearAttention):
            self.kind, self.kernel = "kernel", attention.kernel
        elif isinstance(attention, TSSA):
            self.kind = "membership"

    def grid(self, args: tuple[Any, ...]) -> Grid:
        """Blocks hand the grid over beside the tokens."""
        grid: Grid = args[1]
        return grid

    def extraction(self, streams: Sequence[Tensor], grid: Grid) -> Extraction:
        """The steps of eq. CBSA, with the options of the layer."""
        layer, (w,) = self.attention, streams
        initial = layer.last_representatives(w, grid)
        a, taken = both_weights(w, initial, layer.broadcast)
        broadcast = a if self.transposes else taken.mT
        return Extraction(w, initial, a, broadcast, layer.step_rep, layer.step_out, layer.contract)
