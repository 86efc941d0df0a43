"""What every attention layer here shares: heads, projections, padding, and the checks of its input."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from cbsa._checks import check_floating, check_grid, check_int, check_mask
from cbsa.layers.depthwise import DepthwiseConv


class Attention(nn.Module, ABC):
    """Project tokens, let a subclass mix them within each head (:meth:`attend`), and project back.

    ``forward(x, grid=None, mask=None, bias=True)``: x (B, N, dim) with prefix tokens (CLS, registers) first,
    then the patch tokens; ``grid`` is the layout of the patch tokens, ``(h, w)``, ``(n,)`` or ``(t, h, w)``,
    and ``None`` stands for a square; ``mask`` (B, N) is True for real tokens. Padding tokens neither attend
    nor are attended, their content never matters, and their output is 0. Without ``bias`` that of ``to_out``
    is left for what follows to add.

    Args:
        dim: width of the tokens.
        num_heads: number of heads K, the paper's subspaces.
        head_dim: dimension p of each, by default ``dim / num_heads``.
        streams: how many projections of a token enter :meth:`attend` (1, or 3 for query, key and value).
        bias: whether these projections have a bias.
        tied: project back with the transposed bases U_k themselves, as the derivation has it, instead of
            with a matrix of its own (the paper's over-parameterisation).
        num_prefix_tokens: tokens before the patches (CLS, registers): ``grid`` lays out the others.
        dwconv: side of the filters of a depth-wise convolution of the projected tokens (of the values, where
            there are some), which is added to what attention makes of them; 0 for none.
        rank: rank of the grid that it runs over.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        head_dim: int | None = None,
        streams: int = 1,
        bias: bool = False,
        tied: bool = False,
        num_prefix_tokens: int = 1,
        dwconv: int = 0,
        rank: int = 2,
    ) -> None:
        super().__init__()
        self.dim = check_int("dim", dim)
        self.num_heads = check_int("num_heads", num_heads)
        if head_dim is None and dim % num_heads:
            raise ValueError(f"dim={dim} is not divisible by num_heads={num_heads}; give head_dim= to choose")
        self.head_dim = check_int("head_dim", dim // num_heads if head_dim is None else head_dim)
        self.streams = streams
        self.num_prefix_tokens = check_int("num_prefix_tokens", num_prefix_tokens, at_least=0)
        inner = num_heads * self.head_dim
        self.proj = nn.Linear(dim, streams * inner, bias=bias)
        self.to_out = None if tied else nn.Linear(inner, dim)
        local = (
            DepthwiseConv(inner, dwconv, rank=rank, num_prefix_tokens=num_prefix_tokens) if dwconv else None
        )
        self.local = local

    @property
    def tied(self) -> bool:
        """Whether the bases themselves project back."""
        return self.to_out is None

    @abstractmethod
    def attend(self, streams: Sequence[Tensor], grid: tuple[int, ...] | None, mask: Tensor | None) -> Tensor:
        """Mix tokens within each head: (B, H, N, p) for each stream -> (B, H, N, p).

        Padding tokens of the input are 0 before the projection; what is returned for them is ignored.
        """

    def check_tokens(self, argument: str, x: Tensor) -> None:
        """Check that ``x`` is a floating-point tensor (B, N, dim) with tokens."""
        check_floating(argument, x)
        if x.dim() != 3 or x.shape[1] < 1 or x.shape[2] != self.dim:
            raise ValueError(
                f"{argument} must have shape (B, N, {self.dim}) with N >= 1, got {tuple(x.shape)}"
            )

    def lay_out(
        self, x: Tensor, grid: int | Sequence[int] | None, mask: Tensor | None
    ) -> tuple[int, ...] | None:
        """Check the layout of the patches of x (B, N, dim), and return what :meth:`attend` is told of it."""
        return None if grid is None else check_grid(grid, x.shape[1] - self.num_prefix_tokens)

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        """Tokens x (B, N, dim) within each head, (B, H, N, p) for each stream."""
        projected: Tensor = self.proj(x)
        heads = projected.view(*x.shape[:2], self.streams, self.num_heads, self.head_dim)
        return heads.permute(2, 0, 3, 1, 4).unbind(0)

    def project_back(self, heads: Tensor, bias: bool = True) -> Tensor:
        """Tokens (B, N, dim) of what each head holds, (B, H, N, p); with ``bias`` plus that of ``to_out``."""
        out = heads.transpose(1, 2).flatten(2)  # (B, N, H p)
        if self.to_out is None:
            return out @ self.proj.weight.to(out.dtype)
        return self.to_out(out) if bias else F.linear(out, self.to_out.weight)

    def forward(
        self,
        x: Tensor,
        grid: int | Sequence[int] | None = None,
        mask: Tensor | None = None,
        bias: bool = True,
    ) -> Tensor:
        """Mix tokens x (B, N, dim); see the class."""
        self.check_tokens("x", x)
        sizes = self.lay_out(x, grid, mask)
        check_mask(mask, x.shape[0], x.shape[1], x.device)
        padding = None if mask is None else ~mask.unsqueeze(-1)  # (B, N, 1)
        if padding is not None:
            x = x.masked_fill(padding, 0)
        streams = self.project(x)
        heads = self.attend(streams, sizes, mask)
        if self.local is not None:
            nearby = self.local(streams[-1].transpose(1, 2).flatten(2), sizes)  # (B, N, H p)
            heads = heads + nearby.view(*x.shape[:2], self.num_heads, self.head_dim).transpose(1, 2)
        del streams  # as large as the tokens, and read no more
        out = self.project_back(heads, bias)
        return out if padding is None else out.masked_fill(padding, 0)

    def reset_parameters(self) -> None:
        """Draw the parameters of the layer itself (steps, learned representatives) as the reference does.

        Step sizes are standard normal, of either sign.
        """
        for name, parameter in self.named_parameters(recurse=False):
            if name.startswith("step") or name == "initial_reps":
                nn.init.normal_(parameter)

    def extra_repr(self) -> str:
        """Describe the layer in ``print(model)``."""
        return (
            f"dim={self.dim}, num_heads={self.num_heads}, head_dim={self.head_dim}, tied={self.tied}, "
            f"num_prefix_tokens={self.num_prefix_tokens}"
        )
