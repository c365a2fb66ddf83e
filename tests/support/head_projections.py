"""Comparison of the matrices of heads with the queries, keys and values that a model computes."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.watching import Head, heads, watch
from clearhead.watching._projections import find_names, join


def assert_heads_project(
    model: nn.Module, inputs: dict[str, Any], *, rotary: bool = False, gated: bool = False
) -> dict[str, int]:
    """Assert that inputs times the matrices of each head are its queries, keys, values and output, in float64.

    Rotary positions change queries and keys, so then only values and outputs are compared. A gate changes the input of
    the output projection. Returns the number of heads of each attention module that ran.
    """
    model = model.double().eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):  # most are 0 at first
            nn.init.normal_(parameter)
    inputs = {name: value.double() if value.is_floating_point() else value for name, value in inputs.items()}
    calls: dict[str, tuple[Tensor, Tensor]] = {}
    modules = heads(model).all_modules()
    with ExitStack() as stack, torch.no_grad(), watch(model, values=True) as seen:
        for name in modules:
            names = find_names(model, name)
            paths = [join(name, child) for child in names.inputs if "weight" not in child] + [names.output]
            for path in paths:
                stack.callback(model.get_submodule(path).register_forward_hook(_keep(calls, path)).remove)
        model(**inputs)
    counts = {}
    for name in (name for name in modules if name in seen):
        weights = seen[name].calls[0].weights
        count, names = weights.shape[1], find_names(model, name)
        each = [heads(model)[name, index] for index in range(count)]
        assert (name, count) not in heads(model)
        true = {"K": weights._call.key, "V": weights.value} | ({} if rotary else {"Q": weights._call.query})
        children = dict(zip("QKV", names.inputs * (1 if len(names.inputs) == 3 else 3), strict=True))
        for letter, heard in true.items() if names.inputs != ("in_proj_weight",) else ():
            if letter == "K" and rotary:
                continue
            x, _ = calls[join(name, children[letter])]
            got = torch.stack([_project(x, head, letter) for head in each], -2)
            heard = heard.repeat_interleave(count // heard.shape[1], 1).transpose(1, 2)
            if letter == "Q":
                got = got * (heard.norm() / got.norm())  # OPT multiplies its queries by the scale
            torch.testing.assert_close(got.reshape(heard.shape), heard, rtol=1e-9, atol=1e-9)
        z = (weights @ weights.value).transpose(1, 2)
        if names.output in calls:
            joined, output = calls[names.output]
            if not gated:
                torch.testing.assert_close(joined.reshape(z.shape), z, rtol=1e-9, atol=1e-9)
            parts = joined.reshape(z.shape)
            total = sum(parts[..., index, :] @ head.W_O for index, head in enumerate(each))
            bias = 0 if each[0].output_bias is None else each[0].output_bias
            torch.testing.assert_close((total + bias).reshape(output.shape), output, rtol=1e-9, atol=1e-9)
        counts[name] = count
    return counts


def _project(x: Tensor, head: Head, letter: str) -> Tensor:
    bias = getattr(head, f"b_{letter}")
    projected = x @ getattr(head, f"W_{letter}")
    return projected if bias is None else projected + bias


def _keep(calls: dict[str, tuple[Tensor, Tensor]], path: str) -> Any:
    def keep(_: nn.Module, args: tuple, output: Tensor) -> None:
        calls.setdefault(path, (args[0], output))

    return keep
