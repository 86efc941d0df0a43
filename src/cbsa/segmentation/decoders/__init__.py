"""Decoders by name: from the patch tokens of an encoder to a mask of each class."""

from cbsa.segmentation.decoders.cbt import CBTDecoder
from cbsa.segmentation.decoders.decoder import Decoder
from cbsa.segmentation.decoders.depict import DepictDecoder
from cbsa.segmentation.decoders.mask_transformer import MaskTransformer

DECODERS: dict[str, type[Decoder]] = {
    "cbt": CBTDecoder,
    "depict": DepictDecoder,
    "mask_transformer": MaskTransformer,
}
"""The decoders by the names that :func:`cbsa.segmentation.create_segmenter` takes."""

__all__ = ["DECODERS", "CBTDecoder", "Decoder", "DepictDecoder", "MaskTransformer"]
