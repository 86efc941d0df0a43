"""In what kind of trace code runs, if in any."""

import torch


def is_exporting() -> bool:
    """Tell whether ``torch.export`` is tracing (and not ``torch.compile``)."""
    return not torch.compiler.is_dynamo_compiling() and torch.compiler.is_exporting()
