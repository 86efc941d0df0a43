"""Probes of a trained model, one per file: they return tensors, drawing is :mod:`cbsa.report`'s."""

from cbsa.analysis.extraction import ExtractionFactors, extraction_factors
from cbsa.analysis.maps import AttentionMaps, attention_maps
from cbsa.analysis.noise import NoiseSweep, perturb, sweep
from cbsa.analysis.rank import ExtractionRanks, extraction_rank
from cbsa.analysis.rates import CodingRates, coding_rates
from cbsa.analysis.reduction import ReducedCodingRates, reduced_coding_rates
from cbsa.analysis.segmentation import ZeroShotSegmentation, zero_shot_segmentation

__all__ = [
    "AttentionMaps",
    "CodingRates",
    "ExtractionFactors",
    "ExtractionRanks",
    "NoiseSweep",
    "ReducedCodingRates",
    "ZeroShotSegmentation",
    "attention_maps",
    "coding_rates",
    "extraction_factors",
    "extraction_rank",
    "perturb",
    "reduced_coding_rates",
    "sweep",
    "zero_shot_segmentation",
]
