"""Segmentation that nobody taught: the CLS token's attention maps against masks of the foreground."""

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cbsa._checks import check_choice, check_int, check_number
from cbsa.analysis.maps import attention_maps
from cbsa.ops.precision import solve_dtype

TARGETS = ("foreground", "background", "boundary")
LABELS = ("pets", "voc")
RESIZES = ("nearest", "bilinear")
Masks = Tensor | Sequence[Tensor]
Progress = Callable[[int, int | None], object]  # batches done, batches in all if known
_BACKGROUND, _FOREGROUND, _BOUNDARY = 0, 1, 2  # of canonical masks


@dataclass(frozen=True)
class ZeroShotSegmentation:
    """Jaccard similarities of thresholded attention maps with three targets, by layer, image and head.

    The last axis of every tensor is foreground, background, boundary (``TARGETS``). NaN where the mask has no
    pixel of the target; means leave these images out.
    """

    jaccard: Tensor  # (layers, images, heads, 3) float64 where the device has it
    layers: tuple[int, ...]  # which layers of the model these are, from 0
    mass: float  # share of the attention that was kept
    resize: str  # how maps were brought to the size of the masks

    @property
    def best(self) -> Tensor:
        """Mean over images of each one's best map of all, (3,): the paper's table qual-seg."""
        return _best(self.jaccard.transpose(0, 1).flatten(1, 2), 1).nanmean(0)

    @property
    def per_layer(self) -> Tensor:
        """Mean over images of the best head of each, (layers, 3): the paper's table qual-seg-layers."""
        return _best(self.jaccard, 2).nanmean(1)

    @property
    def per_head(self) -> Tensor:
        """Mean over images, (layers, heads, 3): no choice by the answer."""
        return self.jaccard.nanmean(1)

    @property
    def best_head(self) -> Tensor:
        """Which head is best, (layers, images, 3) int64; the first of equals."""
        return self.jaccard.nan_to_num(-1).argmax(2)

    def table(self) -> list[dict[str, float]]:
        """One row per layer and head, ready for a CSV file; means over images."""
        per_head = self.per_head
        return [
            {
                "layer": layer,
                "head": head,
                **{target: per_head[i, head, t].item() for t, target in enumerate(TARGETS)},
            }
            for i, layer in enumerate(self.layers)
            for head in range(per_head.shape[1])
        ]

    def layer_table(self) -> list[dict[str, float]]:
        """One row per layer with its best head for each image, as the paper's table across layers."""
        per_layer = self.per_layer
        return [
            {"layer": layer, **{target: per_layer[i, t].item() for t, target in enumerate(TARGETS)}}
            for i, layer in enumerate(self.layers)
        ]


