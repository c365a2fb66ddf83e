"""Configuration of live pages: the layer, the origins of its matrices, the steps to show, and the scripts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib import resources
from typing import Any

from clearhead._utils.modules import inline_modules
from clearhead.explain.live._layer_json import live_layer
from clearhead.explain.render.wording import DEFAULT_DIGITS, origin_text
from clearhead.explain.steps import KEY_HEAD_STEPS, MASK, Operand, Step, Trace, key_head

_STATIC = resources.files("clearhead.explain.live") / "static"
_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")


def live_config(trace: Trace, title: str, digits: int = DEFAULT_DIGITS) -> dict[str, Any] | str:
    """Return the configuration of `mountLive`, or the reason why the page of a calculation cannot be edited."""
    if trace.head_name:
        return "it shows a head of a model, whose input and weights are not on it"
    positions = tuple(range(1, len(trace.all_steps) + 1))
    whole = replace(trace, steps=trace.all_steps, positions=positions)
    layer = live_layer(whole)
    if isinstance(layer, str):
        return layer
    selection = _selection(trace)
    if selection is None:
        return "it shows only a part of the steps"
    return {
        "layer": layer,
        "title": title,
        "digits": digits,
        **selection,
        "origins": dict(_origins(whole)),
        "notes": {_step_id(step): step.note for step in trace.all_steps if step.note},
        "cells": {_step_id(step): trace.cells[step.name, step.head] for step in trace if _has_cells(step, trace)},
    }


def live_modules() -> dict[str, dict[str, str]]:
    """Return the import map of the scripts of live pages."""
    return inline_modules(_STATIC)


def _selection(trace: Trace) -> dict[str, Any] | None:
    """Return the names and heads (from 1) that select the trace's steps; None if no names and heads do."""
    if trace.is_whole:
        return {}
    names = tuple(dict.fromkeys(step.name for step in trace))
    numbered = ((step.name, step.head) for step in trace if step.name not in KEY_HEAD_STEPS)
    heads = tuple(dict.fromkeys(head for _, head in numbered if head is not None))
    key_heads = {key_head(head, trace.heads, trace.kv_heads) for head in heads}
    chosen = {(step.name, step.head) for step in trace if step.name != MASK}
    implied = {
        (step.name, step.head)
        for step in trace.all_steps
        if step.name in names
        and (step.head is None or not heads or step.head in (key_heads if step.name in KEY_HEAD_STEPS else heads))
    }
    if implied != chosen:
        return None
    # the reader can add heads, so all heads are not a selection
    is_part = 0 < len(heads) < trace.heads
    return {"steps": list(names), **({"heads": [head + 1 for head in heads]} if is_part else {})}


def _step_id(step: Step) -> str:
    return step.name if step.head is None else f"{step.name}-{step.head + 1}"


def _has_cells(step: Step, trace: Trace) -> bool:
    return (step.name, step.head) in trace.cells


def _origins(trace: Trace) -> Iterator[tuple[str, str]]:
    """Yield the id of each matrix that is not computed, with the origin of its numbers."""
    for step in trace:
        if step.how in ("input", "given"):
            yield _step_id(step), origin_text(step)
        for operand in step.operands:
            if operand.new and "[" not in operand.symbol:
                yield _operand_id(operand), origin_text(operand)


def _operand_id(operand: Operand) -> str:
    """Return the id of W, b or M: "W_Q-2" for W_Q₂, and "W_Q-1" for W_Q of the only head."""
    if operand.symbol in (MASK, "M", "W_O", "b_O", "W_E"):
        return operand.symbol
    name, head = operand.symbol[:3], operand.symbol[3:].translate(_SUBSCRIPTS)
    return f"{name}-{head or 1}"
