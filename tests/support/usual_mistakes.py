"""Usual mistakes of people who compute attention by hand, in NumPy, for tests of the causes that `check` names.

The calculation shares no code with `clearhead`. Names are those of `Cause`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from itertools import permutations

import numpy as np

from support.simulated_authors import STATED, Layer, Matrices, StepKey, softmax

Compute = Callable[[Layer, Matrices, int], np.ndarray]


@dataclass(frozen=True)
class MistakenLayer(Layer):
    """A layer whose author computes some matrices by a wrong formula."""

    mistakes: dict[StepKey, Compute] = field(default_factory=dict)

    def compute(self, where: StepKey, working: Matrices) -> np.ndarray:
        """Compute one matrix, by the wrong formula if there is one for it."""
        if where not in self.mistakes:
            return super().compute(where, working)
        with np.errstate(all="ignore"):
            return self.mistakes[where](self, working, where[1] or 0)

    def until(self, where: StepKey, given: Matrices) -> np.ndarray:
        """Return one matrix, computed from given matrices where there are some. NaN is computed."""
        working: Matrices = {}
        for key in self.order():
            used = given.get(key) if key != where else None
            if used is None or np.isnan(used).any():
                value = self.compute(key, working)
                used = value if used is None else np.where(np.isnan(used), value, used)
            working[key] = used
            if key == where:
                return used
        raise KeyError(where)


def mistaken(layer: Layer, mistakes: dict[StepKey, Compute]) -> MistakenLayer:
    return MistakenLayer(**{part.name: getattr(layer, part.name) for part in fields(Layer)}, mistakes=mistakes)


def _scores(layer: Layer, w: Matrices, head: int) -> np.ndarray:
    return w["masked", head] if layer.masked else w["scaled", head]


def _visible(layer: Layer, w: Matrices, head: int) -> np.ndarray:
    scores = _scores(layer, w, head)
    return np.where(np.isinf(scores), 0.0, scores)


def _key_dim(w: Matrices, head: int) -> int:
    return w["query", head].shape[-1]


def _input(layer: Layer, w: Matrices, head: int) -> np.ndarray:
    return w["slice", head] if layer.split == "slice" else w["input", None]


def _normalized(values: np.ndarray) -> np.ndarray:
    return values / values.sum(axis=-1, keepdims=True)


def _additive(allowed: np.ndarray) -> np.ndarray:
    return np.where(allowed, 0.0, -np.inf)


def _outputs(layer: Layer, w: Matrices) -> list[np.ndarray]:
    return [w["head_output", head] for head in range(layer.heads)]


def _head_products(layer: Layer, w: Matrices) -> list[np.ndarray]:
    parts = np.split(w["output_weight", None], layer.heads)
    return [output @ part for output, part in zip(_outputs(layer, w), parts, strict=True)]


def _shifted_mask(layer: Layer, by: int) -> np.ndarray:
    allowed, count = layer.mask == 0, len(layer.mask)
    shifted = np.full_like(allowed, by > 0)
    if by > 0:
        shifted[:, 1:] = allowed[:, : count - 1]
    else:
        shifted[:, : count - 1] = allowed[:, 1:]
    return _additive(shifted)


def _with_mask(make: Callable[[Layer], np.ndarray]) -> dict[str, Compute]:
    """Return the mistake for the mask, the masked scores and the weights."""
    return {
        "mask": lambda layer, w, h: make(layer),
        "masked": lambda layer, w, h: w["scaled", h] + make(layer),
        "weights": lambda layer, w, h: softmax(w["scaled", h] + make(layer)),
    }


def _scaled(by: Callable[[Layer, Matrices, int], float]) -> dict[str, Compute]:
    return {
        "scaled": lambda layer, w, h: w["scores", h] / by(layer, w, h),
        "masked": lambda layer, w, h: w["scores", h] / by(layer, w, h) + w["mask", None],
        "weights": lambda layer, w, h: softmax(w["scores", h] / by(layer, w, h) + w["mask", None]),
    }


def _across_heads(layer: Layer, w: Matrices, h: int) -> np.ndarray:
    return softmax(np.stack([_scores(layer, w, head) for head in range(layer.heads)], axis=-1))[..., h]


def _along_heads(layer: Layer, w: Matrices, h: int) -> np.ndarray:
    joint = softmax(np.concatenate([_scores(layer, w, head) for head in range(layer.heads)], axis=1))
    return np.split(joint, layer.heads, axis=1)[h]


def _over_everything(layer: Layer, w: Matrices, h: int) -> np.ndarray:
    scores = np.stack([_scores(layer, w, head) for head in range(layer.heads)])
    return softmax(scores.reshape(-1)).reshape(scores.shape)[h]


def formula_mistakes(layer: Layer) -> Iterator[tuple[str, dict[str, Compute]]]:
    """Yield the name of each mistake that is possible in a layer, and its formula for each step where it can occur.

    Several entries may have the same name.
    """
    d_model, count = layer.stated["input", None].shape[1], len(layer.mask)
    yield "not divided by √d_k", _scaled(lambda layer, w, h: 1.0)
    yield "divided by d_k", _scaled(lambda layer, w, h: _key_dim(w, h))
    yield "divided by √d_model", _scaled(lambda layer, w, h: np.sqrt(d_model))
    yield "divided by √n", _scaled(lambda layer, w, h: np.sqrt(count))
    yield "multiplied by √d_k", _scaled(lambda layer, w, h: 1 / np.sqrt(_key_dim(w, h)))
    yield (
        "scaled twice",
        {
            **_scaled(lambda layer, w, h: _key_dim(w, h)),
            "masked": lambda layer, w, h: w["scaled", h] / np.sqrt(_key_dim(w, h)) + w["mask", None],
            "weights": lambda layer, w, h: softmax(_scores(layer, w, h) / np.sqrt(_key_dim(w, h))),
        },
    )
    for digits in (1, 2):
        yield "√d_k rounded too early", _scaled(lambda layer, w, h, k=digits: round(np.sqrt(_key_dim(w, h)), k))
    yield "softmax over columns", {"weights": lambda layer, w, h: softmax(_scores(layer, w, h).T).T}
    yield (
        "softmax over the whole matrix",
        {"weights": lambda layer, w, h: softmax(_scores(layer, w, h).reshape(-1)).reshape(count, count)},
    )
    yield "softmax without exp", {"weights": lambda layer, w, h: _normalized(_visible(layer, w, h))}
    yield "softmax with base 2", {"weights": lambda layer, w, h: _normalized(np.exp2(_scores(layer, w, h)))}
    yield "softmax not normalized", {"weights": lambda layer, w, h: np.exp(_scores(layer, w, h))}
    yield (
        "softmax forgotten",
        {
            "weights": _visible,
            "head_output": lambda layer, w, h: _visible(layer, w, h) @ w["value", h],
        },
    )
    if layer.heads > 1:
        for compute in (_across_heads, _along_heads, _over_everything):
            yield "softmax over all heads", {"weights": compute}
    yield from _mask_mistakes(layer)
    yield from _product_mistakes(layer)
    yield from _head_mistakes(layer)
    yield from _printing_mistakes(layer)


def _mask_mistakes(layer: Layer) -> Iterator[tuple[str, dict[str, Compute]]]:
    if not layer.masked:
        yield "mask applied without reason", _with_mask(lambda layer: _additive(np.tri(len(layer.mask)) == 1))
        return
    yield "mask forgotten", _with_mask(lambda layer: np.zeros_like(layer.mask))
    yield "mask transposed", _with_mask(lambda layer: layer.mask.T)
    yield "mask inverted", _with_mask(lambda layer: _additive(layer.mask != 0))
    is_causal = np.array_equal(layer.mask == 0, np.tri(len(layer.mask)) == 1)
    left, right = (
        ("own token hidden", "next token visible") if is_causal else ("mask shifted left", "mask shifted right")
    )
    yield f"mask off by one: {left}", _with_mask(lambda layer: _shifted_mask(layer, -1))
    yield f"mask off by one: {right}", _with_mask(lambda layer: _shifted_mask(layer, 1))
    yield (
        "masked with 0 instead of −∞",
        {
            "masked": lambda layer, w, h: np.where(layer.mask == 0, w["scaled", h], 0.0),
            "weights": lambda layer, w, h: softmax(np.where(layer.mask == 0, w["scaled", h], 0.0)),
        },
    )
    yield "masked after the softmax", {"weights": lambda layer, w, h: softmax(w["scaled", h]) * (layer.mask == 0)}


def _product_mistakes(layer: Layer) -> Iterator[tuple[str, dict[str, Compute]]]:
    def projected(other: str) -> Compute:
        return lambda layer, w, h: _input(layer, w, h) @ w[f"{other}_weight", h]

    for name in ("query", "key", "value"):
        letter = name[0].upper()
        for other in {"query", "key", "value"} - {name}:
            yield f"W_{other[0].upper()} used for {letter}", {name: projected(other)}
        yield f"X W_{letter}ᵀ", {name: lambda layer, w, h, n=name: _input(layer, w, h) @ w[f"{n}_weight", h].T}
        yield f"W_{letter} forgotten", {name: lambda layer, w, h: _input(layer, w, h)}
        for other in range(layer.heads):
            yield (
                f"W_{letter} of head {other + 1}",
                {name: lambda layer, w, h, n=name, o=other: _input(layer, w, h) @ w[f"{n}_weight", o]},
            )
    yield "W_Q and W_K exchanged", {"query": projected("key"), "key": projected("query")}
    yield "scores Q Qᵀ", {"scores": lambda layer, w, h: w["query", h] @ w["query", h].T}
    yield "scores K Kᵀ", {"scores": lambda layer, w, h: w["key", h] @ w["key", h].T}
    yield "scores Q Vᵀ", {"scores": lambda layer, w, h: w["query", h] @ w["value", h].T}
    yield "scores Q K", {"scores": lambda layer, w, h: w["query", h] @ w["key", h]}
    yield "scores Qᵀ K", {"scores": lambda layer, w, h: w["query", h].T @ w["key", h]}
    yield (
        "scores already divided by √d_k",
        {"scores": lambda layer, w, h: w["query", h] @ w["key", h].T / np.sqrt(_key_dim(w, h))},
    )
    yield "Aᵀ V", {"head_output": lambda layer, w, h: w["weights", h].T @ w["value", h]}
    yield "A Vᵀ", {"head_output": lambda layer, w, h: w["weights", h] @ w["value", h].T}
    yield "A K", {"head_output": lambda layer, w, h: w["weights", h] @ w["key", h]}
    yield "A Q", {"head_output": lambda layer, w, h: w["weights", h] @ w["query", h]}
    yield "A X", {"head_output": lambda layer, w, h: w["weights", h] @ _input(layer, w, h)}
    for other in range(layer.heads):
        pairs: dict[str, Compute] = {
            f"keys of head {other + 1}": lambda layer, w, h, o=other: w["query", h] @ w["key", o].T,
            f"queries of head {other + 1}": lambda layer, w, h, o=other: w["query", o] @ w["key", h].T,
        }
        yield from ((name, {"scores": compute}) for name, compute in pairs.items())
        pairs = {
            f"A V with V of head {other + 1}": lambda layer, w, h, o=other: w["weights", h] @ w["value", o],
            f"A V with A of head {other + 1}": lambda layer, w, h, o=other: w["weights", o] @ w["value", h],
        }
        yield from ((name, {"head_output": compute}) for name, compute in pairs.items())
        if layer.split == "slice":
            yield (
                f"columns of head {other + 1}",
                {"slice": lambda layer, w, h, o=other: Layer.compute(layer, ("slice", o), w)},
            )
    if layer.split == "slice":
        yield "slices interleaved", {"slice": lambda layer, w, h: w["input", None][:, h :: layer.heads]}
    for order in _exchanges(len(layer.mask)):
        yield "rows of V exchanged", {"head_output": lambda layer, w, h, o=order: w["weights", h] @ w["value", h][o]}


def _head_mistakes(layer: Layer) -> Iterator[tuple[str, dict[str, Compute]]]:
    if layer.heads > 1:
        for order in permutations(range(layer.heads)):
            yield (
                "heads in another order",
                {"concat": lambda layer, w, h, o=order: np.concatenate([_outputs(layer, w)[i] for i in o], axis=1)},
            )
        joined: dict[str, Compute] = {
            "heads interleaved": lambda layer, w, h: np.stack(_outputs(layer, w), -1).reshape(len(layer.mask), -1),
            "heads stacked by rows": lambda layer, w, h: np.concatenate(_outputs(layer, w)),
            "heads added": lambda layer, w, h: sum(_outputs(layer, w)),  # pyright: ignore[reportReturnType]
            "heads averaged": lambda layer, w, h: np.mean(_outputs(layer, w), axis=0),
        }
        yield from ((name, {"concat": compute}) for name, compute in joined.items())
        for join in (lambda parts: np.concatenate(parts, 1), np.concatenate, lambda parts: np.mean(parts, 0)):
            yield (
                "W_O applied before concatenation",
                {"output": lambda layer, w, h, join=join: join(_head_products(layer, w))},
            )
    yield "W_O forgotten", {"output": lambda layer, w, h: w["concat", None]}
    yield "W_O transposed", {"output": lambda layer, w, h: w["concat", None] @ w["output_weight", None].T}


def _printing_mistakes(layer: Layer) -> Iterator[tuple[str, dict[str, Compute]]]:
    """Yield rearrangements of each matrix."""
    for step in dict.fromkeys(name for name, _ in layer.order()):
        shared = (step, None) in layer.order()

        def correct(layer: Layer, w: Matrices, h: int, step: str = step, shared: bool = shared) -> np.ndarray:
            return Layer.compute(layer, (step, None if shared else h), w)

        rows, columns = layer.right()[step, None if shared else 0].shape
        yield "transposed", {step: lambda layer, w, h, c=correct: c(layer, w, h).T}
        yield "rows in reverse order", {step: lambda layer, w, h, c=correct: c(layer, w, h)[::-1]}
        yield "columns in reverse order", {step: lambda layer, w, h, c=correct: c(layer, w, h)[:, ::-1]}
        for other in range(0 if shared or step == "slice" else layer.heads):
            yield f"matrix of head {other + 1}", {step: lambda layer, w, h, c=correct, o=other: c(layer, w, o)}
        if step in STATED[1:4]:
            for name in STATED[1:4]:
                yield f"W_{name[0].upper()} printed", {step: lambda layer, w, h, n=name: layer.stated[n, h]}
        for order in _exchanges(rows):
            yield "rows exchanged", {step: lambda layer, w, h, c=correct, o=order: c(layer, w, h)[o]}
        for order in _exchanges(columns):
            yield "columns exchanged", {step: lambda layer, w, h, c=correct, o=order: c(layer, w, h)[:, o]}


def _exchanges(count: int) -> Iterator[list[int]]:
    for first in range(count):
        for second in range(first):
            order = list(range(count))
            order[first], order[second] = second, first
            yield order
