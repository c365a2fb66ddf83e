"""Tests of examples/rag_attention.py against a small HTTP server that answers as vLLM does."""

import importlib.util
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from support.paths import ROOT

MASS = {"Everest": 0.125, "Danube": 0.0625, "Saturn": 0.25, "Penguin": 0.03125}


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("rag_attention", ROOT / "examples" / "rag_attention.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def server(tmp_path):
    """Yield a server that numbers its answers and appends a line to `requests.jsonl` for each of them."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.reply({"data": [{"id": "tiny"}]})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            bodies.append(body)
            id_ = f"chatcmpl-{len(bodies)}"
            means = {"answer": {"sink": 0.5, "mass": MASS}}
            with open(tmp_path / "requests.jsonl", "a") as file:
                file.write(json.dumps({"request": id_, "means": means}) + "\n")
            self.reply({"id": id_, "choices": [{"message": {"content": f"It is number {len(bodies)}."}}]})

        def reply(self, value):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(value).encode())

        def log_message(self, *arguments):
            pass

    bodies = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        httpd.bodies = bodies
        thread = threading.Thread(target=httpd.serve_forever, args=(0.01,))
        thread.start()
        yield httpd
        httpd.shutdown()
        thread.join()


def run(example, monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["rag_attention.py", *map(str, arguments)])
    example.main()


def test_shares_of_each_answer_are_printed(example, server, tmp_path, monkeypatch, capsys):
    run(example, monkeypatch, "--server", f"http://127.0.0.1:{server.server_port}/", "--folder", tmp_path)
    printed = capsys.readouterr().out
    for index, question in enumerate(example.QUESTIONS, 1):
        (row,) = (line for line in printed.splitlines() if question in line)
        cells = [cell.strip() for cell in row.split("│")[1:-1]]
        assert cells == [question, f"It is number {index}.", "12.5%", "6.2%", "25.0%", "3.1%", "50.0%"]


def test_each_passage_is_a_span_that_the_prompt_contains(example, server, tmp_path, monkeypatch):
    run(example, monkeypatch, "--server", f"http://127.0.0.1:{server.server_port}", "--folder", tmp_path)
    assert len(server.bodies) == len(example.QUESTIONS)
    for body in server.bodies:
        assert body["model"] == "tiny"
        spans = json.loads(body["vllm_xargs"]["clearhead"])["spans"]
        assert set(spans) == set(MASS)
        assert all(text in body["messages"][0]["content"] for text in spans.values())


def test_passages_without_statistics_are_dashes(example):
    table = example.shares_table({"a": ("Why?", "Because.")}, {"a": {"means": {"answer": {"entropy": 1.0}}}})
    assert [list(column.cells) for column in table.columns[2:]] == [["–"]] * 5


def test_absent_server_is_one_line(example, tmp_path, monkeypatch):
    with pytest.raises(SystemExit, match="^http://127.0.0.1:9/v1/models: .*CLEARHEAD_OBSERVE"):
        run(example, monkeypatch, "--server", "http://127.0.0.1:9", "--folder", tmp_path)


def test_unobserved_requests_are_named(example, tmp_path):
    message = (
        "requests.jsonl has no line for 1 of 1 requests; expected --folder to be the folder that CLEARHEAD_OBSERVE"
    )
    with pytest.raises(SystemExit, match=message):
        example.observed(tmp_path, {"chatcmpl-1"}, seconds=0)
