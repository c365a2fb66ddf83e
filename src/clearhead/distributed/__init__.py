"""Attention on several devices with torch.distributed: tensor parallel heads and context parallel sequences."""

from clearhead.distributed.context_parallel import context_parallel_attention
from clearhead.distributed.context_parallel_weights import ContextParallelWeights
from clearhead.distributed.gather import gather
from clearhead.distributed.layout import ZigzagLayout
from clearhead.distributed.process_group import (
    ProcessGroup,
    current_process_group,
    init_process_group,
    is_main_process,
)
from clearhead.distributed.sharded_kv import sharded_kv_attention
from clearhead.distributed.tensor_parallel import parallelize_heads, tensor_parallel_plan

__all__ = [
    "ContextParallelWeights",
    "ProcessGroup",
    "ZigzagLayout",
    "context_parallel_attention",
    "current_process_group",
    "gather",
    "init_process_group",
    "is_main_process",
    "parallelize_heads",
    "sharded_kv_attention",
    "tensor_parallel_plan",
]
