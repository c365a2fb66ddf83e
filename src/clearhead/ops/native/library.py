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

import torch  # also loads the OpenMP library that the compiled functions use

from clearhead._utils.files import replacing

HEADER_FOLDER = Path(__file__).parent
MACHINES = ("x86_64", "aarch64")
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
    f"-I{HEADER_FOLDER}",
)
# torch's OpenMP library, which is loaded already: a second one would have threads that compete with torch's
OPENMP_OF_TORCH, OPENMP_OF_COMPILER = ("-shared",), ("-shared", "-fopenmp")
SECONDS_TO_COMPILE = 300
SIGNS_OF_ERRORS = (" error: ", "cannot find", "undefined")  # in lines of compilers and linkers
PROCESSOR_LINES = ("model name", "flags", "features", "cpu implementer", "cpu part", "cpu variant")  # of /proc/cpuinfo


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
    if target.is_file() and _is_private(target):
        with suppress(OSError):  # a damaged file is compiled again
            return ctypes.CDLL(str(target))
    with replacing(target) as temporary:
        library = _compile(compiler, source, temporary)
    target.chmod(0o600)
    return library


def find_compiler() -> list[str]:
    """Return the command of the C++ compiler: the variable CXX, or the first one that is installed."""
    if platform.system() != "Linux" or platform.machine() not in MACHINES:  # compilers have other options elsewhere
        machine = f"{platform.system()} on {platform.machine()}"
        raise OSError(f"functions in C++ are compiled for Linux on x86-64 or ARM64, not for {machine}")
    command = os.environ.get("CXX", "").strip()
    if not command:
        command = next(filter(None, map(shutil.which, COMPILERS)), None)
        if command is None:
            raise FileNotFoundError(f"none of {', '.join(COMPILERS)} was found")
        return [command]
    try:
        return shlex.split(command)
    except ValueError as error:
        raise OSError(f"CXX is {command!r}; expected the command of a compiler: {error}") from None


def cache_folder() -> Path | None:
    """Return the user's folder of compiled libraries, or None if it cannot be written or others may write to it.

    A library that another user could replace must not be loaded.
    """
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME", ""))
        if not base.is_absolute():
            base = Path.home() / ".cache"
        folder = base / "clearhead" / "native"
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        usable = _is_private(folder) and os.access(folder, os.W_OK | os.X_OK)
    except (OSError, RuntimeError):  # the folder cannot be created; there is no home folder
        return None
    return folder if usable else None


def _is_private(path: Path) -> bool:
    """Return whether a file or folder belongs to this user, and no other user may write to it."""
    status = path.stat()
    return status.st_uid == os.getuid() and not status.st_mode & 0o022


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
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=SECONDS_TO_COMPILE, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(f"{command[0]} did not end within {error.timeout:.0f} seconds") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [""]
        reason = next((line for line in lines if any(sign in line for sign in SIGNS_OF_ERRORS)), lines[0])
        raise OSError(f"{command[0]} failed: {reason}")


def _fingerprint(compiler: list[str], source: Path) -> str:
    """Return a hash of everything that the machine code depends on. A home folder may be shared by several machines."""
    program = Path(shutil.which(compiler[0]) or compiler[0]).resolve()
    status = program.stat()
    parts = [*compiler, str(program), str(status.st_size), str(status.st_mtime_ns), *FLAGS, _processor()]
    parts += [torch.__version__, torch.__file__]  # whose OpenMP library is used
    parts += [path.read_text(encoding="utf-8") for path in (source, *sorted(HEADER_FOLDER.glob("*.h")))]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _processor() -> str:
    """Return the model of the processor and its instruction sets."""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        first = lines[: lines.index("")] if "" in lines else lines
        return "\n".join(line for line in first if line.partition("\t")[0].strip().lower() in PROCESSOR_LINES)
    return f"{platform.machine()} {platform.processor()}"