def zero_shot_segmentation(
    model: nn.Module,
    images: Tensor | Iterable[tuple[Tensor, Masks]],
    masks: Masks | None = None,
    *,
    labels: str = "pets",
    layers: Sequence[int] | None = None,
    query: int = 0,
    mass: float = 0.6,
    resize: str = "nearest",
    count_boundary: bool = False,
    progress: Progress = lambda done, total: None,
) -> ZeroShotSegmentation:
    """Compare the CLS token's attention maps with masks, without any training (paper, appendix C).

    The map of each layer and head (:func:`attention_maps`: a row of A_k A_kᵀ for CBSA, of the softmax for
    MSSA and MHSA) is thresholded as in DINO: patches are taken in descending order until they hold the share
    ``mass`` of the attention on the patches (0.6 there), CLS left out; patches without attention are never
    taken. Then, in pixels of the mask:

    - foreground: Jaccard |map ∩ foreground| / |map ∪ foreground|;
    - background: the same of the complement of the map with the background;
    - boundary: the same of the map itself with the boundary, over all pixels.

    Boundary pixels ("void" in VOC) do not count for foreground and background, as is usual for both data
    sets; with ``count_boundary`` they count as being in neither. The paper says neither this nor how a binary
    map is compared with three targets.

    Maps are stretched over their mask, so masks may have any size as long as they show what the image shows:
    resize (squash) images rather than crop them, or crop both. ``resize="nearest"`` thresholds patches and
    enlarges the result, as DINO does; ``"bilinear"`` enlarges the map (``align_corners=False``) and
    thresholds pixels.

    Args:
        model: any model that probes know (:class:`cbsa.analysis.Anatomy`) with maps over tokens; TSSA has
            none, and is refused by :func:`attention_maps`. Its mode and hooks are left as they were.
        images: (B, C, height, width), with ``masks``; or an iterable of pairs (images, masks), as
            :func:`cbsa.data.segmentation_loader` yields them, without. Batches may differ in size.
        masks: (B, height, width), or one tensor (height, width) per image, of integers.
        labels: what the integers mean: ``"pets"`` (1 foreground, 2 background, 3 boundary) or ``"voc"`` (0
            background, 255 boundary, all others foreground).
        layers: which blocks, counted from 0, or from the end if negative; all by default.
        query: index of the query token; 0 is CLS.
        mass: share of the attention to keep, above 0 and at most 1.
        resize: ``"nearest"`` or ``"bilinear"``.
        count_boundary: count boundary pixels for foreground and background too.
        progress: called after each batch with how many are done, and how many there are or None.

    Returns:
        Similarities on the model's device.
    """
    if not 0 < check_number("mass", mass) <= 1:
        raise ValueError(f"mass is the share of the attention to keep, above 0 and at most 1, got {mass}")
    check_choice("labels", labels, LABELS)
    check_choice("resize", resize, RESIZES)
    check_int("query", query, at_least=0)
    results: list[Tensor] = []  # by image, (layers, heads, 3)
    wanted: tuple[int, ...] = ()
    batches = [(images, masks)] if masks is not None else images
    total = len(batches) if isinstance(batches, Sized) else None
    for done, (pixels, truth) in enumerate(_pairs(batches, masks is not None), start=1):
        if len(pixels):
            found = attention_maps(model, pixels, layers, query, normalize=False)
            wanted = found.layers
            for maps, mask in zip(found.maps.unbind(1), truth, strict=True):  # (layers, H, h, w)
                results.append(_compare(maps, canonical(mask, labels), mass, resize, count_boundary))
        progress(done, total)
    if not results:
        raise ValueError("there is no image: give at least one (a generator that was used before is empty)")
    return ZeroShotSegmentation(torch.stack(results, dim=1), wanted, mass, resize)


def _pairs(batches: object, given: bool) -> Iterator[tuple[Tensor, Masks]]:
    """Yield checked batches of images (B, C, height, width) and their B masks."""
    if not isinstance(batches, Iterable) or isinstance(batches, Tensor):
        raise TypeError(
            "images must be a tensor beside masks=, or an iterable of pairs (images, masks), "
            f"got {type(batches).__name__} and no masks"
        )
    for pair in batches:
        if not (isinstance(pair, (tuple, list)) and len(pair) == 2):
            raise TypeError(f"images must yield pairs (images, masks), got {type(pair).__name__}")
        pixels, masks = pair
        if not isinstance(pixels, Tensor):
            what = "images must be a tensor where masks are given" if given else "pairs must start with one"
            raise TypeError(f"{what}: expected a tensor (B, C, height, width), got {type(pixels).__name__}")
        if not isinstance(masks, (Tensor, list, tuple)):
            raise TypeError(f"masks must be a tensor or a list of tensors, got {type(masks).__name__}")
        if len(pixels) != len(masks):
            raise ValueError(f"there are {len(pixels)} images but {len(masks)} masks: give one mask an image")
        yield pixels, masks


def canonical(mask: Tensor, labels: str) -> Tensor:
    """Masks (…) of a data set as 0 for background, 1 for foreground, 2 for boundary, int64.

    Args:
        mask: integers.
        labels: ``"pets"`` or ``"voc"``.
    """
    if not isinstance(mask, Tensor):
        raise TypeError(f"a mask must be a tensor, got {type(mask).__name__}")
    if mask.is_floating_point() or mask.is_complex() or mask.dtype == torch.bool:
        raise TypeError(f"a mask must be of an integer dtype, got {mask.dtype}")
    values = mask.long()
    if check_choice("labels", labels, LABELS) == "voc":
        low, high, meaning = 0, 255, "0 background, 255 boundary, others foreground"
        result = (values > 0).long() + (values == 255).long()
    else:
        low, high, meaning = 1, 3, "1 foreground, 2 background, 3 boundary"
        result = torch.tensor([_FOREGROUND, _BACKGROUND, _BOUNDARY], device=mask.device)[
            values.clamp(1, 3) - 1
        ]
    if values.numel() and not (low <= int(values.min()) and int(values.max()) <= high):
        wrong = int(values[(values < low) | (values > high)][0])
        raise ValueError(
            f"a mask holds {wrong}, expected {low} to {high} for labels={labels!r} ({meaning}): "
            "choose the labels that the masks have"
        )
    return result


