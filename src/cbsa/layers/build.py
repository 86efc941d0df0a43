"""Attention layers by name."""

from collections.abc import Callable
from functools import partial
from typing import Any

from cbsa._checks import check_choice
from cbsa.layers.attention import Attention
from cbsa.layers.cbsa import CBSA
from cbsa.layers.linear_attention import LinearAttention
from cbsa.layers.mhsa import MHSA
from cbsa.layers.mssa import MSSA
from cbsa.layers.orthogonal import ChannelCBSA, LinearCBSA
from cbsa.layers.tssa import TSSA

ATTENTIONS: dict[str, Callable[..., Attention]] = {
    "cbsa": CBSA,
    "mssa": MSSA,
    "tssa": TSSA,
    "agent": partial(CBSA, contraction="none"),
    "linear_cbsa": LinearCBSA,
    "channel_cbsa": ChannelCBSA,
    "mhsa": MHSA,
    "linear": LinearAttention,
}
"""The attention layers by the names that :func:`build_attention` and the models take."""


def build_attention(name: str, dim: int, num_heads: int, **kwargs: Any) -> Attention:
    """Build the attention called ``name``, one of ``ATTENTIONS``; ``kwargs`` go to its class.

    ``"agent"`` is CBSA without contraction (the fair-comparison twin of the paper).
    """
    return ATTENTIONS[check_choice("name", name, ATTENTIONS)](dim, num_heads, **kwargs)
