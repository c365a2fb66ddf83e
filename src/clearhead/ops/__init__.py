"""Attention operator: call record, masks, backends and their dispatch."""

from clearhead.ops.alibi import ALiBi
from clearhead.ops.call import AttentionCall
from clearhead.ops.dispatch import choose, explain_choice
from clearhead.ops.masks import Causal, Dense, Documents, Mask, Padding, Prefix, Window
from clearhead.ops.statistics import AttentionStatistics, PoolSpec, StatisticsRequest, TopK

__all__ = [
    "ALiBi",
    "AttentionCall",
    "AttentionStatistics",
    "Causal",
    "Dense",
    "Documents",
    "Mask",
    "Padding",
    "PoolSpec",
    "Prefix",
    "StatisticsRequest",
    "TopK",
    "Window",
    "choose",
    "explain_choice",
]
