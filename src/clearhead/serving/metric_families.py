"""Metrics of all processes of a run, as plain data for a monitoring system."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

from clearhead.serving.metrics import OUTCOMES
from clearhead.serving.run_folder import COUNTERS, Counters

ROW_LABELS = ("model_name", "layers", "phase")


class Family(NamedTuple):
    """One metric with a sample for each combination of labels.

    Attributes:
        name: name of the metric, without the suffixes that Prometheus adds.
        help: description in one sentence.
        kind: "summary" for sum and count of rows, "counter" for a single total.
        labels: names of the labels.
        samples: (sum, count) by the values of the labels. The count of a counter is 0.
    """

    name: str
    help: str
    kind: Literal["summary", "counter"]
    labels: tuple[str, ...]
    samples: dict[tuple[str, ...], tuple[float, int]]


def empty_families() -> dict[str, Family]:
    """Return the metrics without samples, by the name of the statistic."""
    return {
        "entropy": Family(
            "clearhead_attention_entropy_nats",
            "Entropy of attention rows, mean over the heads of a group of layers.",
            "summary",
            ROW_LABELS,
            {},
        ),
        "sink": Family(
            "clearhead_attention_sink_share",
            "Weight of attention rows on the first token, mean over the heads of a group of layers.",
            "summary",
            ROW_LABELS,
            {},
        ),
        "mass": Family(
            "clearhead_attention_span_mass",
            "Weight of attention rows on a named span of tokens, mean over the heads of a group of layers.",
            "summary",
            (*ROW_LABELS, "span"),
            {},
        ),
        "requests": Family(
            "clearhead_requests",
            "Requests that clearhead observed, recorded, dropped, failed to write or skipped.",
            "counter",
            ("model_name", "outcome"),
            {},
        ),
    }


def metric_families(snapshots: Iterable[dict[str, Any]]) -> list[Family]:
    """Return the metrics, with the samples of all snapshots added up."""
    families = empty_families()

    def add(name: str, labels: tuple[str, ...], total: float, count: int) -> None:
        samples = families[name].samples
        before = samples.get(labels, (0.0, 0))
        samples[labels] = before[0] + total, before[1] + count

    for snapshot in snapshots:
        model = snapshot["model"]
        for outcome in OUTCOMES:
            add("requests", (model, outcome), snapshot["requests"].get(outcome, 0), 0)
        for series in snapshot["series"]:
            labels = (model, series["layers"], series["phase"])
            span = () if series["span"] is None else (series["span"],)
            add(series["statistic"], (*labels, *span), series["sum"], series["count"])
    return list(families.values())


def read_snapshots(folder: Path) -> list[dict[str, Any]]:
    """Return the snapshots in the folder of a run. Unreadable files are skipped: a monitoring page must not fail."""
    snapshots = []
    for path in sorted(folder.glob("*.json")):
        try:
            snapshot = json.loads(path.read_text(encoding="utf-8"))
            metric_families([snapshot])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
        with suppress(OSError, ValueError), path.with_suffix(COUNTERS).open("r+b") as file:
            counters = Counters(file)  # of the process that observes
            snapshot["requests"] = {name: snapshot["requests"].get(name, 0) + counters[name] for name in OUTCOMES}
        snapshots.append(snapshot)
    return snapshots
