"""Tests of `clearhead doctor`."""

import json
import os
import subprocess
import sys

import pytest
import torch

from clearhead.cli.diagnosis import hopper_kernels
from clearhead.ops.arguments import build_call
from clearhead.ops.gpu import GPU
from clearhead.ops.hopper import support
from clearhead.ops.native import functions
from clearhead.ops.triton import backend
from support.hostile_input import run_cli

IMPORTS = """
import sys
import torch
by_torch = set(sys.modules)  # torch with CUDA imports cuda.bindings
from clearhead.cli.diagnosis import diagnose
print(diagnose().hopper.available, sorted({"triton.language", "cuda.bindings"} & (set(sys.modules) - by_torch)))
"""


@pytest.fixture
def without_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def call_of(dim=64, length=7):
    x = torch.zeros(1, 2, length, dim, dtype=torch.bfloat16)
    return build_call(x, x, x)


def test_hopper_kernels_are_not_available_without_cuda(without_cuda, monkeypatch):
    monkeypatch.setattr(backend, "INSTALLED", True)
    monkeypatch.setattr(backend, "INTERPRETED", False)
    line = "kernels for Hopper GPUs (CUDA C++): not available: device cpu is not cuda"
    assert line in run_cli("doctor").stdout.splitlines()
    document = json.loads(run_cli("doctor", "--json").stdout)
    assert document["hopper"] == {"available": False, "reasons": ["device cpu is not cuda"]}


def test_functions_for_the_cpu_are_shown(monkeypatch):
    assert "functions for the CPU (C++): available" in run_cli("doctor").stdout.splitlines()
    monkeypatch.setattr(functions, "unavailable_reasons", lambda: ["none of g++, c++, clang++ was found"])
    line = "functions for the CPU (C++): not available: none of g++, c++, clang++ was found"
    assert line in run_cli("doctor").stdout.splitlines()
    document = json.loads(run_cli("doctor", "--json").stdout)
    assert document["native"] == {"available": False, "reasons": ["none of g++, c++, clang++ was found"]}


def test_missing_triton_is_the_reason(without_cuda, monkeypatch):
    monkeypatch.setattr(backend, "INSTALLED", False)
    assert "(CUDA C++): not available: triton is not installed\n" in run_cli("doctor").stdout


def test_neither_triton_nor_cuda_bindings_are_imported_without_cuda():
    if torch.cuda.is_available():
        pytest.skip("the machine has CUDA")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    shown = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True, env=environment)
    assert shown.stdout == "False []\n"


def test_hopper_kernels_are_available_on_hopper(monkeypatch):
    monkeypatch.setattr(backend, "unsupported_reasons", lambda call, task: [])
    monkeypatch.setattr(support, "DEVICE_TYPE", "cpu")
    monkeypatch.setattr(support, "gpu_of", lambda device: GPU((9, 0), 232_448))
    monkeypatch.setattr(support, "is_installed", lambda: True)
    assert hopper_kernels(call_of()).available
    monkeypatch.setattr(support, "is_installed", lambda: False)
    assert hopper_kernels(call_of()).reasons == ["cuda.bindings is not installed"]
