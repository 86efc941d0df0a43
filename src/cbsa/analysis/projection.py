"""Many dimensions to two or three: principal directions, turned so that layers can be compared."""

import torch
from torch import Tensor
from torch.nn import functional as F


def principal(points: Tensor, count: int, fit: Tensor | None = None) -> tuple[Tensor, list[float]]:
    """Coordinates of points (n, p) along their ``count`` principal directions, and each one's variance.

    Args:
        points: what to project.
        count: number of directions; those beyond the dimension are 0.
        fit: points (k, p) that the directions and the origin are taken from, if not all.

    Returns:
        (n, count) in float64, and the share of the variance of the fitted points along each direction.
    """
    source = (points if fit is None else fit).double()
    centre = source.mean(0)
    # The covariance is p×p, however many points there are.
    spread = source - centre
    values, vectors = torch.linalg.eigh(spread.mT @ spread)
    values, vectors = values.flip(0).clamp(min=0), vectors.flip(1)
    largest = vectors.abs().argmax(0, keepdim=True)
    vectors = vectors * vectors.gather(0, largest).sign()  # the sign of a direction is arbitrary: fix it
    coordinates = (points.double() - centre) @ vectors[:, :count]
    missing = count - coordinates.shape[1]
    total = values.sum().item()
    shares = [(value / total if total > 0 else 0.0) for value in values[:count].tolist()] + [0.0] * missing
    return F.pad(coordinates, (0, missing)), shares


def turn_towards(points: Tensor, reference: Tensor) -> Tensor:
    """Rotate and reflect points (n, c) to lie as close as may be to a reference (n, c): Procrustes."""
    u, _, vt = torch.linalg.svd(points.mT @ reference)
    turned: Tensor = points @ (u @ vt)
    return turned


def token_planes(states: Tensor, prefix: int = 1) -> tuple[Tensor, list[list[float]], list[float]]:
    """Tokens of one image, state by state, along the three principal directions of each state's patches.

    Every token is scaled to one length (LayerNorm without parameters), so that spreads compare, and every
    state is turned towards the one before it, so that tokens can be followed.

    Args:
        states: (states, N, dim), as :func:`cbsa.analysis.token_states` has them for one image.
        prefix: how many tokens come before the patches.

    Returns:
        Coordinates (states, N, 3) in float64; of each state, the share of the variance along each direction;
        and the root mean square distance of the patches from their mean, by their length.
    """
    planes: list[Tensor] = []
    variance: list[list[float]] = []
    spread: list[float] = []
    for state in states:
        tokens = F.layer_norm(state.double(), state.shape[-1:])
        patches = tokens[prefix:]
        plane, shares = principal(tokens, 3, fit=patches)
        planes.append(turn_towards(plane, planes[-1]) if planes else plane)
        variance.append(shares)
        spread.append((patches - patches.mean(0)).square().mean().sqrt().item())
    return torch.stack(planes), variance, spread
