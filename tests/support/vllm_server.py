"""A real `vllm serve` process on the CPU, and requests to it."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.paths import ROOT

MODEL_VARIABLE = "CLEARHEAD_VLLM_MODEL"  # set by the Makefile
SECONDS_TO_START = 600


def environment(**variables: str) -> dict[str, str]:
    """Return environment variables for vLLM on a CPU, with the code of this repository and observation off."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("CLEARHEAD_")}
    paths = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    constant = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": paths}
    return inherited | constant | variables


class Server:
    """Server process with its log. It leads a process group, which contains the engine.

    Args:
        model: folder of the model.
        log: file for standard output and error.
        observe: value of CLEARHEAD_OBSERVE.
        options: more options of `vllm serve`.
    """

    def __init__(self, model: str, log: Path, observe: str, options: Sequence[str] = ()) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url, self.log, self.model = f"http://127.0.0.1:{port}", log, model
        command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", model, "--enforce-eager"]
        command += ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", "2048", *options]
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment(CLEARHEAD_OBSERVE=observe),
                start_new_session=True,
            )

    def wait(self) -> None:
        """Wait until the server answers."""
        deadline = time.monotonic() + SECONDS_TO_START
        while True:
            assert self._process.poll() is None, f"vllm serve has ended:\n{self.log.read_text()[-5000:]}"
            assert time.monotonic() < deadline, f"vllm serve does not answer:\n{self.log.read_text()[-5000:]}"
            try:
                self.get("/health")
                return
            except OSError:
                time.sleep(0.5)

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=60) as response:
            return response.read().decode()

    def complete(self, prompt: list[int] | str, max_tokens: int, clearhead: object = None, **options: Any) -> dict:
        """Return the answer of the server to one request. `clearhead` are the options of the request."""
        body: dict[str, Any] = {"model": self.model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
        body |= {"ignore_eos": True, **options}
        if clearhead is not None:
            body["vllm_xargs"] = {"clearhead": clearhead}
        return self.post("/v1/completions", body)

    def opened(self, prompt: str, max_tokens: int) -> contextlib.closing[http.client.HTTPConnection]:
        """Send a request without waiting for its answer. Return the connection, which the caller closes."""
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"))
        body = {"model": self.model, "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        return contextlib.closing(connection)

    def post(self, path: str, body: dict[str, Any]) -> dict:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=600) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{error.code}: {error.read().decode()[:500]}") from error

    def metrics(self) -> dict[str, float]:
        """Return the metrics of clearhead by name and labels, such as `name{label="value"}`."""
        lines = re.findall(r"^(clearhead_\S+) (\S+)$", self.get("/metrics"), re.MULTILINE)
        return {name: float(value) for name, value in lines}

    def running(self) -> float:
        """Return the number of requests that the engine runs."""
        (number,) = re.findall(r"^vllm:num_requests_running\S* (\S+)$", self.get("/metrics"), re.MULTILINE)
        return float(number)

    def worker(self) -> int:
        """Return the id of the process with the model."""
        import psutil  # which vLLM requires

        children = psutil.Process(self._process.pid).children(recursive=True)
        return next(child.pid for child in children if "VLLM::Worker" in " ".join(child.cmdline()))

    def signal(self, number: int) -> None:
        """Send a signal to the process that started the others."""
        self._process.send_signal(number)

    def wait_for_end(self) -> None:
        """Wait until the server has ended."""
        self._process.wait(SECONDS_TO_START)

    def kill(self) -> None:
        """Kill all processes of the server at once."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """Stop the server as Ctrl-C does, and kill what is left."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
