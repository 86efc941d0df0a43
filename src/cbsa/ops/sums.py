"""Sums over all tokens of a sequence, wherever they lie."""

from torch import Tensor


class TokenSums:
    """Where the tokens lie that an operator sums over: all of them here.

    Operators whose tokens speak to each other through sums alone take one of these. :mod:`cbsa.parallel` has
    another kind, for tokens that are spread over processes.
    """

    def counted(self, x: Tensor) -> Tensor:
        """Tokens of x (..., N, d) that this process adds to a sum: each token counts in one process."""
        return x

    def total(self, x: Tensor) -> Tensor:
        """Sum over all processes of what each of them has summed over its counted tokens."""
        return x

    def count(self, n: int) -> int:
        """Number of tokens of the sequence, of which there are n here."""
        return n


HERE = TokenSums()
