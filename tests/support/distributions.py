"""Checks of a built wheel: its files, its size, and the licenses of its data."""

from __future__ import annotations

import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from support.paths import ROOT

MAX_WHEEL_MB = 25
TEST_NAMES = {"tests", "test", "testing", "testdata", "fixtures", "conftest.py", "__pycache__"}
LICENSE_FILES = ("LICENSE", "NOTICE")
# files written for clearhead, under its license; everything else is data, whose license NOTICE names
CODE_SUFFIXES = {".py", ".cpp", ".cu", ".cuh", ".js", ".ts", ".css", ".html", ".md", ".toml", ".typed"}


def wheel_version(wheel: Path) -> str:
    """Return the version in the name of a wheel."""
    return wheel.name.split("-")[1]


def tracked_files() -> set[str]:
    """Return the files of the package that git tracks, named as in a wheel."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "src/clearhead"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return {name.removeprefix("src/") for name in listed.stdout.split("\0") if name}


def wheel_problems(wheel: Path, expected: set[str]) -> Iterator[str]:
    """Yield what is wrong with a wheel that should contain the files `expected`."""
    megabytes = wheel.stat().st_size / 1e6
    if megabytes >= MAX_WHEEL_MB:
        yield f"{wheel.name} has {megabytes:.1f} MB; expected less than {MAX_WHEEL_MB} MB"
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        info = f"clearhead-{wheel_version(wheel)}.dist-info"
        notices = [f"{info}/licenses/{name}" for name in LICENSE_FILES]
        yield from (f"{name} is missing" for name in notices if name not in names)
        notice = archive.read(notices[-1]).decode() if notices[-1] in names else ""
    package = {name for name in names if not name.startswith(f"{info}/")}
    yield from (f"{name} is test data" for name in sorted(names) if _is_test_data(PurePosixPath(name)))
    yield from (f"{name} is not a file of src/clearhead in git" for name in sorted(package - expected))
    yield from (f"{name} is missing" for name in sorted(expected - package))
    for name in sorted(package):
        path = PurePosixPath(name)
        if path.suffix not in CODE_SUFFIXES and not any(f"`{folder}/`" in notice for folder in path.parents):
            yield f"{name} is data, but NOTICE does not name its license"


def _is_test_data(path: PurePosixPath) -> bool:
    return any(part in TEST_NAMES or part.startswith("test_") for part in path.parts)
