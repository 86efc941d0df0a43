"""Colours by place: points that lie near each other look alike."""

import torch
from torch import Tensor

# Ottosson's OKLab, in which equal steps look equally large, to linear sRGB by way of three cone responses.
_TO_CONES = (
    (1.0, 0.3963377774, 0.2158037573),
    (1.0, -0.1055613458, -0.0638541728),
    (1.0, -0.0894841775, -1.291485548),
)
_TO_RGB = (
    (4.0767416621, -3.3077115913, 0.2309699292),
    (-1.2684380046, 2.6097574011, -0.3413193965),
    (-0.0041960863, -0.7034186147, 1.707614701),
)


def place_colours(points: Tensor, share: float = 0.95) -> Tensor:
    """A colour (n, 3), sRGB from 0 to 1, for each of some points (n, 2 or 3) around the origin.

    The first two coordinates give hue and strength, the third, or the mean of both, the lightness.

    Args:
        points: coordinates.
        share: share of the points that the strongest colours are made for; those beyond have them too.
    """
    reach = points.double().abs().quantile(share, dim=0)
    x, y, *more = (points.double() / torch.where(reach > 0, reach, 1)).clamp(-1, 1).unbind(1)
    z = more[0] if more else (x + y) / 3
    lab = torch.stack([0.64 + 0.2 * z, 0.17 * x, 0.17 * y], dim=1)
    cones = (lab @ lab.new_tensor(_TO_CONES).T) ** 3
    linear = (cones @ lab.new_tensor(_TO_RGB).T).clamp(0, 1)
    return torch.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
