"""More than one device, on torch.distributed: heads over ranks, and the sequence over ranks."""

from clearhead.parallel.gather import gather
from clearhead.parallel.heads import head_plan, shard_heads
from clearhead.parallel.layout import Layout
from clearhead.parallel.sequence import attend_to_shards, sequence_attention
from clearhead.parallel.sequence_weights import SequenceWeights

__all__ = [
    "Layout",
    "SequenceWeights",
    "attend_to_shards",
    "gather",
    "head_plan",
    "sequence_attention",
    "shard_heads",
]