def keep_mass(maps: Tensor, mass: float) -> Tensor:
    """The largest entries of maps (…, n) ≥ 0 that together hold the share ``mass`` of the sum, as booleans.

    An entry is kept while those before it, in descending order, hold less than ``mass``. Entries of 0 are
    never kept; of equal entries, the first come first.
    """
    values = maps.to(solve_dtype(maps.device))
    ordered, places = values.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    kept = (before < mass * ordered.sum(-1, keepdim=True)) & (ordered > 0)
    return torch.zeros_like(kept).scatter(-1, places, kept)


def _compare(maps: Tensor, mask: Tensor, mass: float, resize: str, count_boundary: bool) -> Tensor:
    """Jaccard similarities (layers, H, 3) of maps (layers, H, h, w) with a canonical mask (height, width)."""
    if mask.dim() != 2 or mask.numel() == 0:
        raise ValueError(f"a mask must have shape (height, width), got {tuple(mask.shape)}")
    if not maps.isfinite().all():
        raise ValueError("the attention maps are not finite: the model or the images hold NaN or infinity")
    mask = mask.to(maps.device)
    wide = solve_dtype(maps.device)
    if resize == "nearest":
        kept = keep_mass(maps.flatten(-2), mass)  # (layers, H, h·w)
        counts = _labels_per_patch(mask, (maps.shape[-2], maps.shape[-1])).to(wide)  # (h·w, 3)
        inside = kept.to(wide) @ counts  # (layers, H, 3) pixels of each label within the map
    else:
        size = (mask.shape[0], mask.shape[1])
        counts = F.one_hot(mask.flatten(), 3).to(wide)  # (height·width, 3)
        # One layer at a time: the maps of all at full size would take layers × heads × the image.
        large = (F.interpolate(m[None], size, mode="bilinear", align_corners=False)[0] for m in maps)
        inside = torch.stack([keep_mass(m.flatten(-2), mass).to(wide) @ counts for m in large])
    return _similarities(inside, counts.sum(0), count_boundary)


def _labels_per_patch(mask: Tensor, grid: tuple[int, int]) -> Tensor:
    """How many pixels of each label lie under each patch of a grid stretched over the mask, (h·w, 3).

    Pixel y lies under patch ⌊y·h/height⌋, which is where nearest interpolation takes its value from.
    """
    rows, columns = (
        torch.arange(size, device=mask.device) * patches // size
        for size, patches in zip(mask.shape, grid, strict=True)
    )
    patch = rows[:, None] * grid[1] + columns
    counts = torch.bincount((3 * patch + mask).flatten(), minlength=3 * grid[0] * grid[1])
    return counts.view(-1, 3)


def _similarities(inside: Tensor, total: Tensor, count_boundary: bool) -> Tensor:
    """Jaccard of foreground, background, boundary from pixels of each label within a map, and in all."""
    area = inside.sum(-1) if count_boundary else inside[..., :2].sum(-1)  # of the map
    whole = total.sum() if count_boundary else total[:2].sum()
    outside = total - inside
    overlaps = torch.stack(
        [inside[..., _FOREGROUND], outside[..., _BACKGROUND], inside[..., _BOUNDARY]], dim=-1
    )
    unions = torch.stack(
        [
            area + outside[..., _FOREGROUND],
            whole - area + inside[..., _BACKGROUND],
            inside.sum(-1) + outside[..., _BOUNDARY],
        ],
        dim=-1,
    )
    there = total[[_FOREGROUND, _BACKGROUND, _BOUNDARY]] > 0  # a union with such a target is not empty
    return (overlaps / unions).where(there, torch.nan)


def _best(jaccard: Tensor, axis: int) -> Tensor:
    """Largest value along an axis, NaN where all are."""
    best = jaccard.nan_to_num(-1).amax(axis)
    return best.where(best >= 0, torch.nan)
