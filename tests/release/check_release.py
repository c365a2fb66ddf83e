"""Checks before a release, as `make release-check` runs them.

Builds the sdist and the wheel into dist/, checks their metadata and files, and installs the wheel with each extra in a
new environment of each supported Python on this machine, where it runs every command. Prints a line per check, and
exits with status 1 if one failed.

    python tests/release/check_release.py --extras base view --interpreters python3.11
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from clearhead._utils.extras import EXTRAS
from clearhead._utils.version import __version__
from support.distributions import tracked_files, wheel_problems, wheel_version
from support.paths import ROOT
from support.smoke import smoke_problems, write_inputs
from support.virtual_environments import VirtualEnvironment, installed_torch, pip_error, run_pip

DIST = ROOT / "dist"
BASE, ALL = "base", "all"
CONFLICTING = ("vllm",)  # extras that cannot be installed with the versions of constraints.txt
INSTALLED = (BASE, *(extra for extra in EXTRAS if extra not in CONFLICTING), ALL)
CLASSIFIER = "Programming Language :: Python :: "


class Checks:
    """Results of checks, printed one per line."""

    def __init__(self) -> None:
        self.failed = 0

    def report(self, name: str, problems: Iterable[str]) -> None:
        """Print `ok` and the time, or each problem. Problems are found while they are iterated over."""
        start, count = time.monotonic(), 0
        for problem in problems:
            print(f"FAILED  {name}: {problem}", flush=True)
            count += 1
        self.failed += count > 0
        if not count:
            print(f"ok      {name} ({time.monotonic() - start:.0f} s)", flush=True)


def supported_interpreters() -> tuple[dict[str, str], list[str]]:
    """Return the interpreters on this machine by version, and the supported versions that are missing."""
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    versions = [line.removeprefix(CLASSIFIER) for line in classifiers if line.startswith(CLASSIFIER)]
    usable = {version: f"python{version}" for version in versions if _runs(f"python{version}")}
    return usable, [version for version in versions if version not in usable]


def _runs(interpreter: str) -> bool:
    """Return whether a program starts. Version managers such as pyenv have programs that only print an error."""
    path = shutil.which(interpreter)
    return path is not None and not subprocess.run([path, "-c", "import venv"], capture_output=True).returncode


def build(folder: Path) -> Iterator[str]:
    """Build dist/ and check its metadata; yield problems."""
    shutil.rmtree(DIST, ignore_errors=True)
    tools = VirtualEnvironment(folder / "tools")
    installed = tools.install("build", "twine")
    if installed.returncode:
        yield f"pip cannot install build and twine: {pip_error(installed)}"
        return
    for line in (("-m", "build", "--outdir", str(DIST)), ("-m", "twine", "check", "--strict", "dist/*")):
        result = tools.run(ROOT, "python", *line)
        if result.returncode:
            yield f"python {' '.join(line)} exits with {result.returncode}: {(result.stdout + result.stderr)[-800:]}"
            return


def installation_problems(extra: str, interpreter: str, wheel: Path, inputs: Path) -> Iterator[str]:
    """Install the wheel with an extra in a new environment; yield what does not work there."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        environment = VirtualEnvironment(folder / "venv", interpreter)
        requirement = str(wheel) if extra == BASE else f"{wheel}[{extra}]"
        installed = environment.install(requirement, installed_torch())
        if installed.returncode:
            yield pip_error(installed)
            return
        extras = {BASE: [], ALL: [name for name in INSTALLED if name in EXTRAS]}.get(extra, [extra])
        yield from smoke_problems(environment, folder / "run", inputs, wheel_version(wheel), extras)


def conflict(extra: str, wheel: Path, folder: Path) -> str:
    """Return the reason why an extra is not installed."""
    target = ("--target", str(folder / "none"))
    result = run_pip(sys.executable, "install", "--dry-run", *target, f"{wheel}[{extra}]", installed_torch())
    if result.returncode:
        return f"pip cannot install it with constraints.txt: {pip_error(result)}"
    return "pip could install it, but it replaces torch by its build"


def main() -> int:
    usable, missing = supported_interpreters()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--extras", nargs="+", choices=(*INSTALLED, *CONFLICTING), default=(*INSTALLED, *CONFLICTING))
    parser.add_argument("--interpreters", nargs="+", default=list(usable.values()))
    options = parser.parse_args()
    checks = Checks()
    for version in missing:
        print(f"skipped Python {version}: there is no usable python{version} on this machine")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        checks.report("sdist and wheel build, metadata is valid", build(folder))
        wheels = list(DIST.glob("*.whl"))
        if checks.failed or len(wheels) != 1:
            return 1
        (wheel,) = wheels
        checks.report(f"files, size and licenses of {wheel.name}", wheel_problems(wheel, tracked_files()))
        built = wheel_version(wheel)
        checks.report(
            f"version {built}",
            [] if built == __version__ else [f"the wheel has version {built}; expected {__version__}"],
        )
        inputs = folder / "inputs"
        inputs.mkdir()
        write_inputs(inputs)
        for interpreter in options.interpreters:
            for extra in (name for name in INSTALLED if name in options.extras):
                name = f"every command with {interpreter} and {'no extra' if extra == BASE else f'extra {extra}'}"
                checks.report(name, installation_problems(extra, interpreter, wheel, inputs))
        for extra in (name for name in CONFLICTING if name in options.extras):
            print(f"skipped extra {extra}: {conflict(extra, wheel, folder)}; run `make test-{extra}` instead")
    print(f"{checks.failed} checks failed" if checks.failed else f"dist/ is ready to publish as {__version__}")
    return int(checks.failed > 0)


if __name__ == "__main__":
    sys.exit(main())
