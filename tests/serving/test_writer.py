"""Tests of the writer: files, dropping, failures and the end of the process."""

import json
import logging
import threading
from dataclasses import replace

import pytest
import torch

from clearhead.recording.recording import Recording
from clearhead.serving import output_files, rare_warnings
from clearhead.serving import writer as writer_module
from clearhead.serving.answers import StopRules
from clearhead.serving.results import SeenRequests, read_requests
from clearhead.serving.settings import Settings
from clearhead.serving.transfer import recording_bytes, request_bytes
from clearhead.serving.writer import Writer
from support.private_paths import paths_found
from support.served_requests import LAYERS, Tokenizer, finished_request, small_request


@pytest.fixture
def make_writer(tmp_path):
    """Return a function that starts a writer in the folder of the test; the writers are closed after the test."""
    writers = []

    def make(loader=Tokenizer, model="model", snapshot_path=None, **options) -> Writer:
        settings = Settings(output=tmp_path / "out", **options)
        writers.append(Writer(settings, model, loader, snapshot_path=snapshot_path))
        return writers[-1]

    yield make
    assert all(each.close(60) for each in writers)


@pytest.fixture
def blocked(monkeypatch):
    """Return an event without which no JSON line is written."""
    event, append = threading.Event(), output_files.append_line
    monkeypatch.setattr(writer_module, "append_line", lambda *args: (event.wait(60), append(*args))[1])
    yield event
    event.set()


def counts(writer: Writer) -> dict[str, int]:
    return {outcome: count for outcome, count in writer.metrics.snapshot()["requests"].items() if count}


def hidden_files(folder):
    return [path for path in folder.rglob("*") if path.name.startswith(".")]


