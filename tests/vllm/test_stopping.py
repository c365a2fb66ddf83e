"""Tests of servers that are stopped or killed as soon as they have answered: every answered request has its line."""

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from clearhead import Recording
from clearhead.serving import read_requests
from clearhead.serving.journal import take_missing
from support.vllm_server import Server

pytestmark = pytest.mark.vllm

COUNT = 24


def stop(server, how):
    """Send a signal to the server as a terminal or a container does, or kill the process with the model."""
    if how == "worker":
        os.kill(server.worker(), signal.SIGKILL)
    else:
        server.signal(getattr(signal, how))


@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT", "worker"])
def test_answered_requests_are_written(model, tmp_path, how):
    output = tmp_path / "attention"
    server = Server(model, tmp_path / "log.txt", json.dumps({"output": str(output), "record": 1}))
    try:
        server.wait()
        counts = [value for name, value in server.metrics().items() if "clearhead_requests_total" in name]
        assert counts == [0] * 5
        with server.opened("Once upon a time", 1500), ThreadPoolExecutor(COUNT) as pool:
            while server.running() == 0:
                time.sleep(0.1)
            answers = list(pool.map(lambda index: server.complete(f"The number {index}", 5 + index), range(COUNT)))
            stop(server, how)
        server.wait_for_end()  # which waits until the results are written
    finally:
        server.stop()
    lines = list(read_requests(output))
    for answer in answers:
        (line,) = (line for line in lines if line["request"].startswith(answer["id"]))
        assert (line["rows"]["answer"], line["finish_reason"]) == (answer["usage"]["completion_tokens"], "length")
        assert Recording.load(output / "recordings" / line["recording"])
    assert len(lines) == COUNT
    assert take_missing(output) == 1
