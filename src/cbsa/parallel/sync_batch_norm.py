"""Batch statistics over several processes, on any device."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.distributed_c10d import _resolve_process_group  # type: ignore[attr-defined]

from cbsa.parallel.collectives import reduce
from cbsa.parallel.convert import as_class
from cbsa.parallel.group import ContextGroup


def synchronise_batch_norm(
    model: nn.Module, device: torch.device, group: ContextGroup | None = None
) -> nn.Module:
    """Replace the BatchNorms of a model by ones that take their statistics over several processes.

    On a GPU these are PyTorch's. PyTorch has none for the CPU, where ours make the same run possible, so that
    several processes can be tried and tested without GPUs. Parameters, buffers and names stay the same.

    Args:
        model: the model, changed in place.
        device: where it is.
        group: the processes; None for all.
    """
    if device.type == "cuda":
        processes = None if group is None else _resolve_process_group(group.name)  # type: ignore[arg-type]
        converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(  # type: ignore[no-untyped-call]
            model, processes
        )
        return converted
    for name, module in model.named_children():
        if isinstance(module, nn.BatchNorm2d):
            setattr(model, name, SyncBatchNorm2d.of(module, group))
        else:
            synchronise_batch_norm(module, device, group)
    return model


class SyncBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm over the maps of several processes; in evaluation an ordinary one."""

    group: ContextGroup | None

    @classmethod
    def of(cls, norm: nn.BatchNorm2d, group: ContextGroup | None = None) -> "SyncBatchNorm2d":
        """Take over the parameters and buffers of an ordinary one; None stands for all processes."""
        new = as_class(norm, cls)
        new.group = group
        return new

    def forward(self, input: Tensor) -> Tensor:
        """Normalise maps (B, C, h, w) by the statistics of all the processes' maps."""
        if not self.training:
            return super().forward(input)
        x = input.float() if input.dtype in (torch.bfloat16, torch.float16) else input
        sums = x.detach().sum((0, 2, 3))  # the gradient through the mean is part of the backward below
        total = torch.cat([sums, x.new_tensor([x.numel() / max(x.shape[1], 1)])])
        name = (self.group or ContextGroup.world()).name
        total = reduce(total, "sum", name)
        count = total[-1]
        mean = total[:-1] / count  # (C,)
        out: Tensor
        out, variance = _Normalise.apply(x, mean, count, self.eps, name)
        if self.running_mean is not None and self.running_var is not None and self.momentum is not None:
            assert self.num_batches_tracked is not None
            self.num_batches_tracked.add_(1)
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
            self.running_var.lerp_((variance * count / (count - 1)).to(self.running_var.dtype), self.momentum)
        if self.affine:
            out = out * self.weight[:, None, None] + self.bias[:, None, None]
        return out.to(input.dtype)


class _Normalise(torch.autograd.Function):
    """(x − mean)/std over the maps of all processes, given their mean; the backward needs two sums.

    Deviations from the common mean are squared in a second pass: no difference of large numbers.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, mean: Tensor, count: Tensor, eps: float, name: str
    ) -> tuple[Tensor, Tensor]:
        """Return normalised maps (B, C, h, w) and the variance (C,)."""
        centred = x - mean[:, None, None]
        variance = reduce(centred.square().sum((0, 2, 3)), "sum", name) / count
        inverse = (variance + eps).rsqrt()
        out = centred * inverse[:, None, None]
        ctx.save_for_backward(out, inverse, count)
        ctx.name = name
        ctx.mark_non_differentiable(variance)
        return out, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        """Gradient by x: grad less its mean and its part along the output, over the deviation."""
        out, inverse, count = ctx.saved_tensors
        sums = torch.stack([grad.sum((0, 2, 3)), (grad * out).sum((0, 2, 3))])  # (2, C)
        sums = reduce(sums, "sum", ctx.name) / count
        along = grad - sums[0][:, None, None] - out * sums[1][:, None, None]
        return along * inverse[:, None, None], None, None, None, None
