"""Tests of the Prometheus collector; prometheus_client comes with vLLM."""

import json

import prometheus_client
import pytest

from clearhead.serving.head_means import phase_means
from clearhead.serving.metrics import Metrics
from support.served_requests import finished_request


@pytest.fixture
def registry():
    return prometheus_client.CollectorRegistry(auto_describe=True)


def write_snapshot(folder, name, span="passage"):
    metrics = Metrics('mo"del', 1)
    finished = finished_request(record=False)
    object.__setattr__(finished, "spans", {span: (0, 2), "b": (2, 7)})
    metrics.add(finished, phase_means(finished))
    metrics.count("observed")
    (folder / f"{name}.json").write_text(json.dumps(metrics.snapshot()))
    return metrics


def page(registry) -> list[str]:
    return prometheus_client.generate_latest(registry).decode().splitlines()


def test_samples_on_the_page(tmp_path, registry):
    from clearhead.serving._prometheus import install

    install(tmp_path, registry=registry)
    assert "# TYPE clearhead_attention_entropy_nats summary" in page(registry)
    metrics = write_snapshot(tmp_path, "11-a")
    labels = {"model_name": 'mo"del', "layers": "0-2", "phase": "answer"}
    entropy = next(
        entry for entry in metrics.snapshot()["series"] if (entry["statistic"], entry["phase"]) == ("entropy", "answer")
    )
    assert registry.get_sample_value("clearhead_attention_entropy_nats_sum", labels) == entropy["sum"]
    assert registry.get_sample_value("clearhead_attention_entropy_nats_count", labels) == 6
    assert registry.get_sample_value("clearhead_attention_sink_share_count", labels) == 6
    assert registry.get_sample_value("clearhead_attention_span_mass_count", {**labels, "span": "passage"}) == 6
    requests = {"model_name": 'mo"del', "outcome": "observed"}
    assert registry.get_sample_value("clearhead_requests_total", requests) == 1
    write_snapshot(tmp_path, "17-b")
    assert registry.get_sample_value("clearhead_requests_total", requests) == 2


def test_names_of_spans_are_escaped(tmp_path, registry):
    from clearhead.serving._prometheus import install

    install(tmp_path, registry=registry)
    write_snapshot(tmp_path, "11-a", span='\ud800 "}\n evil 1')
    assert not [line for line in page(registry) if line.startswith(" evil")]


def test_installing_again_replaces_the_folder(tmp_path, registry):
    from clearhead.serving._prometheus import install

    install(tmp_path / "old", registry=registry)
    write_snapshot(tmp_path, "11-a")
    install(tmp_path, registry=registry)
    assert len([line for line in page(registry) if line.startswith("clearhead_requests_total{")]) == 5
