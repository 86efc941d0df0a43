"""What an adapted ViT costs."""

import copy
from dataclasses import replace

from torch import nn

from cbsa.adaptation.timm_attention import AdaptedAttention
from cbsa.models.costs import counted_macs


def adapted_macs(vit: nn.Module, img_size: int, in_chans: int = 3) -> int:
    """Multiply-accumulates of a ViT of timm, adapted or not, for one square image, counted by PyTorch.

    Counted are the products of the plain implementation, those of the pooling among them, which need none
    where the windows divide the grid. The model stays as it is.
    """
    plain = copy.deepcopy(vit)
    for module in plain.modules():
        if isinstance(module, AdaptedAttention):
            module.style = replace(module.style, impl="reference")
    return counted_macs(plain, img_size, in_chans)
