"""Named spans of a prompt: their checks, and the tokens that cover a text."""

from __future__ import annotations

from collections.abc import Mapping

from clearhead._utils.checks import check_int, describe

SpanLike = tuple[int, int] | str
MAX_SPANS = 64
MAX_NAME = 100  # characters
MAX_TEXT = 100_000  # characters
_NAME = f"a printable name of 1 to {MAX_NAME} characters"
_SPAN = "(start, end) or a text of the prompt"


def checked_spans(name: str, spans: object) -> dict[str, SpanLike]:
    """Validate spans by name, which a client of a server may have sent.

    Args:
        name: name of the argument, for errors.
        spans: (start, end) in tokens, or a text of the prompt, for each name.
    """
    if not isinstance(spans, Mapping):
        raise TypeError(f"{name} is {describe(spans)}; expected {_SPAN} for each name")
    if len(spans) > MAX_SPANS:
        raise ValueError(f"{name} has {len(spans)} entries; expected at most {MAX_SPANS}")
    for label in spans:
        if not isinstance(label, str) or not 0 < len(label) <= MAX_NAME or not label.isprintable():
            raise ValueError(f"{name} has the name {describe(label)}; expected {_NAME}")
    return {label: _checked_span(f"{name}[{label!r}]", span) for label, span in spans.items()}


def _checked_span(name: str, span: object) -> SpanLike:
    if isinstance(span, str):
        if not 0 < len(span) <= MAX_TEXT:
            raise ValueError(f"{name} has {len(span):,} characters; expected 1 to {MAX_TEXT:,}")
        return span
    if not isinstance(span, list | tuple) or len(span) != 2:
        raise TypeError(f"{name} is {describe(span)}; expected {_SPAN}")
    start, end = check_int(f"the start of {name}", span[0], 0), check_int(f"the end of {name}", span[1], 0)
    if start >= end:
        raise ValueError(f"{name} is ({start}, {end}); expected start < end, because an empty span has no attention")
    return start, end
