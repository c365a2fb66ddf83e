"""Tests of the environment variables that `make test-cpus` varies, here and in child processes."""

import os
import subprocess
import sys

import torch

from support import environment
from support.paths import ROOT


def test_child_processes_use_the_same_number_of_threads():
    code = "import torch; print(torch.get_num_threads())"
    started = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert torch.get_num_threads() == int(started.stdout) == int(os.environ["OMP_NUM_THREADS"])


def test_each_cpu_capability_has_a_separate_inductor_cache():
    environments = ({}, {"ATEN_CPU_CAPABILITY": "default"}, {"ATEN_CPU_CAPABILITY": "avx2"})
    assert len({environment.defaults(variables)["TORCHINDUCTOR_CACHE_DIR"] for variables in environments}) == 3
    assert environment.defaults(os.environ).keys() <= os.environ.keys()


def test_variables_set_by_the_user_take_precedence():
    code = "import conftest, os; print(os.environ['TORCHINDUCTOR_CACHE_DIR'], os.environ['OMP_NUM_THREADS'])"
    variables = os.environ | {"TORCHINDUCTOR_CACHE_DIR": "/elsewhere", "OMP_NUM_THREADS": "3"}
    started = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "tests", env=variables, capture_output=True, text=True
    )
    assert started.stdout.split() == ["/elsewhere", "3"], started.stderr
