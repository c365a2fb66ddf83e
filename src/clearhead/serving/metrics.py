"""`Metrics`: running sums of the statistics of a server's requests, by group of layers."""

from __future__ import annotations

import itertools
import math
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

from clearhead._utils.text import printable
from clearhead.serving.finished import FinishedRequest
from clearhead.serving.head_means import PhaseMeans
from clearhead.serving.indices import format_indices
from clearhead.serving.settings import Settings

Outcome = Literal["observed", "recorded", "dropped", "failed", "skipped"]
OUTCOMES: tuple[Outcome, ...] = ("observed", "recorded", "dropped", "failed", "skipped")
ROW_SERIES = ("entropy", "sink")
MAX_SPANS = 32  # names of spans; each is a time series of the monitoring system
MAX_SPAN_LETTERS = 80
OTHER_SPANS = "other"


class Metrics:
    """Sums and counts of the rows of all requests of this process, and counts of the requests. Thread-safe.

    Args:
        model: name of the model.
        layer_groups: number of groups into which the observed layers are divided.
        layers: observed layers.
        statistics: names of the series that begin with 0, before the first request.
    """

    def __init__(
        self, model: str, layer_groups: int, layers: Sequence[int] = (), statistics: Sequence[str] = ()
    ) -> None:
        self._model, self._layer_groups = model, layer_groups
        self._lock = threading.Lock()
        self._requests: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))
        groups = [format_indices(layers[part]) for part in split_layers(len(layers), layer_groups)]
        series = itertools.product(statistics, (None,), groups, ("prompt", "answer"))
        self._sums: dict[tuple[str, str | None, str, str], tuple[float, int]] = dict.fromkeys(series, (0.0, 0))
        self._spans: set[str] = set()
        self._version = 0

    @classmethod
    def of(cls, settings: Settings, model: str, layers: Sequence[int]) -> Metrics:
        """Return the sums of a server that has not answered yet."""
        statistics = [name for name in ROW_SERIES if getattr(settings, name)]
        return cls(model, settings.layer_groups, layers, statistics)

    @property
    def version(self) -> int:
        """Number of changes, with which a reader detects new values."""
        return self._version

    def count(self, outcome: Outcome) -> None:
        """Count a request."""
        with self._lock:
            self._requests[outcome] += 1
            self._version += 1

    def add(self, finished: FinishedRequest, means: PhaseMeans) -> None:
        """Add the rows of a request.

        The value of a row is its mean over the heads and layers of a group. Values that are not finite are left out:
        one NaN would remain in the sum for the life of the server.

        Args:
            finished: the request.
            means: its `phase_means`, which times the number of rows are the sums.
        """
        phases = finished.phases
        spans = [self._span(name) for name in finished.spans]
        for part in split_layers(len(finished.layers), self._layer_groups):
            layers = format_indices(finished.layers[part])
            for phase, rows in phases.items():
                heads, count = means[phase] or {}, rows.stop - rows.start
                for name in ROW_SERIES:
                    if name in heads:
                        self._add_rows((name, None, layers, phase), heads[name][part].mean(), count)
                if "mass" in heads:
                    for span, mass in zip(spans, heads["mass"], strict=True):
                        self._add_rows(("mass", span, layers, phase), mass[part].mean(), count)

    def _add_rows(self, series: tuple[str, str | None, str, str], mean: float, count: int) -> None:
        if math.isfinite(mean):
            with self._lock:
                total, rows = self._sums.get(series, (0.0, 0))
                self._sums[series] = total + count * float(mean), rows + count
                self._version += 1

    def _span(self, name: str) -> str:
        """Return the label of a span: its name, or "other" after the first 32 names."""
        label = printable(name)[:MAX_SPAN_LETTERS]  # a lone surrogate would make the whole page of metrics fail
        with self._lock:
            if label not in self._spans and len(self._spans) >= MAX_SPANS:
                return OTHER_SPANS
            self._spans.add(label)
        return label

    def snapshot(self) -> dict[str, Any]:
        """Return all values as a JSON object."""
        with self._lock:
            series = [
                {"statistic": name, "span": span, "layers": layers, "phase": phase, "sum": total, "count": count}
                for (name, span, layers, phase), (total, count) in self._sums.items()
            ]
            return {"model": self._model, "requests": dict(self._requests), "series": series}


def split_layers(count: int, groups: int) -> list[slice]:
    """Return consecutive groups of layers, whose sizes differ by at most one."""
    groups = min(groups, count)
    return [slice(count * group // groups, count * (group + 1) // groups) for group in range(groups)]
