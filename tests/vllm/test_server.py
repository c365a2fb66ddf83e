"""Tests of a `vllm serve` process: each of many concurrent requests has its line, its files and its metrics."""

import json
import math
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from clearhead import Causal, Recording
from clearhead.serving import SeenRequests, read_requests
from support.numerics import Case, assert_matches
from support.paths import ROOT
from support.vllm_server import Server, environment

pytestmark = pytest.mark.vllm

LAYERS, HEADS = 30, 9
SHARED = 140  # tokens of a common start, more than a block of the cache
SETTINGS = {"arrays": True, "distance": True, "peak": True, "top": 3, "spans": {"start": [0, 2]}}
SETTINGS |= {"client_options": True}
# more requests than the batch takes at once, and prompts longer than a step
OPTIONS = ["--max-num-seqs", "7", "--max-num-batched-tokens", "128"]


class Sent(NamedTuple):
    """One request and the answer of the server."""

    prompt: list[int]
    max_tokens: int
    recorded: bool
    answer: dict[str, Any]


class Served(NamedTuple):
    """Server that has answered all requests, and its output folder."""

    server: Server
    folder: Path
    sent: list[Sent]


def lines_of(folder, ids, seconds=120):
    """Return the lines of requests by the id that the client knows, when the server has written all of them."""
    deadline = time.monotonic() + seconds
    while True:
        lines = {id_: line for line in read_requests(folder) for id_ in ids if line["request"].startswith(id_)}
        if len(lines) == len(ids):
            return lines
        assert time.monotonic() < deadline, f"no line for {sorted(set(ids) - set(lines))}"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def served(model, text_ids, tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    output = folder / "attention"
    server = Server(model, folder / "log.txt", json.dumps({"output": str(output), **SETTINGS}), OPTIONS)
    try:
        server.wait()

        def send(index):
            length = (3, 17, 61, 113, 211, 307)[index % 6] + index
            start = text_ids[:SHARED] if index % 3 == 0 else []
            prompt, recorded = start + text_ids[200 + 11 * index :][:length], index % 2 == 0
            answer = server.complete(prompt, 5 + index, "record" if recorded else None)
            return Sent(prompt, 5 + index, recorded, answer)

        with ThreadPoolExecutor(24) as pool:
            sent = list(pool.map(send, range(24)))
        lines_of(output, [each.answer["id"] for each in sent])
        yield Served(server, output, sent)
    finally:
        server.stop()


def test_every_request_has_one_line(served):
    lines = list(read_requests(served.folder))
    assert len(lines) == len(served.sent)
    by_id = lines_of(served.folder, [each.answer["id"] for each in served.sent])
    for sent in served.sent:
        line = by_id[sent.answer["id"]]
        assert line["prompt_tokens"] == len(sent.prompt) == sent.answer["usage"]["prompt_tokens"]
        assert line["rows"]["answer"] == sent.max_tokens == sent.answer["usage"]["completion_tokens"]
        assert line["rows"]["prompt"] == len(sent.prompt) - 1 - line["cached_tokens"]
        assert len(line["received"]) == len(sent.prompt) + sent.max_tokens - 1
        assert (line["recording"] is not None) == sent.recorded
        assert line["dropped"] is None
    assert any(line["cached_tokens"] for line in lines)


def test_statistics_are_those_of_recorded_queries_and_keys(served):
    seen = SeenRequests(served.folder)
    recorded = [line for line in read_requests(served.folder) if line["recording"]]
    assert len(recorded) == sum(each.recorded for each in served.sent)
    for line in recorded[::3]:
        request = seen[line["request"]]
        recording = Recording.load(served.folder / "recordings" / line["recording"])
        stack = recording["decoder"]
        assert len(stack.layers) == LAYERS
        assert stack.queries.texts == stack.keys.texts[request.first_row :]
        for layer in (0, 11, 29):
            weights = stack.layers[layer]
            query, key = (tensor.detach().float() for tensor in (weights.query, weights.key))
            case = Case(query, key, key, Causal(), scale=weights.scale, query_start=request.first_row)
            exact, naive = case.exact(), case.statistics()
            logs = case.terms + math.log(2 + key.shape[2])  # bound of the log weights
            for name in ("entropy", "received", "distance"):  # sums of weights, each with the error of its log weight
                size = max(1.0, float(abs(exact[name]).max()))
                assert_matches(getattr(request, name)[layer][None], exact[name], naive[name], scale=logs * size)
            sink, mass = exact["weights"][..., 0], exact["weights"][..., :2].sum(-1)
            assert_matches(request.sink[layer][None], sink, naive["weights"][..., 0], scale=logs)
            assert_matches(request.mass[layer, ..., 0][None], mass, naive["weights"][..., :2].sum(-1), scale=logs)
            top = torch.tensor(exact["weights"].astype("float64")).topk(min(3, key.shape[2])).values
            assert_matches(request.top.weights[layer][None], top.numpy(), naive["weights"].topk(3).values, scale=logs)


def test_lines_are_means_of_the_arrays(served):
    seen = SeenRequests(served.folder)
    for line in read_requests(served.folder):
        request = seen[line["request"]]
        answer = slice(request.first_answer_row, None)
        assert request.entropy.shape == (LAYERS, HEADS, sum(line["rows"].values()))
        for name in ("entropy", "sink", "distance"):
            mean = getattr(request, name)[..., answer].double().mean().item()
            assert line["means"]["answer"][name] == pytest.approx(mean, rel=1e-5)
        mass = request.mass[..., answer, 0].double().mean().item()
        assert line["means"]["answer"]["mass"]["start"] == pytest.approx(mass, rel=1e-5)


def test_metrics_count_requests_and_rows(served):
    metrics = served.server.metrics()
    lines = list(read_requests(served.folder))
    labels = f'layers="0-6",model_name="{served.server.model}"'
    for phase in ("prompt", "answer"):
        rows = sum(line["rows"][phase] for line in lines)
        assert metrics[f'clearhead_attention_entropy_nats_count{{{labels},phase="{phase}"}}'] == rows
        assert 0 < metrics[f'clearhead_attention_sink_share_sum{{{labels},phase="{phase}"}}'] < rows
    outcomes = {name: value for name, value in metrics.items() if name.startswith("clearhead_requests_total")}
    assert next(value for name, value in outcomes.items() if '"observed"' in name) == len(lines)
    assert next(value for name, value in outcomes.items() if '"recorded"' in name) == len(lines) / 2
    assert not any(value for name, value in outcomes.items() if '"failed"' in name or '"dropped"' in name)
    assert "vllm:num_requests_running" in served.server.get("/metrics")


@pytest.mark.parametrize("line", ["stats", "view --output report.html"])
def test_commands_open_recordings(served, tmp_path, line):
    path = next((served.folder / "recordings").glob("*.safetensors"))
    command = [sys.executable, "-m", "clearhead", line.split()[0], str(path), *line.split()[1:]]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment())
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_recordings_contain_prompt_and_answer(served):
    lines = lines_of(served.folder, [each.answer["id"] for each in served.sent])
    for sent in served.sent[::2]:
        recording = Recording.load(served.folder / "recordings" / lines[sent.answer["id"]]["recording"])
        assert recording.output
        assert sent.answer["choices"][0]["text"].startswith(recording.output)  # without the last token, never read
        assert len(recording["decoder"].keys.texts) == len(sent.prompt) + sent.max_tokens - 1


