"""Table of the statistics of all heads, for the page and for reports."""

from __future__ import annotations

from typing import Any, NamedTuple

from clearhead.analysis import HeadStatistics
from clearhead.recording import Address


class Column(NamedTuple):
    """Column of the table: field of `HeadStatistics`, heading and tooltip."""

    name: str
    heading: str
    tooltip: str


COLUMNS = (
    Column("entropy", "entropy", "entropy of a query's weights, in nats"),
    Column("spread", "spread", "entropy divided by its maximum: 0 for a single key, 1 for uniform attention"),
    Column("distance", "distance", "distance between a query and the keys it attends to, in tokens"),
    Column("self", "self", "weight on the query's own position"),
    Column("previous", "previous", "weight on the position before"),
    Column("next", "next", "weight on the position after"),
    Column("sink", "first token", "weight on the first key"),
    Column("offset", "offset", "most frequent offset of the most attended key: key − query"),
    Column("positional", "positional", "share of queries whose most attended key is at that offset"),
    Column("delimiter", "delimiter", "weight on special tokens, over queries that are not special tokens"),
    Column("text_induction", "induction", "weight on the tokens that followed earlier occurrences of the same token"),
    Column("text_duplicate", "duplicate", "weight on earlier occurrences of the same token"),
)


def head_values(statistics: HeadStatistics) -> dict[str, float | int | None]:
    """Return the values of all columns for one head, rounded to six decimals."""
    values = {column.name: getattr(statistics, column.name) for column in COLUMNS}
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in values.items()}


def used_columns(statistics: dict[Address, HeadStatistics]) -> list[Column]:
    """Return the columns that have a value for at least one head."""
    return [column for column in COLUMNS if any(getattr(head, column.name) is not None for head in statistics.values())]


def statistics_row(
    address: Address, statistics: HeadStatistics, labels: tuple[str, ...], columns: list[Column]
) -> dict[str, Any]:
    """Return one row of the table, with its cells as text."""
    cells = []
    for column in columns:
        value = getattr(statistics, column.name)
        text = "" if value is None else f"{value:+d}" if isinstance(value, int) else f"{value:.3f}"
        cells.append("0" if text and not float(text) else text.replace("-", "−"))
    return {"id": head_id(address), "head": head_title(address), "labels": ", ".join(labels), "cells": cells}


def head_id(address: Address) -> str:
    """Return the name of a head in addresses, such as "decoder.3.5"."""
    return ".".join(map(str, address))


def head_title(address: Address) -> str:
    """Return the name of a head for readers, such as "decoder 3.5"."""
    stack, layer, head = address
    return f"{stack} {layer}.{head}"
