"""Probes of a trained model, one per file: they return tensors, drawing is :mod:`cbsa.report`'s."""

from cbsa.analysis.maps import AttentionMaps, attention_maps
from cbsa.analysis.rates import CodingRates, coding_rates

__all__ = ["AttentionMaps", "CodingRates", "attention_maps", "coding_rates"]
