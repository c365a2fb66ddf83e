"""Set-up of a virtual environment for `make`: installs clearhead with an extra and the versions of constraints.txt.

On Linux, torch's default build comes with CUDA libraries. On a machine without an NVIDIA GPU, a CPU build is installed
instead if pip finds one, or if the index of CPU builds answers. Otherwise the size of the download is printed.

    python tools/set_up.py .venv test
"""

from __future__ import annotations

import argparse
import http.client
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
CUDA_DOWNLOAD = "2.7 GB"  # torch 2.13.0 with triton and the CUDA libraries that it requires
INDEX_SECONDS = 4
LARGE_MEGABYTES = 20  # larger downloads are printed


def pip_variables() -> dict[str, str]:
    """Return the environment of pip. The constraints are a URI, because pip splits the variable at spaces."""
    return os.environ | {"PIP_CONSTRAINT": CONSTRAINTS.as_uri(), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def pinned_torch() -> str:
    """Return the version of torch in constraints.txt."""
    return re.findall(r"^torch==(\S+)", CONSTRAINTS.read_text(), re.MULTILINE)[0]


def has_torch(python: Path) -> bool:
    """Return whether an environment has a build of the pinned version of torch."""
    code = "import importlib.metadata as metadata; print(metadata.version('torch'))"
    found = subprocess.run([str(python), "-c", code], capture_output=True, text=True)
    return found.stdout.strip().partition("+")[0] == pinned_torch()


def has_nvidia_gpu() -> bool:
    """Return whether an NVIDIA driver is installed, also in the Windows Subsystem for Linux."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/lib/wsl/lib"])
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi", path=path) is not None


def finds_cpu_build(python: Path) -> bool:
    """Return whether pip, as it is configured, finds a CPU build of torch. It prefers that build to the default one.

    An index that does not answer in `INDEX_SECONDS` has none.
    """
    line = [str(python), "-m", "pip", "index", "versions", "torch", "--retries", "0", "--timeout", str(INDEX_SECONDS)]
    variables = pip_variables() | {"PIP_CONSTRAINT": ""}
    try:
        found = subprocess.run(line, capture_output=True, text=True, env=variables, timeout=INDEX_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return f"{pinned_torch()}+cpu" in found.stdout


def index_error(index: str, seconds: float = INDEX_SECONDS) -> str | None:
    """Return why an index does not list torch, or None if it does. Takes at most `seconds`."""
    errors: list[str | None] = [f"no answer in {seconds:g} seconds"]

    def request() -> None:
        try:
            with urllib.request.urlopen(f"{index.rstrip('/')}/torch/", timeout=seconds) as answer:
                answer.read(1)
            errors.append(None)
        except (OSError, ValueError, http.client.HTTPException) as error:
            errors.append(str(getattr(error, "reason", error)))

    # the timeout of urllib limits each step, name resolution excepted; the thread limits all of them
    thread = threading.Thread(target=request, daemon=True)
    thread.start()
    thread.join(seconds)
    return errors[-1]


def install(python: Path, *arguments: str) -> int:
    """Run `pip install`, print its large downloads and its errors, and return its exit code."""
    log = python.parents[1] / "pip.log"
    line = [str(python), "-m", "pip", "install", "--progress-bar", "off", "--log", str(log), *arguments]
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
    warned = False
    with subprocess.Popen(line, cwd=ROOT, env=pip_variables(), **pipe) as process:
        for text in process.stdout or ():
            size = re.search(r"(?:Downloading|Using cached) (\S+) \(([\d.]+) ([MG])B\)", text)
            if size and float(size[2]) * (1000 if size[3] == "G" else 1) >= LARGE_MEGABYTES:
                print(f"  {size[1].rpartition('/')[2]} ({size[2]} {size[3]}B)", flush=True)
            elif text.startswith("Installing collected packages:"):
                print(f"  unpacking {text.count(',') + 1} packages", flush=True)
            elif text.startswith("WARNING: Retrying") and not warned:
                print("  the package index cannot be reached; pip tries again", file=sys.stderr, flush=True)
                warned = True
            elif text.startswith("ERROR:"):
                print(text.rstrip(), file=sys.stderr, flush=True)
    if process.returncode:
        print(f"pip install {' '.join(arguments)} has failed; {log} has its messages", file=sys.stderr)
    return process.returncode


def install_torch(python: Path, torch_index: str, cpu_index: str = CPU_INDEX) -> int:
    """Install torch from the chosen index, or the CPU build on Linux without an NVIDIA GPU. Otherwise pip chooses.

    Args:
        python: the interpreter of the environment.
        torch_index: the index that the user has chosen, or "".
        cpu_index: the index of CPU builds.
    """
    requirement = f"torch=={pinned_torch()}"
    if has_torch(python):
        return 0
    if torch_index:
        return install(python, "--no-deps", "--index-url", torch_index, requirement)
    if platform.system() != "Linux" or has_nvidia_gpu():
        return 0
    with ThreadPoolExecutor() as threads:  # at the same time, because each may take INDEX_SECONDS
        answer = threads.submit(index_error, cpu_index)
        if finds_cpu_build(python):
            return 0
    error = answer.result()
    if error is None:
        print(f"This machine has no NVIDIA GPU: torch's CPU build is installed from {cpu_index}", flush=True)
        if not install(python, "--no-deps", "--retries", "0", "--index-url", cpu_index, requirement):
            return 0
        error = f"pip could not install {requirement} from it"
    print(
        f"This machine has no NVIDIA GPU, and {cpu_index} cannot be used: {error}.\n"
        f"pip downloads torch's default build with CUDA libraries, about {CUDA_DOWNLOAD}, unless its cache has them.\n"
        "To use another index of CPU builds, stop and add TORCH_INDEX=<url> to make.",
        flush=True,
    )
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the virtual environment")
    parser.add_argument("extra", help="extra of pyproject.toml to install")
    parser.add_argument("--torch-index", default=os.environ.get("TORCH_INDEX", ""), help="package index of torch")
    parser.add_argument("--cpu-index", default=CPU_INDEX, help="package index of torch for machines without a GPU")
    options = parser.parse_args()
    print(f"Setting up {options.folder} with the extra {options.extra}. This takes some minutes.", flush=True)
    created = subprocess.run([sys.executable, "-m", "venv", str(options.folder)]).returncode
    python = options.folder.absolute() / "bin" / "python"
    return (
        created
        or install_torch(python, options.torch_index, options.cpu_index)
        or install(python, "--editable", f".[{options.extra}]")
    )


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
