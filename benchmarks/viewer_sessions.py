"""Benchmark of the longest stall of the viewer's server after pages were opened and closed.

`python benchmarks/viewer_sessions.py --loads 30 100`. The server runs as `clearhead view` in a separate process.
Pages are loaded without a WebSocket, as by an interrupted reload. Bokeh discards their sessions 15 to 32 seconds later.
Meanwhile this script sends small requests, one after another, and records the longest response time.
"""

from __future__ import annotations

import argparse
import http.client
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

from measuring import RESULTS, write

QUIET = 36  # seconds: Bokeh's lifetime of an unused session plus its cleanup interval, with a margin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loads", type=int, nargs="+", default=[1, 30, 100])
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    command = [sys.executable, "-m", "clearhead", "view", "--no-browser"]
    rows: list[dict[str, object]] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        link = urlsplit(next(line for line in server.stdout if line.startswith("Open")).split()[1])
        connection = http.client.HTTPConnection(link.netloc)
        cookie = (get(connection, f"{link.path}?{link.query}").getheader("Set-Cookie") or "").partition(";")[0]
        idle = longest(connection, QUIET)
        for loads in arguments.loads:
            start = time.perf_counter()
            for _ in range(loads):
                assert get(connection, "/", Cookie=cookie).status == 200
            loading = (time.perf_counter() - start) / loads
            before = memory(server.pid)
            stall = longest(connection, QUIET)
            rows.append(
                {
                    "page loads": loads,
                    "one load (s)": f"{loading:.2f}",
                    "longest answer (s)": f"{stall:.3f}",
                    "without loads (s)": f"{idle:.3f}",
                    "memory before and after discarding (MB)": f"{before:.0f}, {memory(server.pid):.0f}",
                }
            )
        server.terminate()
    write("viewer-sessions-cpu", "Longest stall of the viewer after pages were left", rows, arguments.output)


def get(connection: http.client.HTTPConnection, path: str, **headers: str) -> http.client.HTTPResponse:
    connection.request("GET", path, headers=headers)
    response = connection.getresponse()
    response.read()
    return response


def longest(connection: http.client.HTTPConnection, seconds: float) -> float:
    """Return the longest response time, in seconds."""
    end, worst = time.perf_counter() + seconds, 0.0
    while (start := time.perf_counter()) < end:
        get(connection, "/enter")
        worst = max(worst, time.perf_counter() - start)
        time.sleep(0.01)
    return worst


def memory(process: int) -> float:
    """Return the resident memory of a process in MB."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1e3


if __name__ == "__main__":
    main()
