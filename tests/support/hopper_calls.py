"""Calls and argument structures for tests of the kernels for Hopper GPUs, on a machine without one."""

from __future__ import annotations

import ctypes
import re
from importlib.resources import files
from typing import Any

import torch

from clearhead.ops.arguments import build_call
from clearhead.ops.call import AttentionCall

C_TYPES = {"float": ctypes.c_float, "int": ctypes.c_int}


def call_of(dim: int = 128, dtype: torch.dtype = torch.bfloat16, heads: int = 2, **options: Any) -> AttentionCall:
    """Return a call with 7 queries and keys."""
    query, key = (torch.zeros(1, heads, 7, dim, dtype=dtype) for _ in range(2))
    return build_call(query, key, key, **options)


def fields_of_kernel(name: str) -> list[tuple[str, type]]:
    """Return the fields of `Problem` in the source of a kernel, as ctypes names them."""
    source = (files("clearhead.ops.hopper") / f"{name}.cu").read_text(encoding="utf-8")
    struct = re.search(r"struct Problem \{(.*?)\};", source, re.DOTALL)
    assert struct is not None
    fields: list[tuple[str, type]] = []
    for declaration in re.sub(r"//.*", "", struct[1]).split(";"):
        kind, _, names = declaration.strip().removeprefix("const ").replace("long long", "long").partition(" ")
        for field in filter(None, names.split(",")):
            fields.append((field.strip(), ctypes.c_void_p if kind.endswith("*") else C_TYPES[kind]))
    return fields
