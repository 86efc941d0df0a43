"""Pure functions. The name of an operator fixes its mathematics, ``impl`` only how it is computed.

README.md in this folder holds the mathematics.
"""

from cbsa.ops.adapted import agent_attention, contract_broadcast_kv
from cbsa.ops.api import contract_broadcast
from cbsa.ops.linear import linear_attention
from cbsa.ops.pooling import pool_tokens
from cbsa.ops.resampling import resample_tokens
from cbsa.ops.variants import channel_cbsa, linear_cbsa

__all__ = [
    "agent_attention",
    "channel_cbsa",
    "contract_broadcast",
    "contract_broadcast_kv",
    "linear_attention",
    "linear_cbsa",
    "pool_tokens",
    "resample_tokens",
]
