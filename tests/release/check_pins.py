"""Resolve constraints.txt in clean environments, as `make test-pins` runs it.

Runs `pip install --dry-run '.[test]'` with each supported Python of this machine, without variables and configuration
of pip. Prints a line per Python, and exits with status 1 if one fails.

    python tests/release/check_pins.py
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.clean_environment import cannot_run, clean_variables, supported_interpreters
from support.paths import ROOT
from support.virtual_environments import CONSTRAINTS, pip_error


def resolve(interpreter: str, home: Path) -> str:
    """Let pip choose the packages of a new environment. Return its error, or an empty string."""
    folder = home / "my folder" / "venv"
    variables = clean_variables(home) | {"PIP_CONSTRAINT": CONSTRAINTS}
    subprocess.run([interpreter, "-m", "venv", str(folder)], check=True, env=variables)
    line = [str(folder / "bin" / "python"), "-m", "pip", "install", "--dry-run", "--quiet", "--no-cache-dir", ".[test]"]
    result = subprocess.run(line, cwd=ROOT, env=variables, capture_output=True, text=True)
    return pip_error(result) if result.returncode else ""


def resolve_and_report(version: str, interpreter: str) -> bool:
    """Print a line about one Python, and return whether pip found all versions."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as home:
        error = resolve(interpreter, Path(home))
    seconds = time.monotonic() - start
    print(f"FAILED  {interpreter}: {error}" if error else f"ok      {interpreter} ({seconds:.0f} s)", flush=True)
    return not error


def main() -> int:
    usable, missing = supported_interpreters()
    for version in missing:
        print(cannot_run(version))
    with ThreadPoolExecutor() as threads:
        results = list(threads.map(resolve_and_report, usable.keys(), usable.values()))
    return int(not all(results))


if __name__ == "__main__":
    sys.exit(main())
