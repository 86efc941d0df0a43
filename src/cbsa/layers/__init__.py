"""Attention layers and blocks, one per file."""

from cbsa.layers.attention import Attention
from cbsa.layers.build import ATTENTIONS, build_attention
from cbsa.layers.cbsa import CBSA
from cbsa.layers.conv_stem import ConvStem
from cbsa.layers.ista import ISTA
from cbsa.layers.linear_attention import LinearAttention
from cbsa.layers.linear_stem import LinearStem
from cbsa.layers.mhsa import MHSA
from cbsa.layers.mlp import MLP
from cbsa.layers.mssa import MSSA
from cbsa.layers.norm import LayerNorm
from cbsa.layers.orthogonal import ChannelCBSA, LinearCBSA
from cbsa.layers.tssa import TSSA

__all__ = [
    "ATTENTIONS",
    "CBSA",
    "ISTA",
    "MHSA",
    "MLP",
    "MSSA",
    "TSSA",
    "Attention",
    "ChannelCBSA",
    "ConvStem",
    "LayerNorm",
    "LinearAttention",
    "LinearCBSA",
    "LinearStem",
    "build_attention",
]
