"""Numbers that a model keeps for its backward: what decides whether they are computed again instead."""

from torch import nn

from cbsa.layers import ConvStem

# Of a block, for each token and channel: input and output of the first norm, w, output of the operator, input
# and output of the second norm, output of ISTA; of an MLP, its hidden channels before and after GELU instead.
BLOCK = {"ista": 7, "mlp": 14}
# Tensors that a stage of the stem keeps: what BatchNorm, GELU and the next convolution read; the last has
# neither of the latter two.
STAGE = 3


def stage_numbers(stem: ConvStem) -> list[int]:
    """Numbers that come out of each stage of the stem, for each patch."""
    channels = [stage[0].out_channels for stage in list(stem.proj)[::2]]  # type: ignore[index]
    return [c * (stem.patch_size >> (i + 1)) ** 2 for i, c in enumerate(channels)]


def kept_by_stem(stem: ConvStem) -> int:
    """Numbers that the stem keeps for each patch, its pixels among them."""
    *stages, last = stage_numbers(stem)
    return stem.in_chans * stem.patch_size**2 + STAGE * sum(stages) + last


def kept_by_patch(stem: nn.Module, depth: int, dim: int, feed_forward: str) -> int:
    """Numbers that a model keeps for each patch: those of a convolutional stem, and of the blocks."""
    of_stem = kept_by_stem(stem) if isinstance(stem, ConvStem) else 0
    return of_stem + depth * BLOCK[feed_forward] * dim
