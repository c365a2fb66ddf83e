"""Spans of keys for several calls, whose numbers of keys may differ, and for the stacks of a model."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import cast

from torch import Tensor
from torch.nn.functional import pad

from clearhead._utils.checks import describe
from clearhead.ops.spans import Spans, SpansLike

StackSpansLike = SpansLike | Mapping[str, SpansLike]


class SpansOfCalls:
    """Spans of keys for calls with different numbers of keys, such as those of a growing KV cache.

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

    def __repr__(self) -> str:
        """Return all spans as text, which is part of the key of stored results."""
        segments = None if self._spans.segments is None else self._spans.segments.tolist()
        return repr((self._spans.names, self._spans.pairs, segments))

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


class SpansOfStacks:
    """Spans of keys of one stack, or by stack: `{"decoder": {"image": (0, 16)}}`.

    The stacks are patterns, so that "*" applies to all. The first that matches counts. Spans without a stack apply to
    the only one: a token of one stack, such as a patch of a picture, has another position in the next.
    """

    def __init__(self, spans: StackSpansLike) -> None:
        self._spans: SpansOfCalls | None = None
        self._by_stack: dict[str, SpansOfCalls] = {}
        if isinstance(spans, Mapping) and any(map(_is_group, spans.values())):
            for name, group in spans.items():
                if not _is_group(group):
                    raise ValueError(f"spans[{name!r}] is {describe(group)}; expected a stack in all spans or in none")
            self._by_stack = {str(stack): SpansOfCalls(cast("SpansLike", group)) for stack, group in spans.items()}
        else:
            self._spans = SpansOfCalls(cast("SpansLike", spans))
        self._stacks: dict[str, None] = {}  # of the calls, in order

    @property
    def groups(self) -> list[SpansOfCalls]:
        """Spans of each stack or pattern, with separate names."""
        return [*self._by_stack.values()] if self._spans is None else [self._spans]

    def __repr__(self) -> str:
        return repr(self._spans or self._by_stack)

    def of_stack(self, stack: str) -> SpansOfCalls | None:
        """Return the spans of a stack; None if it has none."""
        if self._spans is not None:
            return self._spans
        patterns = (pattern for pattern in self._by_stack if fnmatch.fnmatchcase(stack, pattern))
        return self._by_stack.get(next(patterns, ""))

    def names_of(self, stack: str) -> tuple[str, ...]:
        """Return the names of the spans of a stack, in order."""
        group = self.of_stack(stack)
        return () if group is None else group.names

    def enter(self, stack: str, others: Iterable[str] = ()) -> None:
        """Take note of a stack that ran.

        Args:
            stack: its name.
            others: further stacks of the model, for the error.

        Raises:
            ValueError: if it is the second, and the spans do not name their stack.
        """
        self._stacks.setdefault(stack)
        if self._spans is not None and len(self._stacks) > 1:
            names = [*dict.fromkeys((*self._stacks, *others))]
            example = "decoder" if "decoder" in names else names[0]
            raise ValueError(
                f"spans has no stack, but attention runs in {', '.join(map(repr, names[:-1]))} and {names[-1]!r};"
                f" expected the spans of one stack, such as spans={{{example!r}: {{…}}}}, or {{'*': {{…}}}} for all"
            )

    def check(self) -> None:
        """Raise if a stack did not run, or if a span ends after the last key of every call."""
        for pattern in self._by_stack:
            if not fnmatch.filter(self._stacks, pattern):
                names = ", ".join(map(repr, self._stacks))
                raise ValueError(f"spans has the stack {pattern!r}; expected a stack that ran: {names}")
        for group in self.groups:
            group.check()


def _is_group(value: object) -> bool:
    """Return whether a value is spans, not one span."""
    if isinstance(value, list | tuple):
        return any(isinstance(item, list | tuple) for item in value)
    return isinstance(value, Mapping | Tensor)


@dataclass(frozen=True, eq=False)
class _CallSpans(Spans):
    """Spans of one call. Their number does not depend on the keys of the call."""

    count: int = 0

    def __len__(self) -> int:
        return self.count
