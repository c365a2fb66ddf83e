"""Labels of queries: the token that a row reads, and the token that it writes in cross- and causal attention."""

from __future__ import annotations

from rich.cells import cell_len

from clearhead._utils.text import short_token
from clearhead.recording.recording import Stack

LABEL_COLUMNS = 16  # width of a label along an axis, in character cells
MAX_READ_COLUMNS = 6  # of a narrow label, whose written token matters more


def written_texts(stack: Stack, start: int = 0, end: int | None = None) -> list[str] | None:
    """Return the token that each query of a range writes, empty where it is unknown; None for other attention."""
    if stack.written is None:
        return None
    return [short_token(text) if text else "" for text in stack.written.texts[start:end]]


def written_text(stack: Stack, query: int) -> str:
    """Return the token that a query writes; empty if it is unknown."""
    return (written_texts(stack, query, query + 1) or [""])[0]


def row_label(stack: Stack, query: int, columns: int = LABEL_COLUMNS) -> str:
    """Return the token that a query reads and the token that it writes, as in "from → home"."""
    read, written = stack.queries.texts[query], written_text(stack, query)
    if not written:
        return short_token(read, columns)
    read = short_token(read, min(columns // 2, MAX_READ_COLUMNS))
    return f"{read} → {short_token(written, columns - 3 - cell_len(read))}"


def axis_title(stack: Stack) -> str:
    """Return the title of the axis whose labels are those of `row_label`."""
    return "queries" if stack.written is None else "queries (read → written)"
