"""Tests of the JSON object of a request."""

import json
import math
from dataclasses import replace

import pytest
import torch

from clearhead.serving.head_means import phase_means
from clearhead.serving.json_record import json_record
from support.served_requests import SPANS, finished_request


def record_of(finished, **options):
    record = json_record(finished, phase_means(finished), model="model", time="now", **options)
    return json.loads(json.dumps(record, allow_nan=False))


def six_digits(value) -> float:
    return float(f"{float(value):.6g}")


def test_facts_of_the_request():
    record = record_of(finished_request(first_row=3), recording="r.safetensors")
    assert record["request"] == "cmpl-1"
    assert (record["model"], record["time"]) == ("model", "now")
    assert (record["prompt_tokens"], record["cached_tokens"]) == (7, 3)
    assert record["rows"] == {"prompt": 3, "answer": 6}
    assert record["layers"] == [0, 1, 2]
    assert record["heads"] is None
    assert record["spans"] == {name: list(span) for name, span in SPANS.items()}
    assert record["recording"] == "r.safetensors"
    assert record["dropped"] is None
    assert "top" not in record


@pytest.mark.parametrize("first_row", [0, 3])
def test_means_of_prompt_and_answer(first_row):
    finished = finished_request(first_row=first_row)
    record = record_of(finished)
    edge = 6 - first_row  # the row of the last token of the prompt predicts the first token of the answer
    for phase, rows in (("prompt", slice(0, edge)), ("answer", slice(edge, None))):
        by_head = record[f"heads_{phase}"]
        for name in ("entropy", "sink"):
            chosen = finished.statistics[name][:, :, rows].double()
            assert record["means"][phase][name] == six_digits(chosen.mean())
            assert by_head[name] == [[six_digits(head) for head in layer] for layer in chosen.mean(dim=2)]
        peaks = finished.statistics["peak"][:, :, rows]
        assert record["means"][phase]["peak"] == six_digits(peaks.max())
        assert by_head["peak"] == [[six_digits(head) for head in layer] for layer in peaks.amax(dim=2)]
        for index, span in enumerate(SPANS):
            mass = finished.statistics["mass"][:, :, rows, index].double()
            assert record["means"][phase]["mass"][span] == pytest.approx(float(mass.mean()), rel=1e-5)
            assert by_head["mass"][span] == [[six_digits(head) for head in layer] for layer in mass.mean(dim=2)]
    received = finished.statistics["received"].double().mean(dim=(0, 1))
    assert record["received"] == pytest.approx(received.tolist(), rel=1e-5)
    assert sum(record["received"]) < 12 - first_row  # the sink of layer 1 takes the rest


def test_a_phase_without_rows_is_null():
    record = record_of(finished_request(first_row=6))
    assert record["rows"] == {"prompt": 0, "answer": 6}
    assert record["means"]["prompt"] is None
    assert record["heads_prompt"] is None
    assert record["means"]["answer"]["entropy"] > 0


def test_nan_is_null():
    finished = finished_request()
    finished.statistics["entropy"][1, 2, 8] = math.nan
    finished.statistics["peak"].fill_(-math.inf)
    record = record_of(finished)
    assert record["heads_answer"]["entropy"][1][2] is None
    assert record["heads_answer"]["entropy"][1][1] is not None
    assert record["means"]["answer"]["entropy"] is None
    assert record["means"]["prompt"]["peak"] is None


def test_top_has_the_rows_of_the_answer():
    finished = finished_request(top=2, heads=(0, 3))
    record = record_of(finished)
    assert record["heads"] == [0, 3]
    assert record["top"]["keys"] == finished.statistics["top_keys"][:, :, 6:].tolist()
    assert record["top"]["weights"][2][1][5][0] == six_digits(finished.statistics["top_weights"][2, 1, 11, 0])


def test_statistics_that_were_not_observed_are_absent():
    finished = finished_request()
    finished.statistics.clear()
    record = record_of(finished)
    assert record["means"] == {"prompt": {}, "answer": {}}
    assert "received" not in record


def test_no_spans_and_no_mass_are_allowed():
    finished = finished_request()
    finished.statistics["mass"] = torch.zeros(3, 4, 12, 0)
    record = json_record(replace(finished, spans={}), phase_means(finished), model="model", time="now")
    assert "mass" not in record["means"]["answer"]


def test_integers_of_torch_are_not_in_the_record():
    finished = finished_request(top=1)
    assert finished.statistics["top_keys"].dtype == torch.int64
    record_of(finished)
