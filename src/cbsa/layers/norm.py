"""LayerNorm in the dtype of its tokens."""

from torch import Tensor, nn
from torch.nn import functional as F

from cbsa.ops.availability import kernels_serve_compiled
from cbsa.ops.precision import accumulation_dtype, no_autocast


class LayerNorm(nn.LayerNorm):
    """LayerNorm over the channels whose output has the dtype of its input, under autocast too.

    PyTorch's returns float32 under autocast, which would make the tokens between blocks float32 as well. The
    statistics are those of float32 in either case.

    In compiled code on a GPU, :meth:`beside` and :meth:`of_sum` take kernels of our own.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Normalise tokens x (..., dim)."""
        with no_autocast(x.device):
            if x.dtype == self.weight.dtype:
                return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
            wide = accumulation_dtype(x.dtype)
            weight, bias = self.weight.to(wide), self.bias.to(wide)
            return F.layer_norm(x.to(wide), self.normalized_shape, weight, bias, self.eps).to(x.dtype)

    def beside(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens x, for a residual around what follows, and x normalised."""
        if not kernels_serve_compiled(x):
            return x, self(x)
        from cbsa.ops.fused_norm import layer_norm_beside

        return layer_norm_beside(x, self.weight, self.bias, self.eps)

    def of_sum(self, x: Tensor, update: Tensor, shift: Tensor | None = None) -> Tensor:
        """Normalise x + update, plus ``shift`` (dim,): the bias of the product that made the update."""
        if not kernels_serve_compiled(x):
            total = x + update
            normed: Tensor = self(total if shift is None else total + shift.to(total.dtype))
            return normed
        from cbsa.ops.fused_norm import add_layer_norm

        return add_layer_norm(x, update, shift, self.weight, self.bias, self.eps)
