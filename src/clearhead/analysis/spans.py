"""Spans of keys for several calls, whose numbers of keys may differ."""

from __future__ import annotations

from dataclasses import dataclass

from torch.nn.functional import pad

from clearhead.ops.spans import Spans, SpansLike


class SpansOfCalls:
    """Spans of keys for calls with different numbers of keys, such as those of stacks or of a growing KV cache.

    Keys that a call does not have receive no attention in it. `check` raises if no call has all keys of a span.
    """

    def __init__(self, spans: SpansLike) -> None:
        self._spans = Spans.checked(spans)
        self._count = len(self._spans)
        self._lengths: set[int] = set()  # of the calls; adding to a set is atomic, and several threads may do it

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the spans, in order: "span_0" and so on if they have none."""
        names = self._spans.names
        return tuple(f"span_{index}" for index in range(self._count)) if names is None else tuple(map(str, names))

    def of_call(self, kv_len: int) -> Spans:
        """Return the spans of a call with some number of keys."""
        self._lengths.add(kv_len)
        spans = self._spans
        if spans.segments is None:
            pairs = tuple((min(start, kv_len), min(end, kv_len)) for start, end in spans.pairs)
            return _CallSpans(pairs, names=spans.names, count=self._count)
        segments = spans.segments[:, :kv_len]
        return _CallSpans(segments=pad(segments, (0, kv_len - segments.shape[1]), value=-1), count=self._count)

    def check(self) -> None:
        """Raise if a span ends after the last key of every call."""
        if not self._lengths:
            return
        longest, spans = max(self._lengths), self._spans
        if spans.segments is not None and spans.segments.shape[1] > longest:
            shape = tuple(spans.segments.shape)
            raise ValueError(f"spans has shape {shape}; expected ids of at most {longest} keys, one for each token")
        for index, (start, end) in enumerate(spans.pairs):
            if end > longest:
                name = repr(spans.names[index]) if spans.names else index
                raise ValueError(
                    f"spans[{name}] is ({start}, {end}); expected an end of at most {longest}, the number of tokens"
                )


@dataclass(frozen=True, eq=False)
class _CallSpans(Spans):
    """Spans of one call. Their number does not depend on the keys of the call."""

    count: int = 0

    def __len__(self) -> int:
        return self.count
