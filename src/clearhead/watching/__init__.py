"""Watching any model: `watch` observes its attention while it runs, and `AttentionLog` while it trains."""

from clearhead.watching.seen import Seen, Watched, WatchedCall
from clearhead.watching.training import AttentionLog
from clearhead.watching.watcher import watch

__all__ = ["AttentionLog", "Seen", "Watched", "WatchedCall", "watch"]