def test_rows_of_an_answer_end_with_its_stop_string(served):
    prompt = "The capital of France is"
    text = served.server.complete(prompt, 20)["choices"][0]["text"]
    answer = served.server.complete(prompt, 20, stop=text[len(text) // 2 :][:5])
    tokens = answer["usage"]["completion_tokens"]
    assert tokens < 20
    line = lines_of(served.folder, [answer["id"]])[answer["id"]]
    assert (line["rows"]["answer"], line["finish_reason"]) == (tokens, "stop")


def test_spans_that_do_not_occur_are_left_out(served):
    answer = served.server.complete("The capital of France is", 3, '{"spans": {"a": "not in the prompt"}}')
    line = lines_of(served.folder, [answer["id"]])[answer["id"]]
    assert line["rows"]["answer"] == 3
    assert list(line["spans"]) == ["start"]


@pytest.mark.parametrize("options", ['{"observe": false}', '{"observe": false, "record": true}', "[1]", 7])
def test_requests_are_not_observed_by_refusal_or_mistake(served, options):
    refused = served.server.complete("The capital of France is", 3, options)
    observed = served.server.complete("The capital of France is", 3)
    lines_of(served.folder, [observed["id"]])
    assert not any(line["request"].startswith(refused["id"]) for line in read_requests(served.folder))


def test_example_prints_shares_of_passages(served):
    command = [sys.executable, "examples/rag_attention.py", "--server", served.server.url, "--folder"]
    done = subprocess.run([*command, str(served.folder)], capture_output=True, text=True, cwd=ROOT, env=environment())
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("%") == 4 * 5
    assert "–" not in done.stdout


def wait_until(condition):
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_killed_server_leaves_whole_recordings(model, text_ids, tmp_path):
    output = tmp_path / "attention"
    server = Server(model, tmp_path / "log.txt", json.dumps({"output": str(output), "record": 1, "arrays": True}))
    try:
        server.wait()

        answered = []

        def send(index):
            with suppress(OSError):  # the server was killed
                server.complete(text_ids[7 * index :][: 211 + index], 2 + index)
                answered.append(index)

        with ThreadPoolExecutor(16) as pool:
            pool.map(send, range(64))
            wait_until(lambda: len(answered) >= 8)
            server.kill()
        assert len(answered) < 64
        wait_until(lambda: len(list(read_requests(output))) >= len(answered))
    finally:
        server.stop()
    files = sorted(output.glob("recordings/*.safetensors"))
    assert len(files) >= 8
    for path in files:
        assert len(Recording.load(path)["decoder"].layers) == LAYERS
    lines = list(read_requests(output))
    assert lines
    assert {line["recording"] for line in lines} <= {path.name for path in files}
    assert all(seen.entropy.isfinite().all() for seen in SeenRequests(output).values())
