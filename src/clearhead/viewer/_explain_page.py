"""Page that explains one row of a head: every step of its calculation, with the numbers of the model."""

from __future__ import annotations

from dataclasses import replace

from clearhead._utils.text import short_token
from clearhead.explain import trace_head
from clearhead.explain.real_heads import MAX_SCORES
from clearhead.explain.render import render
from clearhead.explain.steps import Axis, Trace
from clearhead.recording import Address
from clearhead.viewer._recording_cache import RecordingCache

_MAX_ROWS = 40  # a page of a longer text has only the row of the query
_MAX_TERMS = 512  # longest sum that is written out


def is_explainable(cache: RecordingCache, address: Address) -> bool:
    """Return whether `explain_page` supports a head: queries and keys were recorded, and the text is not too long."""
    weights = cache.recording.weights(address)
    return weights.key is not None and weights.key.shape[-1] * weights.shape[3] <= MAX_SCORES


def explain_page(cache: RecordingCache, address: Address, query: int, key: int | None = None) -> str:
    """Return a self-contained HTML page with the calculation of a head, which writes out one cell of one row.

    Args:
        cache: recording with queries and keys.
        address: the head.
        query: index of the row, which is always shown.
        key: index of the key whose cell is written out (default: the strongest key of the row).

    Raises:
        ValueError: if the recording holds scores instead of queries and keys, if the text is too long (the keys of the
            head have more than 4,000,000 numbers), or if the head, the query or the key does not exist.
        ImportError: if the packages of the extra `explain` are not installed.
    """
    name, layer, head = address
    stack = cache.recording[name]
    for axis, index, tokens in (("query", query, stack.queries), ("key", key, stack.keys)):
        if index is not None and not 0 <= index < len(tokens):
            raise ValueError(f"{axis} is {index}; expected 0 to {len(tokens) - 1}")
    is_short = max(len(stack.queries), len(stack.keys)) <= _MAX_ROWS
    trace = trace_head(cache.recording, f"{name}.{layer}.{head}", query=None if is_short else query)
    row = query if is_short else 0
    chosen = int(trace.step("weights").values[row].argmax()) if key is None else key
    token = short_token(stack.queries.texts[query])
    title = f"Head {trace.head_name} of {cache.recording.model}, row {query + 1} ({token})"
    return render(_focused(trace, row, chosen), "html", title=title)


def _focused(trace: Trace, row: int, key: int) -> Trace:
    """Return a calculation that shows a row and a key, and writes out their cell of each step."""
    shown: dict[Axis, int] = {"token": row, "memory": key}
    visible = {axis: {*entries, *([shown[axis]] if axis in shown else [])} for axis, entries in trace.visible.items()}
    cells = {}
    for step in trace:
        is_long = step.name in ("weights", "head_output") and len(trace.memory_tokens) > _MAX_TERMS
        if step.how != "input" and not is_long:
            cells[step.name, step.head] = ((row, key if step.columns == "memory" else 0),)
    return replace(trace, visible=visible, cells=cells)
