"""Means of a request's statistics over the rows of its prompt and over those of its answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from clearhead._utils.json_numbers import json_numbers
from clearhead.serving.finished import ROW_STATISTICS

Phases = dict[str, slice]


def phases_of(rows: int, first_answer_row: int) -> Phases:
    """Return the rows of the prompt and of the answer, by name. Either may have no rows."""
    return {"prompt": slice(0, first_answer_row), "answer": slice(first_answer_row, rows)}


def head_means(statistics: Mapping[str, Tensor], rows: slice) -> dict[str, Float[np.ndarray, "layers heads ..."]]:
    """Return the mean of each row statistic over some rows, for each layer and head. `peak` is the maximum.

    numpy computes them in the calling thread alone. torch would start threads that compete with those of the model.
    """
    means = {}
    for name in (*ROW_STATISTICS, "mass"):
        if name in statistics:
            chosen = statistics[name].numpy()[:, :, rows]
            means[name] = chosen.max(axis=2) if name == "peak" else chosen.mean(axis=2, dtype=np.float64)
    return means


def request_means(statistics: Mapping[str, Tensor], spans: Iterable[str], phases: Phases) -> dict[str, Any]:
    """Return the means over all layers and heads by phase, as numbers for JSON; None for a phase without rows.

    `peak` is the maximum, and `mass` has one mean per span.
    """
    means = {}
    for phase, rows in phases.items():
        heads = head_means(statistics, rows) if rows.start < rows.stop else None
        means[phase] = heads and {
            name: _by_span(values.mean(axis=(0, 1)), spans)
            if name == "mass"
            else json_numbers(float(values.max() if name == "peak" else values.mean()))
            for name, values in heads.items()
        }
    return means


def means_by_head(statistics: Mapping[str, Tensor], spans: Iterable[str], rows: slice) -> dict[str, Any] | None:
    """Return `head_means` as nested lists [layers][heads] for JSON; None without rows."""
    if rows.start >= rows.stop:
        return None
    return {
        name: _by_span(np.moveaxis(values, 2, 0), spans) if name == "mass" else json_numbers(values.tolist())
        for name, values in head_means(statistics, rows).items()
    }


def _by_span(values: Float[np.ndarray, "spans ..."], spans: Iterable[str]) -> dict[str, Any]:
    return dict(zip(spans, json_numbers(values.tolist()), strict=True))
