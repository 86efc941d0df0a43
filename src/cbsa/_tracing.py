"""In what kind of trace code runs, if in any."""

import torch
from torch import Tensor
from torch.autograd import forward_ad


def is_exporting() -> bool:
    """Tell whether ``torch.export`` is tracing (and not ``torch.compile``)."""
    return not torch.compiler.is_dynamo_compiling() and torch.compiler.is_exporting()


def is_transformed(*inputs: Tensor) -> bool:
    """Tell whether a transform of ``torch.func`` or forward-mode differentiation is at work."""
    if torch.compiler.is_compiling():
        return False
    if torch._C._are_functorch_transforms_active():
        return True
    return forward_ad._current_level >= 0 and any(
        forward_ad.unpack_dual(x).tangent is not None  # type: ignore[no-untyped-call]
        for x in inputs
    )
