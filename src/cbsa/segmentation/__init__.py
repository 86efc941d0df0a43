"""Semantic segmentation: decoders on any encoder."""

from cbsa.segmentation.checkpoints import load_segmenter, save_segmenter
from cbsa.segmentation.decoders import DECODERS, CBTDecoder, Decoder, DepictDecoder, MaskTransformer
from cbsa.segmentation.segmenter import Segmenter, create_segmenter

__all__ = [
    "DECODERS",
    "CBTDecoder",
    "Decoder",
    "DepictDecoder",
    "MaskTransformer",
    "Segmenter",
    "create_segmenter",
    "load_segmenter",
    "save_segmenter",
]
