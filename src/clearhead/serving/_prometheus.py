"""Prometheus collector of the metrics of all processes of a server, for the process that serves `/metrics`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from weakref import WeakKeyDictionary

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from clearhead.serving.metric_families import Family, empty_families, metric_families, read_snapshots

_collectors: WeakKeyDictionary[CollectorRegistry, AttentionCollector] = WeakKeyDictionary()


class AttentionCollector(Collector):
    """Collector that reads the snapshots of a run when the metrics are scraped.

    Args:
        folder: folder of the run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def describe(self) -> Iterator[Metric]:
        """Yield the metrics without samples, from which the registry takes the names."""
        return _metrics(empty_families().values())

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all processes of the run."""
        return _metrics(metric_families(read_snapshots(self.folder)))


def install(folder: Path, *, registry: CollectorRegistry = REGISTRY) -> None:
    """Register the collector once in a registry; later calls change its folder."""
    collector = _collectors.get(registry)
    if collector is None:
        collector = AttentionCollector(folder)
        registry.register(collector)
        _collectors[registry] = collector
    collector.folder = folder


def _metrics(families: Iterable[Family]) -> Iterator[Metric]:
    for family in families:
        labels = list(family.labels)
        if family.kind == "counter":
            counter = CounterMetricFamily(family.name, family.help, labels=labels)
            for values, (total, _) in family.samples.items():
                counter.add_metric(list(values), total)
            yield counter
        else:
            summary = SummaryMetricFamily(family.name, family.help, labels=labels)
            for values, (total, count) in family.samples.items():
                summary.add_metric(list(values), count_value=count, sum_value=total)
            yield summary
