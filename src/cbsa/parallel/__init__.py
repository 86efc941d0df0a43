"""Context parallelism: one image, video or sequence over many devices.

The only thing that tokens of these attentions say to each other passes through a few sums: of m
representatives for CBSA. Spread over P processes they exchange those, whatever the number of tokens is.
docs/scaling.md has the cost model.
"""

from cbsa.parallel.collectives import LostProcessError
from cbsa.parallel.group import ContextGroup
from cbsa.parallel.layers import shard_attention
from cbsa.parallel.models import ContextParallelTransformer, context_parallel, own_rows
from cbsa.parallel.shard import Shard
from cbsa.parallel.traffic import Traffic, count_traffic

__all__ = [
    "ContextGroup",
    "ContextParallelTransformer",
    "LostProcessError",
    "Shard",
    "Traffic",
    "context_parallel",
    "count_traffic",
    "own_rows",
    "shard_attention",
]
