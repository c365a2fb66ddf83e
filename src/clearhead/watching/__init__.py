"""Watching any model and intervening in it.

`watch` observes the attention of a model while it runs, and `AttentionLog` while it trains. `ablate`, `patch` and `cut`
change it, and `patching` measures the effect of each head. `heads` returns the matrices of every head, and
`composition` compares the circuits of two heads. `direct_logits` returns the contribution of every head to a logit.
`word_maps` shows the words of a diffusion model on its picture.
"""

from clearhead.watching.ablation import ablate
from clearhead.watching.activation_patching import patching
from clearhead.watching.circuits import composition, composition_scores
from clearhead.watching.cuts import cut
from clearhead.watching.head_matrices import Head, Heads, heads
from clearhead.watching.head_patches import patch
from clearhead.watching.logit_attribution import direct_logits
from clearhead.watching.low_rank import LowRank
from clearhead.watching.seen import Seen, Watched, WatchedCall
from clearhead.watching.training import AttentionLog
from clearhead.watching.watcher import watch
from clearhead.watching.word_maps import word_maps

__all__ = [
    "AttentionLog",
    "Head",
    "Heads",
    "LowRank",
    "Seen",
    "Watched",
    "WatchedCall",
    "ablate",
    "composition",
    "composition_scores",
    "cut",
    "direct_logits",
    "heads",
    "patch",
    "patching",
    "watch",
    "word_maps",
]
