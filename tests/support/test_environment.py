"""The settings that `make test-cpus` varies reach the tests and the processes that they start."""

import os
import subprocess
import sys

import torch

from support import environment
from support.paths import ROOT


def test_threads_are_the_same_here_and_in_processes_started_here():
    code = "import torch; print(torch.get_num_threads())"
    started = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert torch.get_num_threads() == int(started.stdout) == int(os.environ["OMP_NUM_THREADS"])


def test_each_cpu_capability_has_its_own_compiled_code():
    environments = ({}, {"ATEN_CPU_CAPABILITY": "default"}, {"ATEN_CPU_CAPABILITY": "avx2"})
    assert len({environment.defaults(variables)["TORCHINDUCTOR_CACHE_DIR"] for variables in environments}) == 3
    assert environment.defaults(os.environ).keys() <= os.environ.keys()


def test_what_the_user_has_set_is_kept():
    code = "import conftest, os; print(os.environ['TORCHINDUCTOR_CACHE_DIR'], os.environ['OMP_NUM_THREADS'])"
    variables = os.environ | {"TORCHINDUCTOR_CACHE_DIR": "/elsewhere", "OMP_NUM_THREADS": "3"}
    started = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "tests", env=variables, capture_output=True, text=True
    )
    assert started.stdout.split() == ["/elsewhere", "3"], started.stderr
