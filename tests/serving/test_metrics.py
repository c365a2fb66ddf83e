"""Tests of the running sums and of their snapshots."""

import json
import math
import threading
from dataclasses import replace

import pytest
import torch

from clearhead.serving.finished import FinishedRequest
from clearhead.serving.head_means import phase_means
from clearhead.serving.indices import format_indices
from clearhead.serving.metric_families import metric_families, read_snapshots
from clearhead.serving.metrics import MAX_SPANS, OUTCOMES, Metrics, split_layers
from clearhead.serving.run_folder import Counters
from clearhead.serving.settings import Settings
from support.served_requests import finished_request


def add(metrics: Metrics, finished: FinishedRequest) -> None:
    metrics.add(finished, phase_means(finished))


def series_of(metrics: Metrics) -> dict:
    return {
        tuple(entry[name] for name in ("statistic", "span", "layers", "phase")): (entry["sum"], entry["count"])
        for entry in metrics.snapshot()["series"]
    }


def samples_of(snapshots) -> dict:
    return {family.name: family.samples for family in metric_families(snapshots)}


class TestSums:
    def test_rows_are_means_over_the_heads_of_a_group(self):
        finished = finished_request(first_row=2)
        metrics = Metrics("model", 2)
        add(metrics, finished)
        series = series_of(metrics)
        for name in ("entropy", "sink"):
            rows = {"0": finished.statistics[name][:1].double(), "1-2": finished.statistics[name][1:].double()}
            for layers, values in rows.items():
                for phase, part in (("prompt", slice(0, 4)), ("answer", slice(4, None))):
                    total, count = series[name, None, layers, phase]
                    means = values.mean(dim=(0, 1))[part]
                    assert count == len(means)
                    assert total == pytest.approx(float(means.sum()), rel=1e-12)
        mass = finished.statistics["mass"][1:, :, 4:, 1].double().mean(dim=(0, 1))
        assert series["mass", "passage", "1-2", "answer"] == (pytest.approx(float(mass.sum()), rel=1e-12), 6)

    def test_requests_add_up(self):
        metrics = Metrics("model", 1)
        finished = finished_request()
        add(metrics, finished)
        once = series_of(metrics)
        add(metrics, finished)
        assert series_of(metrics) == {key: (2 * total, 2 * count) for key, (total, count) in once.items()}

    def test_nan_is_left_out(self):
        finished = finished_request()
        finished.statistics["entropy"][1, 2, 8] = math.nan
        metrics = Metrics("model", 3)
        add(metrics, finished)
        series = series_of(metrics)
        assert ("entropy", None, "1", "answer") not in series
        assert series["entropy", None, "1", "prompt"][1] == 6
        assert series["entropy", None, "0", "answer"][1] == 6
        assert all(math.isfinite(total) for total, _ in series.values())

    def test_a_phase_without_rows_adds_nothing(self):
        metrics = Metrics("model", 1)
        add(metrics, finished_request(first_row=6))
        assert {phase for *_, phase in series_of(metrics)} == {"answer"}

    def test_span_names_are_limited(self):
        metrics = Metrics("model", 1)
        finished = finished_request()
        for index in range(MAX_SPANS + 3):
            add(metrics, replace(finished, spans={f"span {index}": (0, 2), "first": (2, 7)}))
        spans = {span for _, span, _, _ in series_of(metrics) if span is not None}
        assert len(spans) == MAX_SPANS + 1
        assert {"other", "first", "span 0"} <= spans
        assert series_of(metrics)["mass", "first", "0-2", "answer"][1] == 6 * (MAX_SPANS + 3)

    def test_span_names_are_printable(self):
        metrics = Metrics("model", 1)
        add(metrics, replace(finished_request(), spans={"\ud800\n": (0, 2), "x" * 1000: (2, 7)}))
        spans = {span for _, span, _, _ in series_of(metrics) if span is not None}
        for span in spans:
            assert len(span.encode()) <= 80

    def test_threads_count_every_request(self):
        metrics = Metrics("model", 1)
        threads = [threading.Thread(target=lambda: [metrics.count("skipped") for _ in range(2000)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert metrics.snapshot()["requests"] == {**dict.fromkeys(OUTCOMES, 0), "skipped": 8000}

    def test_version_changes_with_the_values(self):
        metrics = Metrics("model", 1)
        assert metrics.version == 0
        metrics.count("failed")
        assert metrics.version == 1


@pytest.mark.parametrize(
    ("count", "groups", "sizes"), [(30, 4, [7, 8, 7, 8]), (2, 4, [1, 1]), (5, 1, [5]), (0, 4, []), (7, 7, [1] * 7)]
)
def test_groups_of_layers_cover_all(count, groups, sizes):
    parts = split_layers(count, groups)
    assert [part.stop - part.start for part in parts] == sizes
    assert [index for part in parts for index in range(count)[part]] == list(range(count))


def test_no_observed_layers_add_nothing():
    metrics = Metrics("model", 4)
    add(metrics, FinishedRequest("a", [1, 2], 1, 0, (), None, {"entropy": torch.zeros(0, 2, 2)}))
    assert not series_of(metrics)


@pytest.mark.parametrize(
    ("indices", "text"), [([0], "0"), ([0, 1], "0-1"), (range(8), "0-7"), ([0, 3, 4, 5, 9], "0,3-5,9"), ([], "")]
)
def test_indices_are_abbreviated(indices, text):
    assert format_indices(indices) == text


class TestSnapshots:
    def write(self, folder, name, metrics):
        path = folder / f"{name}.json"
        path.write_text(json.dumps(metrics.snapshot()))
        return path

    def test_processes_of_a_run_add_up(self, tmp_path):
        finished = finished_request()
        for name in ("11-a", "13-b"):
            metrics = Metrics("model", 1)
            add(metrics, finished)
            metrics.count("observed")
            self.write(tmp_path, name, metrics)
        samples = samples_of(read_snapshots(tmp_path))
        total, count = series_of(metrics)["entropy", None, "0-2", "answer"]
        assert samples["clearhead_attention_entropy_nats"]["model", "0-2", "answer"] == (2 * total, 2 * count)
        assert samples["clearhead_requests"]["model", "observed"] == (2, 0)
        assert samples["clearhead_requests"]["model", "failed"] == (0, 0)
        assert ("model", "0-2", "prompt", "passage") in samples["clearhead_attention_span_mass"]

    def test_counters_of_the_engine_are_added(self, tmp_path):
        metrics = Metrics("model", 1)
        metrics.count("failed")
        path = self.write(tmp_path, "11-a", metrics)
        with path.with_suffix(".counters").open("w+b") as file:
            file.truncate(Counters.SIZE)
            Counters(file)["failed"] = 2
        requests = samples_of(read_snapshots(tmp_path))["clearhead_requests"]
        assert requests["model", "failed"] == (3, 0)
        assert requests["model", "observed"] == (0, 0)

    @pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"model": 1}', '{"model": "m", "requests": 1}'])
    def test_damaged_snapshots_are_skipped(self, tmp_path, text):
        metrics = Metrics("model", 1)
        metrics.count("observed")
        self.write(tmp_path, "11-a", metrics)
        self.write(tmp_path, "13-b", metrics).write_text(text)
        (tmp_path / "14-c.json").mkdir()
        (tmp_path / "15-d.json").write_bytes(b"\xff")
        assert len(read_snapshots(tmp_path)) == 1

    def test_a_folder_that_does_not_exist_has_no_snapshots(self, tmp_path):
        assert read_snapshots(tmp_path / "none") == []
        assert samples_of([])["clearhead_requests"] == {}


def test_samples_exist_before_the_first_request():
    metrics = Metrics.of(Settings("/results", layer_groups=2), "model", [0, 1, 2])
    samples = samples_of([metrics.snapshot()])
    assert samples["clearhead_requests"] == {("model", outcome): (0, 0) for outcome in OUTCOMES}
    groups = {("model", layers, phase): (0, 0) for layers in ("0", "1-2") for phase in ("prompt", "answer")}
    assert samples["clearhead_attention_entropy_nats"] == samples["clearhead_attention_sink_share"] == groups
    add(metrics, finished_request())
    assert {layers for _, _, layers, _ in series_of(metrics)} == {"0", "1-2"}
