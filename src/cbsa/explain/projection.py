"""Many dimensions to two or three: principal directions, turned so that layers can be compared."""

import torch
from torch import Tensor


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
    return torch.nn.functional.pad(coordinates, (0, missing)), shares


def turn_towards(points: Tensor, reference: Tensor) -> Tensor:
    """Rotate and reflect points (n, c) to lie as close as may be to a reference (n, c): Procrustes."""
    u, _, vt = torch.linalg.svd(points.mT @ reference)
    turned: Tensor = points @ (u @ vt)
    return turned
