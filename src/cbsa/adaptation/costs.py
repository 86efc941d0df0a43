"""What an adapted ViT costs."""

import copy
import math
from dataclasses import replace
from typing import Any

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


def paper_saving(vit: Any, img_size: int) -> int:
    """Multiply-accumulates that the paper's adaptation saves, by its complexities (table complexities).

    Softmax takes 2N²d between the tokens of a layer, CBSA 3Nmd + 2m²d; projections are the same. The paper's
    adaptation is that of all layers with its default number of representatives, m = p = d/H. N counts all
    tokens of the model, prefix tokens too, and pooling is free.

    Args:
        vit: a ViT of timm, adapted or not.
        img_size: side of the square image.
    """
    attention = vit.blocks[0].attn
    grid = vit.patch_embed.dynamic_feat_size((img_size, img_size))
    n = int(math.prod(grid) + vit.num_prefix_tokens)
    d = int(attention.proj.in_features)
    m = d // int(attention.num_heads)
    return len(vit.blocks) * (2 * n * n * d - 3 * n * m * d - 2 * m * m * d)
