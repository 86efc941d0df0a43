"""The float64 truth for sequences too long to hold A in memory: chunks of tokens, derivatives by hand."""

from collections.abc import Iterator

import torch
from torch import Tensor


class Streamed:
    """`contract_broadcast` and its gradients at ⟨grad, output⟩, in float64, whatever the dtype of the inputs.

    Tokens are rows, names those of the operator's derivation (src/cbsa/ops/README.md). Only what is asked for
    by :meth:`output` and :meth:`grad_w` can be as long as the sequence. Every image needs a real token.
    """

    def __init__(
        self,
        w: Tensor,
        reps: Tensor,
        step_rep: Tensor,
        step_out: Tensor,
        grad: Tensor,
        *,
        mask: Tensor | None = None,
        contraction: str = "softmax",
        chunk: int = 16_384,
    ) -> None:
        self.w, self.grad, self.mask, self.chunk = w, grad, mask, chunk
        self.scale = w.shape[-1] ** -0.5
        self.q = reps.double()
        eta, self.kappa = (step.double()[:, None, None] for step in (step_rep, step_out))
        self.lse, gathered = self._gather_tokens()
        r = self.q + eta * gathered
        b = torch.softmax(self.scale * r @ r.mT, -1)
        self.c = b @ r if contraction == "softmax" else r

        u = sum(self._weights(part) @ self._grad(part) for part in self._parts())
        grad_c = self.kappa * u
        if contraction == "softmax":
            grad_b = grad_c @ r.mT
            grad_t = b * (grad_b - (b * grad_b).sum(-1, keepdim=True))
            grad_r = b.mT @ grad_c + self.scale * (grad_t + grad_t.mT) @ r
        else:
            grad_r = grad_c
        self.grad_gathered = eta * grad_r
        self.row_dot = (grad_c * self.c + self.grad_gathered * gathered).sum(-1, keepdim=True)
        self.grad_step_out = (u * self.c).sum((0, 2, 3))
        self.grad_step_rep = (grad_r * gathered).sum((0, 2, 3))
        self.grad_reps = grad_r + self.scale * sum(
            self._grad_scores(part) @ self._tokens(part) for part in self._parts()
        )

    def output(self, tokens: slice) -> Tensor:
        """O of some tokens."""
        return self.kappa * self._weights(tokens).mT @ self.c

    def grad_w(self, tokens: slice) -> Tensor:
        """Gradient with respect to some tokens of w."""
        return self._weights(tokens).mT @ self.grad_gathered + self.scale * (
            self._grad_scores(tokens).mT @ self.q
        )

    def results(self) -> tuple[Tensor, ...]:
        """Output and the gradients with respect to w, reps, step_rep and step_out."""
        out, grad_w = (
            torch.cat([function(part) for part in self._parts()], 2)
            for function in (self.output, self.grad_w)
        )
        return out, grad_w, self.grad_reps, self.grad_step_rep, self.grad_step_out

    def _parts(self) -> Iterator[slice]:
        n = self.w.shape[2]
        for first in range(0, n, self.chunk):
            yield slice(first, min(first + self.chunk, n))

    def _gather_tokens(self) -> tuple[Tensor, Tensor]:
        """Log-sum-exp of the scores (B, H, m, 1) and D = A w (B, H, m, d), online."""
        top = torch.full_like(self.q[..., :1], -1e300)
        total, gathered = torch.zeros_like(top), torch.zeros_like(self.q)
        for part in self._parts():
            scores = self._scores(part)
            higher = torch.maximum(top, scores.amax(-1, keepdim=True))
            shrink, weights = torch.exp(top - higher), torch.exp(scores - higher)
            total = shrink * total + weights.sum(-1, keepdim=True)
            gathered = shrink * gathered + weights @ self._tokens(part)
            top = higher
        return top + total.log(), gathered / total

    def _tokens(self, part: slice) -> Tensor:
        return self._without_padding(self.w[:, :, part].double(), part, 0.0)

    def _grad(self, part: slice) -> Tensor:
        return self.grad[:, :, part].double()

    def _scores(self, part: slice) -> Tensor:
        scores = self.scale * self.q @ self._tokens(part).mT
        return self._without_padding(scores.mT, part, -torch.inf).mT

    def _weights(self, part: slice) -> Tensor:
        """The columns of A that belong to some tokens."""
        return torch.exp(self._scores(part) - self.lse)

    def _grad_scores(self, part: slice) -> Tensor:
        along = self.kappa * self.c @ self._grad(part).mT + self.grad_gathered @ self._tokens(part).mT
        return self._weights(part) * (along - self.row_dot)

    def _without_padding(self, x: Tensor, part: slice, value: float) -> Tensor:
        """x (B, H, n, ...) with padding replaced."""
        return x if self.mask is None else x.masked_fill(~self.mask[:, None, part, None], value)
