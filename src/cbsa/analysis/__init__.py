"""Probes of a trained model, one per file: they return tensors, drawing is :mod:`cbsa.report`'s."""

from cbsa.analysis.anatomy import Anatomy
from cbsa.analysis.contraction import Representatives, representatives
from cbsa.analysis.extraction import ExtractionFactors, extraction_factors
from cbsa.analysis.factors import AttentionFactors, LayerFactors, attention_factors
from cbsa.analysis.maps import AttentionMaps, attention_maps
from cbsa.analysis.noise import NoiseSweep, perturb, sweep
from cbsa.analysis.rank import ExtractionRanks, extraction_rank
from cbsa.analysis.rates import CodingRates, coding_rates
from cbsa.analysis.reduction import ReducedCodingRates, reduced_coding_rates
from cbsa.analysis.segmentation import ZeroShotSegmentation, zero_shot_segmentation
from cbsa.analysis.states import token_states

__all__ = [
    "Anatomy",
    "AttentionFactors",
    "AttentionMaps",
    "CodingRates",
    "ExtractionFactors",
    "ExtractionRanks",
    "LayerFactors",
    "NoiseSweep",
    "ReducedCodingRates",
    "Representatives",
    "ZeroShotSegmentation",
    "attention_factors",
    "attention_maps",
    "coding_rates",
    "extraction_factors",
    "extraction_rank",
    "perturb",
    "reduced_coding_rates",
    "representatives",
    "sweep",
    "token_states",
    "zero_shot_segmentation",
]
