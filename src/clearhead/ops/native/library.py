"""Compilation of C++ sources with the machine's compiler. The libraries are kept in the user's cache folder."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

import torch  # noqa: F401  (loads the OpenMP library that the compiled functions use)

from clearhead._utils.files import replacing

HEADERS = Path(__file__).parent
COMPILERS = ("g++", "c++", "clang++")
# the sources state which sums may be reordered; other products and sums may be fused
FLAGS = (
    "-std=c++17",
    "-O3",
    "-march=native",
    "-fPIC",
    "-fopenmp",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    f"-I{HEADERS}",
)
# torch's OpenMP library, which is loaded already: a second one would have threads that compete with torch's
OPENMP_OF_TORCH, OPENMP_OF_COMPILER = ("-shared",), ("-shared", "-fopenmp")
SECONDS_TO_COMPILE = 300


def load_library(source: Path) -> ctypes.CDLL:
    """Load the library of a source file. Compile it first, unless this machine has done so before.

    Raises:
        OSError: there is no compiler, or it failed.
    """
    compiler = find_compiler()
    folder = cache_folder()
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="clearhead-") as temporary:
            return _compile(compiler, source, Path(temporary, "library.so"))
    target = folder / f"{source.stem}-{_fingerprint(compiler, source)}.so"
    if target.is_file():
        with suppress(OSError):  # a damaged file is compiled again
            return ctypes.CDLL(str(target))
    with replacing(target) as temporary:
        return _compile(compiler, source, temporary)


def find_compiler() -> list[str]:
    """Return the command of the C++ compiler: the variable CXX, or the first one that is installed."""
    command = os.environ.get("CXX") or next(filter(None, map(shutil.which, COMPILERS)), None)
    if command is None:
        raise FileNotFoundError(f"none of {', '.join(COMPILERS)} was found")
    return shlex.split(command)


def cache_folder() -> Path | None:
    """Return the user's folder of compiled libraries, or None if it cannot be written or others may write to it.

    A library that another user could replace must not be loaded.
    """
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(base, "clearhead", "native")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
        if status.st_mode & 0o022 or status.st_uid != os.getuid() or not os.access(folder, os.W_OK | os.X_OK):
            return None
    except (AttributeError, OSError, RuntimeError):  # not a POSIX system; no folder; no home
        return None
    return folder


def _compile(compiler: list[str], source: Path, target: Path) -> ctypes.CDLL:
    objects = target.with_suffix(".o")
    _run([*compiler, *FLAGS, "-c", str(source), "-o", str(objects)])
    try:
        for flags in (OPENMP_OF_TORCH, OPENMP_OF_COMPILER):
            _run([*compiler, str(objects), *flags, "-o", str(target)])
            with suppress(OSError):  # torch was built with another OpenMP library than the compiler's
                return ctypes.CDLL(str(target))
        return ctypes.CDLL(str(target))
    finally:
        objects.unlink()


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_TO_COMPILE, check=False)
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(f"{command[0]} did not end within {error.timeout:.0f} seconds") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [""]
        raise OSError(f"{command[0]} failed: {next((line for line in lines if ' error: ' in line), lines[0])}")


def _fingerprint(compiler: list[str], source: Path) -> str:
    """Return a hash of everything that the machine code depends on. A home folder may be shared by several machines."""
    program = Path(shutil.which(compiler[0]) or compiler[0]).resolve()
    status = program.stat()
    parts = [*compiler, str(program), str(status.st_size), str(status.st_mtime_ns), *FLAGS, _processor()]
    parts += [path.read_text(encoding="utf-8") for path in (source, *sorted(HEADERS.glob("*.h")))]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _processor() -> str:
    """Return the model of the processor and its instruction sets."""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        first = lines[: lines.index("")] if "" in lines else lines
        return "\n".join(line for line in first if line.partition("\t")[0] in ("model name", "flags", "Features"))
    return f"{platform.machine()} {platform.processor()}"
