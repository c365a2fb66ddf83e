"""Tests of reading an output folder."""

import json
import os

import pytest
import torch

from clearhead.recording.recording import Tokens
from clearhead.serving import results
from clearhead.serving.head_means import phase_means
from clearhead.serving.json_record import json_record
from clearhead.serving.output_files import append_line, file_stem, statistics_path
from clearhead.serving.recorded import RequestTexts
from clearhead.serving.results import SeenRequest, SeenRequests, read_requests
from support.served_requests import SPANS, Tokenizer, finished_request


def seen_request(**options) -> SeenRequest:
    finished = finished_request(**options)
    return SeenRequest.of(finished, "model", RequestTexts.decode(finished, Tokenizer()).tokens)


class TestSeenRequest:
    def test_round_trip(self, tmp_path):
        finished = finished_request(first_row=3, heads=(0, 3), top=2)
        before = SeenRequest.of(finished, "model", RequestTexts.decode(finished, Tokenizer()).tokens)
        before.save(tmp_path / "s.safetensors")
        after = SeenRequest.load(tmp_path / "s.safetensors")
        for name in ("id", "model", "token_ids", "tokens", "prompt_len", "first_row", "layers", "heads", "spans"):
            assert getattr(after, name) == getattr(before, name), name
        assert isinstance(after.tokens, Tokens)
        assert list(after.spans) == list(SPANS)
        for name in ("entropy", "peak", "sink", "received", "mass"):
            assert torch.equal(getattr(after, name), finished.statistics[name])
        assert torch.equal(after.top.weights, finished.statistics["top_weights"])
        assert torch.equal(after.top.keys, finished.statistics["top_keys"])
        assert after.recording is None

    def test_means_are_those_of_the_json_line(self):
        finished = finished_request(first_row=3)
        seen = SeenRequest.of(finished, "model", RequestTexts.decode(finished, None).tokens)
        assert seen.first_answer_row == finished.first_answer_row == 3
        assert seen.means == json_record(finished, phase_means(finished), model="model", time="now")["means"]

    def test_statistics_that_were_not_observed_raise(self):
        with pytest.raises(AttributeError, match="distance was not observed; the request has entropy, sink"):
            _ = seen_request().distance
        assert not hasattr(seen_request(), "top")

    def test_damaged_facts_raise_one_line(self, tmp_path):
        path = tmp_path / "s.safetensors"
        seen = seen_request()
        object.__setattr__(seen, "spans", {"a": 3})
        seen.save(path)
        with pytest.raises(ValueError, match="saved by SeenRequest.save, but damaged"):
            SeenRequest.load(path)


class TestSeenRequests:
    def test_mapping_by_id_in_order(self, tmp_path):
        (tmp_path / "statistics").mkdir()
        seen = SeenRequests(tmp_path)
        assert len(seen) == 0
        for name in ("b", "a/c", "without"):
            finished = finished_request(name)
            append_line(
                tmp_path / "requests.jsonl", json_record(finished, phase_means(finished), model="model", time="now")
            )
            if name != "without":
                seen_request(name=name).save(statistics_path(tmp_path, name))
        assert list(seen) == ["b", "a/c"]
        assert seen["a/c"].id == "a/c"
        assert "without" not in seen
        with pytest.raises(KeyError, match="none"):
            seen["none"]
        assert repr(seen).endswith("2 requests)")

    def test_lines_are_read_again_only_if_there_are_new_ones(self, tmp_path, monkeypatch):
        reads = []
        monkeypatch.setattr(results, "read_requests", lambda folder: reads.append(folder) or read_requests(folder))
        seen = SeenRequests(tmp_path)
        for count, name in enumerate(("a", "b"), 1):
            append_line(tmp_path / "requests.jsonl", {"request": name})
            statistics_path(tmp_path, name).parent.mkdir(exist_ok=True)
            seen_request(name=name).save(statistics_path(tmp_path, name))
            assert [seen[each].id for each in seen] == ["a", "b"][:count]
            assert len(seen) == len(reads) == count


class TestLines:
    def test_incomplete_lines_are_skipped_and_ended(self, tmp_path):
        path = tmp_path / "requests.jsonl"
        for cut in (1, 5, 30):
            append_line(path, {"request": "whole", "value": "x" * 50})
            with path.open("a") as file:
                file.write(json.dumps({"request": "torn", "value": "x" * 50})[:cut])
            assert {line["request"] for line in read_requests(tmp_path)} == {"whole"}
        append_line(path, {"request": "last"})
        assert [line["request"] for line in read_requests(tmp_path)] == ["whole"] * 3 + ["last"]

    def test_other_files_raise(self, tmp_path):
        (tmp_path / "requests.jsonl").write_text('{"request": "a"}\nsomething else\n')
        with pytest.raises(ValueError, match="line 2 is not a JSON object"):
            list(read_requests(tmp_path))

    def test_a_folder_without_lines_is_empty(self, tmp_path):
        assert list(read_requests(tmp_path)) == []

    def test_a_partial_write_is_continued(self, tmp_path, monkeypatch):
        write = os.write
        monkeypatch.setattr(os, "write", lambda handle, data: write(handle, data[:7]))
        append_line(tmp_path / "requests.jsonl", {"request": "a" * 100})
        assert [line["request"] for line in read_requests(tmp_path)] == ["a" * 100]


class TestNames:
    def test_different_names_stay_different(self):
        names = ["", "%", ".", "%2E", "..", "a", "A b", "a/b", "a%2Fb", "x" * 300, "x" * 301, "é", "\ud800", "~"]
        stems = [file_stem(name) for name in names]
        assert len(set(stems)) == len(names)
        assert all(0 < len(stem) <= 200 and stem.isascii() and "/" not in stem and stem[0] != "." for stem in stems)