class TestFiles:
    def test_line_recording_statistics_and_metrics(self, make_writer, tmp_path):
        snapshot = tmp_path / "snapshot.json"
        writer = make_writer(snapshot_path=snapshot, arrays=True)
        finished = finished_request()
        writer.put(finished)
        assert writer.flush(60)
        folder = tmp_path / "out"
        (line,) = read_requests(folder)
        assert line["request"] == "cmpl-1"
        assert line["recording"] == "cmpl-1.safetensors"
        assert line["dropped"] is None
        recording = Recording.load(folder / "recordings" / line["recording"])
        assert len(recording["decoder"].layers) == LAYERS
        assert torch.equal(SeenRequests(folder)["cmpl-1"].entropy, finished.statistics["entropy"])
        assert json.loads(snapshot.read_text())["requests"]["recorded"] == 1
        assert sorted(path.name for path in folder.iterdir()) == ["recordings", "requests.jsonl", "statistics"]
        assert counts(writer) == {"observed": 1, "recorded": 1}
        assert writer.queued_bytes == 0

    def test_files_contain_no_path(self, make_writer, tmp_path, monkeypatch):
        writer = make_writer(model=str(tmp_path / "llama" / "model"), arrays=True)
        writer.put(finished_request("1"))
        assert writer.flush(60)
        (line,) = read_requests(tmp_path / "out")
        assert line["model"] == "llama"
        (tmp_path / "out" / "recordings" / "2.safetensors").mkdir()  # cannot be replaced by a file
        writer.put(finished_request("2"))
        assert writer.flush(60)
        assert "recordings/2.safetensors" in list(read_requests(tmp_path / "out"))[1]["dropped"]
        assert paths_found(tmp_path / "out", str(tmp_path)) == []

    def test_tensors_of_inference_mode(self, make_writer, tmp_path):
        """An engine computes in inference mode, the thread writes outside of it."""
        with torch.inference_mode():
            finished = finished_request(heads=(0, 3))
            assert finished.recording[0].key.is_inference()
        writer = make_writer(arrays=True)
        writer.put(finished)
        assert writer.flush(60)
        assert counts(writer) == {"observed": 1, "recorded": 1}

    def test_files_have_the_unique_id(self, make_writer, tmp_path):
        writer = make_writer(arrays=True)
        for unique in ("7-first", "7-second"):
            writer.put(replace(finished_request(unique, seed=len(unique)), client_id="7"))
        assert writer.flush(60)
        first, second = read_requests(tmp_path / "out")
        assert (first["request"], first["recording"]) == ("7", "7-first.safetensors")
        assert (second["request"], second["recording"]) == ("7", "7-second.safetensors")
        seen = SeenRequests(tmp_path / "out")
        assert list(seen) == ["7"]
        assert seen["7"].id == "7-second"
        assert seen["7-first"].recording is not None

    def test_files_are_private(self, make_writer, tmp_path):
        writer = make_writer(arrays=True)
        writer.put(finished_request())
        assert writer.flush(60)
        files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
        assert {path.name: oct(path.stat().st_mode & 0o777) for path in files} == {
            "requests.jsonl": "0o600",
            "cmpl-1.safetensors": "0o600",
        }

    def test_a_line_has_the_end_of_the_answer(self, make_writer, tmp_path):
        """The server has left out tokens after the stop text; the metrics and means leave their rows out too."""
        writer = make_writer(snapshot_path=tmp_path / "snapshot.json", arrays=True)
        writer.put(replace(finished_request(record=False), stop_rules=StopRules(texts=("w9 ",))))  # tokens 7 to 10, 0
        assert writer.flush(60)
        (line,) = read_requests(tmp_path / "out")
        assert (line["rows"], line["finish_reason"]) == ({"prompt": 6, "answer": 3}, "stop")
        seen = SeenRequests(tmp_path / "out")["cmpl-1"]
        assert (seen.answer_tokens, seen.finish_reason) == (3, "stop")
        assert seen.means == line["means"]
        series = json.loads((tmp_path / "snapshot.json").read_text())["series"]
        assert {entry["count"] for entry in series if entry["phase"] == "answer"} == {3}

    @pytest.mark.parametrize(("skipped", "end"), [(False, (5, "stop")), (True, (6, None))])
    def test_stop_texts_of_special_tokens_end_an_answer_that_shows_them(self, make_writer, tmp_path, skipped, end):
        writer = make_writer()
        rules = StopRules(texts=("w0 ",), skip_special_tokens=skipped)
        writer.put(replace(finished_request(record=False), stop_rules=rules))
        assert writer.flush(60)
        (line,) = read_requests(tmp_path / "out")
        assert (line["rows"]["answer"], line["finish_reason"]) == end

    def test_close_writes_what_is_queued(self, make_writer, tmp_path, blocked):
        writer = make_writer()
        for index in range(5):
            writer.put(small_request(str(index)))
        blocked.set()
        assert writer.close(60)
        assert [line["request"] for line in read_requests(tmp_path / "out")] == list("01234")
        assert writer.flush(60)  # does not wait for a thread that has ended

    def test_requests_after_close_are_dropped(self, make_writer):
        writer = make_writer()
        assert writer.close(60)
        writer.put(small_request("late"))
        assert counts(writer) == {"dropped": 1}

    @pytest.mark.parametrize("name", ["../../escape", "a/b", ".hidden", "", "日本", "\ud800", "x" * 1000, "a\nb\0c"])
    def test_any_id_is_a_file_in_the_folder(self, make_writer, tmp_path, name):
        writer = make_writer(arrays=True)
        writer.put(finished_request(name))
        assert writer.flush(60)
        assert counts(writer) == {"observed": 1, "recorded": 1}
        assert not hidden_files(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["out"]
        seen = SeenRequests(tmp_path / "out")
        assert list(seen) == [name]
        assert seen[name].recording is not None

    def test_ids_that_are_not_text_become_text(self, make_writer, tmp_path):
        writer = make_writer()
        for name in (7, b"x", object()):
            writer.put(small_request(name))
        assert writer.flush(60)
        assert [line["request"][:7] for line in read_requests(tmp_path / "out")] == ["7", "b'x'", "<object"]


class TestMemory:
    def test_recording_is_dropped_before_the_request(self, make_writer, tmp_path, blocked):
        finished = finished_request()
        size, extra = request_bytes(finished), recording_bytes(finished)
        writer = make_writer(memory=2 * size + extra)
        for name in ("recorded", "without", "dropped"):
            writer.put(finished_request(name))
        assert counts(writer)["dropped"] == 2
        blocked.set()
        assert writer.flush(60)
        lines = {line["request"]: line for line in read_requests(tmp_path / "out")}
        assert list(lines) == ["recorded", "without"]
        assert lines["recorded"]["recording"] == "recorded.safetensors"
        assert lines["without"]["recording"] is None
        assert "memory" in lines["without"]["dropped"]
        assert counts(writer) == {"observed": 2, "recorded": 1, "dropped": 2}

    def test_memory_is_free_again_after_writing(self, make_writer, tmp_path):
        writer = make_writer(memory=request_bytes(small_request("a")))
        for index in range(3):
            writer.put(small_request(str(index)))
            assert writer.flush(60)
        assert counts(writer) == {"observed": 3}

    def test_recording_that_the_observer_dropped_is_counted(self, make_writer, tmp_path):
        writer = make_writer()
        request = small_request("a")
        object.__setattr__(request, "dropped", "too long")
        writer.put(request)
        assert writer.flush(60)
        assert next(read_requests(tmp_path / "out"))["dropped"] == "too long"
        assert counts(writer) == {"observed": 1, "dropped": 1}

    def test_views_count_with_their_storage(self):
        request = small_request("a")
        before = request_bytes(request)
        whole = torch.zeros(1, 2, 1003)
        request.statistics.update(entropy=whole[..., :3], sink=whole[..., 3:6])
        assert request_bytes(request) - before == whole.nbytes - 2 * 1 * 2 * 3 * 4

    @pytest.mark.parametrize("total", [300, pytest.param(10_000, marks=pytest.mark.slow)])
    def test_many_requests_leave_nothing_in_memory(self, make_writer, tmp_path, total):
        writer = make_writer()
        for start in range(0, total, 100):
            for index in range(start, start + 100):
                writer.put(small_request(str(index)))
            assert writer.flush(60)
        assert writer.queued_bytes == 0
        assert not writer._queue
        assert counts(writer) == {"observed": total}
        assert sum(1 for _ in read_requests(tmp_path / "out")) == total


class TestFailures:
    def test_full_disk_is_counted_and_logged_once(self, make_writer, tmp_path, monkeypatch, caplog):
        def full(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(writer_module, "append_line", full)
        monkeypatch.setattr(Recording, "save", full)
        writer = make_writer(snapshot_path=tmp_path / "snapshot.json")
        with caplog.at_level(logging.WARNING, "clearhead.serving"):
            for index in range(7):
                writer.put(finished_request(str(index)))
            assert writer.flush(60)
        assert counts(writer) == {"failed": 7}
        assert json.loads((tmp_path / "snapshot.json").read_text())["requests"]["failed"] == 7
        lines = [record.getMessage() for record in caplog.records]
        assert len(lines) == len(set(lines)) == 2
        assert all("No space left on device" in line for line in lines)
        assert not hidden_files(tmp_path)

    def test_a_failed_recording_leaves_the_line_with_the_reason(self, make_writer, tmp_path, monkeypatch):
        writer = make_writer()
        finished = finished_request()
        finished.token_ids.append(3)  # one token more than there are keys
        writer.put(finished)
        assert writer.flush(60)
        (line,) = read_requests(tmp_path / "out")
        assert line["recording"] is None
        assert "expected one text" in line["dropped"]
        assert counts(writer) == {"observed": 1, "failed": 1}

    def test_folder_that_cannot_be_created(self, make_writer, tmp_path):
        writer = make_writer()
        (tmp_path / "out").write_text("a file")
        writer.put(finished_request())
        assert writer.flush(60)
        assert counts(writer) == {"failed": 1}
        (tmp_path / "out").unlink()
        writer.put(finished_request())
        assert writer.flush(60)
        assert counts(writer) == {"failed": 1, "observed": 1, "recorded": 1}

    @pytest.mark.parametrize("where", ["loading", "decoding"])
    def test_tokens_are_ids_without_a_working_tokenizer(self, make_writer, tmp_path, where):
        def load():
            if where == "loading":
                raise OSError("offline")
            return object()

        writer = make_writer(load)
        for name in ("a", "b"):
            writer.put(finished_request(name))
        assert writer.flush(60)
        for name in ("a", "b"):
            recording = Recording.load(tmp_path / "out" / "recordings" / f"{name}.safetensors")
            assert recording["decoder"].keys.texts[:3] == ("0", "1", "2")
            assert recording.input is None
        assert counts(writer) == {"observed": 2, "recorded": 2}

    def test_put_never_raises(self, make_writer):
        writer = make_writer()
        writer.put(None)
        writer.put(small_request("a"))
        assert writer.flush(60)
        assert counts(writer) == {"failed": 1, "observed": 1}

    def test_warnings_continue_after_a_minute_with_a_count(self, monkeypatch, caplog):
        clock = [0.0]
        monkeypatch.setattr(rare_warnings.time, "monotonic", lambda: clock[0])
        warnings = rare_warnings.RareWarnings()
        with caplog.at_level(logging.WARNING, "clearhead.serving"):
            for clock[0] in (0, 1, 59, 60):
                warnings.warn("write", ValueError("x"))
        assert [record.getMessage() for record in caplog.records] == [
            "cannot write: ValueError: x",
            "cannot write: ValueError: x (2 more since the last message)",
        ]
