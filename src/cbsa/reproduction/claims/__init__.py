"""The claims of the paper, one subject a file."""

from cbsa.reproduction.claim import Claim
from cbsa.reproduction.claims import (
    accuracy,
    adaptation,
    choices,
    compression,
    costs,
    decoders,
    derivation,
    maps,
    robustness,
    speed,
)

SUBJECTS: dict[str, tuple[Claim, ...]] = {
    "Derivation and variants": derivation.CLAIMS,
    "Costs, counted": costs.CLAIMS,
    "Speed": speed.CLAIMS,
    "Compression": compression.CLAIMS,
    "Attention maps that segment": maps.CLAIMS,
    "Robustness": robustness.CLAIMS,
    "Accuracy": accuracy.CLAIMS,
    "Choices that the paper argues for": choices.CLAIMS,
    "Adapted ViTs": adaptation.CLAIMS,
    "Segmentation decoders": decoders.CLAIMS,
}
