"""Checks before a release, as `make release-check` runs them.

Runs `make demo` and the core tests with each supported Python on this machine as a new user does: in a new clone in a
folder with a space, without variables and configuration of pip. Builds the sdist and the wheel into dist/, checks their
metadata and files, and installs the wheel with each extra in a new environment of each Python, where it runs every
command. Prints a line per check, and exits with status 1 if one failed.

    python tests/release/check_release.py --extras base view --interpreters python3.11
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from clearhead._utils.extras import EXTRAS
from clearhead._utils.version import __version__
from support.clean_environment import cannot_run, clean_variables, supported_interpreters
from support.distributions import tracked_files, wheel_problems, wheel_version
from support.paths import ROOT
from support.smoke import smoke_problems, write_inputs
from support.virtual_environments import CONSTRAINTS, VirtualEnvironment, installed_torch, pip_error, run_pip

DIST = ROOT / "dist"
BASE, ALL = "base", "all"
CONFLICTING = ("vllm",)  # extras that cannot be installed with the versions of constraints.txt
INSTALLED = (BASE, *(extra for extra in EXTRAS if extra not in CONFLICTING), ALL)


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


def new_user_problems(interpreter: str, home: Path, wheels: Path) -> Iterator[str]:
    """Run the README's commands in a new clone; print the last lines and sizes; yield problems.

    Args:
        interpreter: the Python of the environment.
        home: the home folder.
        wheels: folder of wheels that all environments share, which this one adds its own to.
    """
    variables = clean_variables(home) | {"PIP_FIND_LINKS": str(wheels)}
    with tempfile.TemporaryDirectory(prefix="my folder ", dir=home) as folder:
        clone = Path(folder) / "clearhead"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        tools = Path(folder) / "tools"
        subprocess.run([interpreter, "-m", "venv", str(tools)], check=True, env=variables)
        download = [str(tools / "bin" / "pip"), "download", "--quiet", "--dest", str(wheels), ".[test]"]
        result = subprocess.run(
            download, cwd=clone, env=variables | {"PIP_CONSTRAINT": CONSTRAINTS}, capture_output=True, text=True
        )
        if result.returncode:
            yield pip_error(result)
            return
        for target in ("demo", "test-core"):
            line = ["make", "--silent", target, f"PYTHON={interpreter}"]
            result = subprocess.run(
                line, cwd=clone, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True
            )
            if result.returncode:
                yield f"make {target} exits with {result.returncode}: {(result.stdout + result.stderr)[-2000:]}"
                return
            print(result.stdout.strip().splitlines()[-1], flush=True)
        print(f"        {gigabytes(clone / '.venv')} in .venv, {gigabytes(wheels)} of wheels so far", flush=True)


def gigabytes(folder: Path) -> str:
    """Return the size of a folder."""
    size = sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return f"{size / 1e9:.1f} GB"


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
        installed = environment.install(requirement, environment.torch())
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
        print(cannot_run(version))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        home, wheels = folder / "home", folder / "wheels"
        home.mkdir()
        wheels.mkdir()
        for interpreter in options.interpreters:
            checks.report(
                f"make demo and make test-core with {interpreter}", new_user_problems(interpreter, home, wheels)
            )
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
