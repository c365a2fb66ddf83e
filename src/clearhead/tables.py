"""Heads in tables, for the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from clearhead.recording import Address
from clearhead.roles import Roles

BEST = ("previous", "next", "self", "sink", "positional", "delimiter", "duplicate", "induction")


def print_statistics(console: Console, columns: dict[str, list], title: str) -> None:
    """A row a head: names as they are, means with three digits."""
    table = Table(title=title)
    for name, values in columns.items():
        number = bool(values) and not isinstance(values[0], str)
        table.add_column(name, justify="right" if number else "left")
    for row in zip(*columns.values(), strict=True):
        table.add_row(*(f"{value:.3f}" if isinstance(value, float) else str(value) for value in row))
    console.print(table)


def print_roles(console: Console, roles: Roles) -> None:
    """The heads with a label, the best of each score, and the relations."""
    labelled = [address for address in roles.heads if roles.labels(address)]
    table = Table("head", "labels", "entropy", "distance", title=f"{roles.model}: heads with a clear role")
    for address in labelled:
        own = roles.heads[address]
        table.add_row(name(address), ", ".join(roles.labels(address)), _number(own.entropy), _number(own.distance))
    console.print(table)
    console.print(f"{len(roles.heads) - len(labelled)} of {len(roles.heads)} heads have no clear role")
    table = Table("score", "heads that score highest", title="Best heads")
    for score in BEST:
        best = roles.top(score)
        if best:
            table.add_row(score, ", ".join(f"{name(address)} {value:.2f}" for address, value in best))
    console.print(table)
    if not roles.relations:
        return
    columns = ("relation", "direction", "best head", "right", "95 %", "fixed offset", "pairs")
    table = Table(*columns, title="Relations: the head chosen on one half of the sentences, scored on the other")
    for score in roles.relations:
        interval, fixed = f"{score.low:.2f}–{score.high:.2f}", f"{score.baseline:.2f} at {score.offset:+d}"
        place = (score.relation, score.direction, name(score.address))
        table.add_row(*place, f"{score.accuracy:.2f}", interval, fixed, str(score.count))
    console.print(table)


def name(address: Address) -> str:
    """A head as one reads it: decoder 3.7 is head 7 of layer 3, both from 0."""
    stack, layer, head = address
    return f"{stack} {layer}.{head}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
