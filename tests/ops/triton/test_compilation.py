"""Tests of the kernels as compiled for GPUs of every supported architecture, on a machine without them.

`benchmarks/compile_kernels.py` compiles the whole grid.
"""

import json
import os
import subprocess
import sys

import pytest

from clearhead.ops.triton.tiles import KERNELS
from support import cross_compiler

pytestmark = pytest.mark.slow
SAMPLE = ["forward:bfloat16:128:causal and bias", "forward:bfloat16:128:causal", "backward_key:bfloat16:128:causal"]
WITH_WGMMA = (90, 100)


def compile_cases(architecture, cases):
    """Compile in another process, because this one defines kernels for Triton's interpreter; return its results."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, cross_compiler.__file__, str(architecture), *cases]
    lines = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()
    compiled = {result["case"]: result["compilations"] for result in map(json.loads, lines)}
    assert list(compiled) == list(cases)
    return compiled


def test_every_kernel_compiles():
    """The interpreter accepts code that the compiler does not, such as a variable of two shapes."""
    compiled = compile_cases(90, [f"{kernel}:bfloat16:64:everything" for kernel in KERNELS])
    assert all(compiled.values())


@pytest.mark.parametrize("architecture", cross_compiler.SHARED_MEMORY)
def test_compiled_kernels_fit_into_shared_memory_and_common_ones_do_not_spill(architecture):
    compiled = compile_cases(architecture, SAMPLE)
    for case, compilations in compiled.items():
        assert compilations
        used = {function: fits for function, fits, _ in compilations}  # the last compilation of each
        assert all(used.values()), f"{case}: {compilations}"
    common = ["forward:bfloat16:128:causal"]
    if architecture not in WITH_WGMMA:  # there the fastest tile on an H200 spills 0.4 KB
        common.append("backward_key:bfloat16:128:causal")
    for case in common:
        assert all(spilled == 0 for *_, spilled in compiled[case]), f"{case}: {compiled[case]}"
