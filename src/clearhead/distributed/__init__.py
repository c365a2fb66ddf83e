"""More than one device, on torch.distributed: heads over ranks, and the sequence over ranks."""

from clearhead.distributed.context_parallel import attend_to_shards, sequence_attention
from clearhead.distributed.context_parallel_weights import SequenceWeights
from clearhead.distributed.gather import gather
from clearhead.distributed.layout import Layout
from clearhead.distributed.tensor_parallel import head_plan, shard_heads

__all__ = [
    "Layout",
    "SequenceWeights",
    "attend_to_shards",
    "gather",
    "head_plan",
    "sequence_attention",
    "shard_heads",
]
