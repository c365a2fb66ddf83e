"""Watching any model: `watch` observes its attention while it runs, and `AttentionLog` while it trains.

`heads` returns the matrices of every head, `composition` compares the circuits of two heads, and `direct_logits` is the
contribution of every head to a logit.
"""

from clearhead.watching.circuits import composition, composition_scores
from clearhead.watching.head_matrices import Head, Heads, heads
from clearhead.watching.logit_attribution import direct_logits
from clearhead.watching.low_rank import LowRank
from clearhead.watching.seen import Seen, Watched, WatchedCall
from clearhead.watching.training import AttentionLog
from clearhead.watching.watcher import watch

__all__ = [
    "AttentionLog",
    "Head",
    "Heads",
    "LowRank",
    "Seen",
    "Watched",
    "WatchedCall",
    "composition",
    "composition_scores",
    "direct_logits",
    "heads",
    "watch",
]
