"""Means of a request's statistics over the rows of its prompt and over those of its answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from clearhead._utils.json_numbers import json_numbers
from clearhead.serving.finished import ROW_STATISTICS, FinishedRequest

HeadMeans = dict[str, Float[np.ndarray, "*spans layers heads"]]
PhaseMeans = dict[str, HeadMeans | None]


def head_means(statistics: Mapping[str, Tensor], rows: slice) -> HeadMeans | None:
    """Return the mean of each row statistic over some rows, for each layer and head; None without rows.

    `peak` is the maximum, and `mass` has the spans as first axis. numpy computes them in the calling thread alone.
    torch would start threads that compete with those of the model.
    """
    if rows.start >= rows.stop:
        return None
    chosen = {name: tensor.numpy()[:, :, rows] for name, tensor in statistics.items() if name in ROW_STATISTICS}
    means = {name: values.max(axis=2) if name == "peak" else _mean_of_rows(values) for name, values in chosen.items()}
    if "mass" in statistics and statistics["mass"].shape[3]:
        # one span at a time: the inner loop of numpy would have the length of the last axis, a few spans
        mass = statistics["mass"].numpy()[:, :, rows]
        means["mass"] = np.stack([_mean_of_rows(mass[..., span]) for span in range(mass.shape[3])])
    return means


def _mean_of_rows(values: Float[np.ndarray, "layers heads rows"]) -> Float[np.ndarray, "layers heads"]:
    return values.mean(axis=2, dtype=np.float64)


def phase_means(finished: FinishedRequest) -> PhaseMeans:
    """Return `head_means` of the prompt and of the answer of a request whose tensors are on the CPU."""
    return {phase: head_means(finished.statistics, rows) for phase, rows in finished.phases.items()}


def means_of_heads(means: HeadMeans | None, spans: Iterable[str]) -> dict[str, Any] | None:
    """Return the means over all layers and heads as numbers for JSON. `peak` is the maximum, `mass` a dict by span."""
    return means and {
        name: _by_span(values.mean(axis=(1, 2)), spans)
        if name == "mass"
        else json_numbers(float(values.max() if name == "peak" else values.mean()))
        for name, values in means.items()
    }


def means_by_head(means: HeadMeans | None, spans: Iterable[str]) -> dict[str, Any] | None:
    """Return the means as nested lists [layers][heads] for JSON, with a dict by span for `mass`."""
    return means and {
        name: _by_span(values, spans) if name == "mass" else json_numbers(values.tolist())
        for name, values in means.items()
    }


def _by_span(values: Float[np.ndarray, "spans ..."], spans: Iterable[str]) -> dict[str, Any]:
    return dict(zip(spans, json_numbers(values.tolist()), strict=True))
