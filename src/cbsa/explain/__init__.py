"""The explorer: one self-contained page that shows what models do with images, token by token."""

from cbsa.explain.images import ImageError, open_image
from cbsa.explain.models import Subject, open_subject
from cbsa.explain.page import write_explorer
from cbsa.explain.samples import at_photographs, photographs, sample_images

__all__ = [
    "ImageError",
    "Subject",
    "at_photographs",
    "open_image",
    "open_subject",
    "photographs",
    "sample_images",
    "write_explorer",
]
