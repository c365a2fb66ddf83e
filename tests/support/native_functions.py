"""The functions in C++, compiled for several instruction sets."""

from __future__ import annotations

import ctypes
import platform
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from unittest.mock import patch

from clearhead.ops.native import functions, library

# vectors of 16, 8 or 4 numbers, with and without fused products and sums
OPTIONS = {"native": ["-march=native"], "AVX2": ["-march=x86-64", "-mavx2", "-mfma"], "SSE2": ["-march=x86-64"]}


def available_options() -> list[str]:
    """Return the instruction sets that this processor runs."""
    if platform.machine() != "x86_64":
        return ["native"]
    words = Path("/proc/cpuinfo").read_text().split()
    return [name for name in OPTIONS if name != "AVX2" or {"avx2", "fma"} <= set(words)]


@cache
def compiled_for(name: str) -> ctypes.CDLL:
    """Return the functions for an instruction set, in a new cache folder."""
    flags = (*(flag for flag in library.FLAGS if "-march" not in flag), *OPTIONS[name])
    with patch.object(library, "FLAGS", flags), patch.dict("os.environ", XDG_CACHE_HOME=mkdtemp(prefix="clearhead-")):
        return functions.declared(library.load_library(functions.SOURCE))
