"""Virtual environments, and pip with the versions of constraints.txt."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

from support.paths import ROOT


def installed_torch() -> str:
    """Return a requirement for the installed build of torch. Other builds may be gigabytes larger."""
    return f"torch=={importlib.metadata.version('torch')}"


CONSTRAINTS = (ROOT / "constraints.txt").as_uri()  # pip splits its variables at spaces


def run_pip(python: str | Path, *arguments: str, constraint: str = CONSTRAINTS) -> subprocess.CompletedProcess[str]:
    """Run pip with the versions used in the tests."""
    environment = os.environ | {"PIP_CONSTRAINT": constraint}
    line = [str(python), "-m", "pip", *arguments, "--quiet", "--retries", "1", "--timeout", "20"]
    if os.environ.get("TORCH_INDEX"):  # set by the Makefile
        line += ["--extra-index-url", os.environ["TORCH_INDEX"]]
    return subprocess.run(line, capture_output=True, text=True, cwd=ROOT, env=environment)


def pip_error(result: subprocess.CompletedProcess[str]) -> str:
    """Return the first error that pip printed."""
    lines = result.stderr.strip().splitlines()
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines[-1:])[0]


class VirtualEnvironment:
    """Virtual environment whose programs do not import this repository.

    Args:
        folder: its folder, which is created. Packages that it contains already are kept.
        interpreter: the Python of a new environment.
    """

    def __init__(self, folder: Path, interpreter: str = sys.executable) -> None:
        subprocess.run([interpreter, "-m", "venv", str(folder)], check=True)
        self.programs = folder / "bin"
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self.variables = kept | {"COLUMNS": "200"}

    def torch(self) -> str:
        """Return a requirement for the installed build of torch, or the default build if the Python is another one."""
        version = self.run(ROOT, "python", "-c", "import sys; print(sys.version_info[:2])").stdout.strip()
        return installed_torch() if version == str(sys.version_info[:2]) else installed_torch().partition("+")[0]

    def install(self, *requirements: str, constraint: str = CONSTRAINTS) -> subprocess.CompletedProcess[str]:
        """Install packages, by default with the versions of constraints.txt."""
        return run_pip(self.programs / "python", "install", *requirements, constraint=constraint)

    def run(self, folder: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment in a folder."""
        line = [str(self.programs / program), *arguments]
        return subprocess.run(line, capture_output=True, text=True, cwd=folder, env=self.variables)
