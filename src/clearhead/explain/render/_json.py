"""Worked examples as JSON, from which the calculation can be rebuilt."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from clearhead._utils.text import json_text
from clearhead.explain.render._arithmetic import arithmetic_lines
from clearhead.explain.render._layout import new_matrices
from clearhead.explain.render.wording import DEFAULT_DIGITS, origin_text
from clearhead.explain.steps import Operand, Step, Trace

MAX_NUMBERS = 2_000_000  # of one document, about 40 MB
_WEIGHTS = {"Q": "query", "K": "key", "V": "value", "O": "output"}


def as_json(trace: Trace, title: str, digits: int | None = None) -> str:
    """Return JSON with every step, and with all that the calculation is computed from, unless steps were left out.

    −∞ is the string "-inf".
    """
    count = sum(matrix.values.numel() for step in trace for matrix in new_matrices(step))
    if count > MAX_NUMBERS:
        raise ValueError(
            f"the calculation has {count:,} numbers; expected at most {MAX_NUMBERS:,} in JSON: choose steps or heads"
            " (--step, --head)"
        )
    document = {
        "title": title,
        "counting": trace.counting,
        "tokens": trace.tokens,
        "memory_tokens": trace.memory_tokens,
        "heads": trace.heads,
        "kv_heads": trace.kv_heads,
        **(_ingredients(trace, digits) if trace.is_whole else {}),
        "steps": [_step(position, step, trace, digits) for position, step in trace.numbered()],
    }
    return json_text(document) + "\n"


def _ingredients(trace: Trace, digits: int | None) -> dict[str, Any]:
    """Return everything that the output is computed from: input, weights, biases, mask, and the layer's options."""
    weights: dict[str, Any] = {}
    biases: dict[str, Any] = {}
    parts: dict[str, Any] = {"x": None, "memory": None, "mask": None, "bias": None, "scale": None, "sinks": None}
    for step in trace.all_steps:
        if step.name in ("input", "memory"):
            parts["x" if step.name == "input" else "memory"] = _cells(step.values, digits)
        if step.factor is not None:
            parts["scale"] = step.factor
        for operand in step.operands:
            kind, _, letter = operand.symbol.partition("_")
            if operand.symbol in ("M", "B"):
                _append(parts, "mask" if operand.symbol == "M" else "bias", _named(operand, digits), step.head)
            elif operand.symbol == "sink":
                parts["sinks"] = [*(parts["sinks"] or ()), float(operand.values[0, 0])]
            elif operand.new and kind in ("W", "b") and letter[:1] in _WEIGHTS:
                _append(weights if kind == "W" else biases, _WEIGHTS[letter[0]], _named(operand, digits), step.head)
    if all(step.name != "scaled" for step in trace.all_steps):
        parts["scale"] = 1.0
    split = "slice" if any(step.name == "slice" for step in trace.all_steps) else "project"
    return {"split": split, **parts, **_options(trace, digits), "weights": weights, "biases": biases}


def _options(trace: Trace, digits: int | None) -> dict[str, Any]:
    """Return the softcap, the norms and the rotation. Rotated columns are paired as `layout` says."""
    options = trace.options
    norms = {
        name: {"weight": _row(norm.weight.tolist(), digits), "eps": norm.eps}
        for name, norm in (("query", options.query_norm), ("key", options.key_norm))
        if norm is not None
    }
    rope = options.rope
    if rope is None:
        return {"softcap": options.softcap, "norms": norms, "rope": None}
    dims = rope.rotary_dims(trace.named("query")[0].shape[1])
    rotation = {
        "layout": rope.layout,
        "base": rope.base,
        "dims": dims,
        "frequencies": rope.frequencies(dims).tolist(),  # radians per position, counted from 0
        "factor": 1.0 if rope.scaling is None else rope.scaling.attention_factor,
    }
    return {"softcap": options.softcap, "norms": norms, "rope": rotation}


def _append(table: dict[str, Any], name: str, entry: dict[str, Any], head: int | None) -> None:
    """Add a matrix of one head to a list, or a matrix of all heads."""
    if head is None:
        table[name] = entry
    else:
        table[name] = [*(table.get(name) or ()), {"head": head + 1, **entry}]


def _named(operand: Operand, digits: int | None) -> dict[str, Any]:
    return {"symbol": operand.symbol, "origin": origin_text(operand), "values": _cells(operand.values, digits)}


def _step(position: int, step: Step, trace: Trace, digits: int | None) -> dict[str, Any]:
    arithmetic = arithmetic_lines(step, trace, DEFAULT_DIGITS if digits is None else digits)
    return {
        "step": position,
        "name": step.name,
        "head": None if step.head is None else trace.head_name or step.head + 1,
        "formula": step.formula,
        "origin": origin_text(step),
        "note": step.note,
        "operands": [operand.symbol for operand in step.operands],
        "arithmetic": arithmetic,
        "shapes": step.shapes,
        "shape": list(step.shape),
        "multiply_adds": step.multiply_adds,
        "values": _cells(step.values, digits),
    }


def _cells(values: Tensor, digits: int | None) -> list[list[float | str]]:
    return [_row(row, digits) for row in values.tolist()]


def _row(row: list[float], digits: int | None) -> list[float | str]:
    return [_number(cell, digits) for cell in row]


def _number(cell: float, digits: int | None) -> float | str:
    if math.isinf(cell):
        return "inf" if cell > 0 else "-inf"
    return cell if digits is None else round(cell, digits)
