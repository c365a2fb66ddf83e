"""Tests of the kernels as compiled for GPUs of every supported architecture, on a machine without them.

`benchmarks/compile_kernels.py` compiles the whole grid.
"""

import json
import os
import subprocess
import sys

import pytest

from support import cross_compiler

pytestmark = pytest.mark.slow
EVERY_KERNEL = [f"90:{kernel}:bfloat16:64:everything" for kernel in cross_compiler.COMPILED_KERNELS]
PAGED = ["paged_scores:bfloat16:128:plain", "paged_scores:float32:256:everything"]
SAMPLE = [
    "forward:bfloat16:128:causal and bias",
    "forward:bfloat16:128:causal",
    "backward_key:bfloat16:128:causal",
    *PAGED,
]
WITH_WGMMA = (90, 100)


@pytest.fixture(scope="module")
def compiled():
    """Compile all cases in one other process, because this one defines kernels for Triton's interpreter."""
    cases = EVERY_KERNEL + [f"{number}:{case}" for number in cross_compiler.SHARED_MEMORY for case in SAMPLE]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, cross_compiler.__file__, *cases]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    results = {result["case"]: result["compilations"] for result in map(json.loads, done.stdout.splitlines())}
    assert list(results) == cases
    return results


def test_every_kernel_compiles(compiled):
    """The interpreter accepts code that the compiler does not, such as a variable of two shapes."""
    assert all(compiled[case] for case in EVERY_KERNEL)


@pytest.mark.parametrize("architecture", cross_compiler.SHARED_MEMORY)
def test_compiled_kernels_fit_into_shared_memory_and_common_ones_do_not_spill(architecture, compiled):
    for case in SAMPLE:
        compilations = compiled[f"{architecture}:{case}"]
        assert compilations
        used = {function: fits for function, fits, _ in compilations}  # the last compilation of each
        assert all(used.values()), f"{case}: {compilations}"
    common = ["forward:bfloat16:128:causal", *PAGED]
    if architecture not in WITH_WGMMA:  # there the fastest tile on an H200 spills 0.4 KB
        common.append("backward_key:bfloat16:128:causal")
    for case in common:
        compilations = compiled[f"{architecture}:{case}"]
        assert all(spilled == 0 for *_, spilled in compilations), f"{case}: {compilations}"
