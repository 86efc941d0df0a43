"""Adaptation of a ViT that exists already: its weights stay, its attention becomes linear in the tokens."""

from cbsa.adaptation.adapt import adapt
from cbsa.adaptation.eva_attention import AdaptedEvaAttention, AdaptedRopeAttention
from cbsa.adaptation.stored import load_adapted
from cbsa.adaptation.style import STYLES
from cbsa.adaptation.timm_attention import (
    AdaptedAttention,
    AdaptedViTAttention,
    AgentAttention,
    CBSAStarAttention,
    LinearKernelAttention,
)

__all__ = [
    "STYLES",
    "AdaptedAttention",
    "AdaptedEvaAttention",
    "AdaptedRopeAttention",
    "AdaptedViTAttention",
    "AgentAttention",
    "CBSAStarAttention",
    "LinearKernelAttention",
    "adapt",
    "load_adapted",
]
