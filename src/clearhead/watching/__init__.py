"""Watching any model and intervening in it.

`watch` observes the attention of a model while it runs, and `AttentionLog` while it trains. `ablate`, `patch` and `cut`
change it, and `patching` measures the effect of each head.
"""

from clearhead.watching.ablation import ablate
from clearhead.watching.activation_patching import patching
from clearhead.watching.cuts import cut
from clearhead.watching.head_patches import patch
from clearhead.watching.seen import Seen, Watched, WatchedCall
from clearhead.watching.training import AttentionLog
from clearhead.watching.watcher import watch

__all__ = ["AttentionLog", "Seen", "Watched", "WatchedCall", "ablate", "cut", "patch", "patching", "watch"]
