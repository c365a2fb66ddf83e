"""New numbers for an example: the same calculation with another input and other weights."""

from __future__ import annotations

import math
import random
import tomllib
from decimal import Decimal
from typing import Any

import torch
from torch import Tensor

from clearhead.explain._layer_weights import WEIGHT_NAMES, unnested
from clearhead.explain._toml_text import toml_string, toml_value
from clearhead.explain.example import Example
from clearhead.explain.toml_format import parse

# Drawn again, or about the text that the example was taken from. An embedding is replaced by the rows of x.
_REPLACED_KEYS = ("title", "x", "embedding", "seed", "weights", "given", "claims", "exercise")
_ATTEMPTS = 20
_SCORE_LIMIT = 12.0  # largest entry of W_Q and W_K in tenths at the first attempt
_VALUE_LIMIT = 10  # largest entry of W_V and W_O in tenths
_INPUT_LIMIT = 9  # largest entry of x in tenths
_LARGEST_SCORE = 5.0  # before the softmax
_LARGEST_WEIGHT = 0.95
_SMALLEST_SPREAD = 0.15  # mean difference of the largest and the smallest weight of a row


def redraw(example: Example, seed: int) -> Example:
    """Return the example with new numbers, all with one digit after the point and none of them 0.

    The weights of each head are neither nearly uniform nor nearly one-hot, if some draw allows it. Given matrices and
    claims are dropped.
    """
    generator = random.Random(seed)
    best, least, limit = example, math.inf, _SCORE_LIMIT
    for _ in range(_ATTEMPTS):
        candidate = _draw_example(example, generator, max(1, round(limit)))
        excess, shortfall = _range_errors(candidate)
        if excess + shortfall < least:
            best, least = candidate, excess + shortfall
        if not excess and not shortfall:
            break
        limit *= 0.8 if excess else 1.4  # larger scores give weights that are less uniform
    return best


def givens_source(raw: dict[str, Any], title: str, x: object, weights: dict[str, object]) -> str:
    """Return the TOML text of an example without claims. Other keys, such as heads and mask, are taken from `raw`."""
    kept = {key: value for key, value in raw.items() if key not in _REPLACED_KEYS}
    lines = [f"title = {toml_string(title)}"]
    lines += [f"{key} = {toml_value(value)}" for key, value in ({"x": x} | kept).items()]
    lines += ["", "[weights]", *(f"{name} = {toml_value(value)}" for name, value in weights.items())]
    return "\n".join(lines) + "\n"


def _draw_example(example: Example, generator: random.Random, limit: int) -> Example:
    """Draw an example whose W_Q and W_K have entries up to `limit` tenths."""
    raw = tomllib.loads(example.source, parse_float=Decimal)
    signed = bool((example.x < 0).any())
    x = _draw(generator, example.x.shape, _INPUT_LIMIT, signed=signed)
    memory = raw.get("memory")
    if isinstance(memory, list):
        shape = torch.Size((len(memory), len(memory[0])))
        raw["memory"] = _tenths(_draw(generator, shape, _INPUT_LIMIT, signed=signed))
    weights = {}
    for name in WEIGHT_NAMES:
        drawn = _draw(generator, example.weights[name].shape, limit if name in ("query", "key") else _VALUE_LIMIT)
        weights[name] = _tenths(unnested(drawn))
    return parse(givens_source(raw, example.title, _tenths(x), weights))


def _draw(generator: random.Random, shape: torch.Size, limit: int, *, signed: bool = True) -> Tensor:
    """Draw tenths from −limit to limit without 0, or from 1 to limit."""
    choices = [value for value in range(-limit if signed else 1, limit + 1) if value]
    drawn = generator.choices(choices, k=shape.numel())
    return torch.tensor(drawn, dtype=torch.float64).reshape(shape) / 10


def _tenths(values: Tensor) -> list[object]:
    """Return a matrix, or a list of matrices, as decimal numbers with one digit after the point."""
    if values.ndim == 1:
        return [Decimal(f"{value:.1f}") for value in values.tolist()]
    return [_tenths(entry) for entry in values]


def _range_errors(example: Example) -> tuple[float, float]:
    """Return how far the scores and weights are too large, and how far the weights are too uniform."""
    excess = shortfall = 0.0
    for weights in example.trace().named("weights"):
        scores = weights.operands[0].values
        excess += max(0.0, float(scores[scores.isfinite()].abs().max()) - _LARGEST_SCORE)
        rows = weights.values[(weights.values > 0).sum(dim=1) > 1]  # a row with one key has the weight 1
        if len(rows):
            excess += max(0.0, float(rows.max()) - _LARGEST_WEIGHT)
            shortfall += max(0.0, _SMALLEST_SPREAD - float((rows.amax(dim=1) - rows.amin(dim=1)).mean()))
    return excess, shortfall
