"""Indices of layers and heads as short text."""

from __future__ import annotations

from collections.abc import Iterable


def format_indices(indices: Iterable[int]) -> str:
    """Return indices with runs abbreviated, such as "0,3-5"."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and index == runs[-1][-1] + 1:
            runs[-1][1:] = [index]
        else:
            runs.append([index])
    return ",".join("-".join(map(str, run)) for run in runs)
