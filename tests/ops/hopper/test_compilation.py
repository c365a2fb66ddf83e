"""Tests of the kernels for Hopper GPUs as NVRTC compiles them, on a machine without a GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import triton

from clearhead.ops.hopper import forward, support, sweep, topk
from support.pretrained import unpacked

pytestmark = pytest.mark.pretrained  # pip downloads NVRTC
PACKAGES = {"cuda-bindings": "13.0.3", "cuda-pathfinder": "1.9.0", "nvidia-cuda-nvrtc": "13.0.88"}
SCRIPT = """
import json, sys
from pathlib import Path
from clearhead.ops.hopper.driver import compile_source
for index, (name, options) in enumerate(json.load(sys.stdin)):
    Path(f"{index}.cubin").write_bytes(compile_source(name, tuple(map(tuple, options))))
"""
NO_SUMS, NO_BINS = {"ENTROPY": 0, "DISTANCE": 0}, {"BINS": 0, "TALL_BINS": 0, "POOL_MAX": 0}
ALL_SUMS = {"ENTROPY": 1, "DISTANCE": 1}
REQUESTS = [
    NO_SUMS | NO_BINS,
    NO_SUMS | NO_BINS | {"ENTROPY": 1},
    NO_SUMS | NO_BINS | {"DISTANCE": 1},
    ALL_SUMS | NO_BINS,
    *(
        ALL_SUMS | {"BINS": bins, "TALL_BINS": tall, "POOL_MAX": maximum}
        for bins, tall, maximum in ((1, 1, 1), (2, 0, 0), (8, 0, 0), (8, 1, 0))
    ),
]
COMMON = {"WARP_GROUPS": sweep.WARP_GROUPS, "STAGES": sweep.STAGES}
SWEEPS = [{"DTYPE": "bf16", "HEAD_DIM": dim, **COMMON, **request} for dim in support.WIDTHS for request in REQUESTS]
SWEEPS.append({"DTYPE": "f16", "HEAD_DIM": 128, **COMMON, **ALL_SUMS, **NO_BINS})
FORWARDS = [
    {"DTYPE": dtype, "HEAD_DIM": dim, "WARP_GROUPS": forward.WARP_GROUPS[dim], "STAGES": forward.STAGES[dim]}
    for dtype in support.DTYPES.values()
    for dim in support.WIDTHS
]
TOPKS = [
    {
        "DTYPE": "bf16",
        "HEAD_DIM": dim,
        "WARP_GROUPS": topk.WARP_GROUPS,
        "STAGES": topk.STAGES[dim],
        "GROUPS": groups,
    }
    for dim in support.WIDTHS
    for groups in (topk.FEW_GROUPS, topk.GROUPS)
]
KERNELS = {"sweep": SWEEPS, "forward": FORWARDS, "topk": TOPKS}
VARIANTS = [(name, options) for name, variants in KERNELS.items() for options in variants]
# the registers of a thread, if the threads of a block have all registers of a multiprocessor
REGISTERS = {3: 168, 4: 128}  # by warp groups, with the one that loads


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Compile every variant in another process, which sees NVRTC."""
    folder = tmp_path_factory.mktemp("cubins")
    paths = [str(unpacked(package, version)) for package, version in PACKAGES.items()]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*paths, *filter(None, sys.path)])}
    libraries = next(Path(paths[-1]).rglob("libnvrtc.so.*")).parent
    environment["LD_LIBRARY_PATH"] = os.pathsep.join([str(libraries), os.environ.get("LD_LIBRARY_PATH", "")])
    options = json.dumps([(name, list(variant.items())) for name, variant in VARIANTS])
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(
        command, input=options, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


def run_cuobjdump(folder: Path, *arguments: str) -> str:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    if not tool.is_file():
        pytest.skip("this build of Triton has no cuobjdump")
    return subprocess.run([str(tool), *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout


def test_every_variant_compiles_to_the_expected_number_of_registers(folder):
    for index, (name, variant) in enumerate(VARIANTS):
        usage = run_cuobjdump(folder, "--dump-resource-usage", f"{index}.cubin")
        assert f"REG:{REGISTERS[variant['WARP_GROUPS'] + 1]} " in usage, f"{name} {variant}: {usage}"


def test_threads_that_compute_do_not_spill_registers_in_the_loop_over_tiles(folder):
    """They may read back two values that are the same for all tiles, as the sweep of column sums does.

    The one thread that loads may spill. It has few registers, and mostly waits.
    """
    for index, (name, variant) in enumerate(VARIANTS):
        lines = run_cuobjdump(folder, "-sass", f"{index}.cubin").splitlines()
        computes = [number for number, line in enumerate(lines) if "HGMMA" in line or "MUFU.EX2" in line]
        assert len(computes) > 8  # the kernel that finds the largest weights has two loops and one exponential
        loop = lines[computes[0] : computes[-1]]
        assert not any(" STL" in line for line in loop), f"{name} {variant}"
        assert sum(" LDL" in line for line in loop) <= 2, f"{name} {variant}"
