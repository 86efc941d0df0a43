"""When which layers are replaced: a function of the step, so that a run that goes on finds its place."""

from collections.abc import Sequence

from cbsa.train.adaptation.config import SwapConfig

Replacement = tuple[int, list[int]]  # a step, and the layers that are replaced before it


def replacements(swap: SwapConfig, layers: Sequence[int], total_steps: int) -> list[Replacement]:
    """Groups of layers with the steps before which they are replaced.

    The layers, in their order or from the last to the first, are cut into G groups of equal size, the first
    ones larger by one layer where G does not divide them. Group g = 0, …, G − 1 is replaced before step
    ⌊g·over·T/G⌋ of T: the first before any training, the last when a share of over·(1 − 1/G) is done.

    Args:
        swap: number of groups, share of the steps, order.
        layers: the layers to replace, in the model's order.
        total_steps: steps T of the run.
    """
    if swap.groups > max(len(layers), 1):
        raise ValueError(
            f"swap.groups={swap.groups}: {len(layers)} layers are replaced; choose at most as many groups"
        )
    ordered = list(layers) if swap.order == "first" else list(layers)[::-1]
    size, larger = divmod(len(ordered), swap.groups)
    found, first = [], 0
    for group in range(swap.groups):
        end = first + size + (group < larger)
        found.append((int(group * swap.over * total_steps / swap.groups), sorted(ordered[first:end])))
        first = end
    return found


def replaced_by(schedule: Sequence[Replacement], step: int) -> set[int]:
    """Layers that are replaced in a step."""
    return {layer for begin, layers in schedule if step >= begin for layer in layers}
