"""The feed-forward block of the ViT."""

from torch import Tensor, nn
from torch.nn import functional as F

from cbsa._checks import check_int, check_positive_number


class MLP(nn.Module):
    """Linear, GELU, linear.

    Args:
        dim: width of the tokens.
        ratio: width of the hidden layer over ``dim``.
    """

    def __init__(self, dim: int, *, ratio: float = 4.0) -> None:
        super().__init__()
        hidden = int(check_int("dim", dim) * check_positive_number("ratio", ratio))
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens x (..., dim) one by one."""
        out: Tensor = self.fc2(F.gelu(self.fc1(x)))
        return out
