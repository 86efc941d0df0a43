"""A gradient of one image, laid out so that PyTorch's BatchNorm reads it right on a CPU."""

from torch import Tensor

from cbsa._tracing import is_exporting


def ordered_gradient(x: Tensor) -> Tensor:
    """Give x (B, C, h, w) itself; where it is one image on a CPU, its gradient arrives in x's own order.

    Tokens (1, N, C) are a transposed map, so the gradient of the map has channels last, and where it is a
    view of them the stride of its one image is any number. In such a gradient BatchNorm's backward on the CPU
    takes numbers of one channel for those of another, without an error (seen in PyTorch 2.15). The backward
    of taking the image out of its batch copies the gradient into a new tensor.
    """
    if is_exporting() or not x.requires_grad or x.device.type != "cpu" or x.shape[0] != 1:
        return x
    return x[0][None]
