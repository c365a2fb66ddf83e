"""`StatisticsWanted`: the statistics that a server computes of each observed row."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StatisticsWanted:
    """Choice of statistics.

    Attributes:
        entropy: entropy of each row, in nats.
        received: attention that each key receives.
        distance: mean distance between query and key of each row.
        peak: largest score of each row.
        sink: weight on the first key of each row.
        top: number of largest weights per row, with their keys.
    """

    entropy: bool = True
    received: bool = True
    distance: bool = False
    peak: bool = False
    sink: bool = True
    top: int = 0
