"""What every probe takes: one batch of images, or anything that yields batches."""

from collections.abc import Iterable, Iterator, Sequence

from torch import Tensor

from cbsa._checks import check_floating
from cbsa.data import Batch

Images = Tensor | Iterable[Tensor | Sequence[Tensor]]  # (B, C, height, width), or batches of them


def image_batches(images: Images) -> Iterator[Tensor]:
    """Yield batches (B, C, height, width) of normalised images.

    Args:
        images: one batch; or an iterable of batches, as a ``DataLoader`` yields them: tensors, or tuples
            whose first entry is the images. Empty batches are left out.
    """
    count = 0
    for batch in [images] if isinstance(images, Tensor) else _iterate(images):
        pixels = check_floating("images", _pixels(batch))
        if pixels.dim() != 4:
            raise ValueError(f"images must have shape (B, C, height, width), got {tuple(pixels.shape)}")
        count += len(pixels)
        if len(pixels):
            yield pixels
    if count == 0:
        raise ValueError(
            "images holds no image: give at least one (a generator that was used before is empty)"
        )


def _iterate(images: object) -> Iterable[object]:
    if isinstance(images, (str, bytes)) or not isinstance(images, Iterable):
        raise TypeError(
            "images must be a tensor (B, C, height, width) or an iterable of such batches, "
            f"got {type(images).__name__}"
        )
    return images


def _pixels(batch: object) -> object:
    if isinstance(batch, Batch):
        raise TypeError(
            "images yields cbsa.data.Batch, whose pixels are not normalised: give "
            "(normalise(batch.images, data.mean, data.std)[batch.valid] for batch in loader)"
        )
    return batch[0] if isinstance(batch, (tuple, list)) and batch else batch
