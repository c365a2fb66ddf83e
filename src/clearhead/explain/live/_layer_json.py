"""The layer of a calculation as JSON, which the live page computes every matrix from.

static/layer.d.ts has the types.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from clearhead.explain.steps import Operand, Step, Trace

# equal to those of static/layer_limits.js
MAX_TOKENS = 12
MAX_COLUMNS = 16  # of every matrix
MAX_HEADS = 8
MAX_VALUE = 1e6
MAX_WORD_LETTERS = 40
MAX_VOCABULARY = 40  # rows of an embedding table
_PROJECTIONS = ("query", "key", "value")
_FIT_DIGITS = 2  # of a weight matrix that fits a given projection


def live_layer(trace: Trace) -> dict[str, Any] | str:
    """Return the layer of a whole calculation, or the reason why its page cannot be edited, as a clause."""
    return reason_against(trace) or _Reader(trace).layer()


def reason_against(trace: Trace) -> str:
    """Return why a calculation cannot be edited in the browser; an empty text if it can."""
    options = trace.options
    unsupported = {
        "the layer rotates queries and keys (RoPE)": options.rope,
        "the layer normalizes queries or keys": options.query_norm or options.key_norm,
        "the layer limits its scores (softcap)": options.softcap,
        f"it has {trace.heads} heads; expected at most {MAX_HEADS}": trace.heads > MAX_HEADS,
        f"its embedding table has {len(trace.vocabulary)} rows; expected at most {MAX_VOCABULARY}": (
            len(trace.vocabulary) > MAX_VOCABULARY
        ),
        f"a token is empty or has more than {MAX_WORD_LETTERS} letters": any(
            not 0 < len(token) <= MAX_WORD_LETTERS for token in (*trace.tokens, *trace.memory_tokens)
        ),
    }
    for reason, applies in unsupported.items():
        if applies:
            return reason
    for step in trace:
        reason = _step_reason(step)
        if reason:
            return reason
    masks = [operand.values for step in trace.named("masked") for operand in step.operands if operand.symbol == "M"]
    if any(not mask.equal(masks[0]) for mask in masks):
        return "the heads have different masks"
    return ""


def _step_reason(step: Step) -> str:
    rows, columns = step.shape
    if step.rows != "dimension" and rows > MAX_TOKENS:
        return f"it has {rows} tokens; expected at most {MAX_TOKENS}"
    if step.columns == "dimension" and columns > MAX_COLUMNS:
        return f"{step.symbol} has {columns} columns; expected at most {MAX_COLUMNS}"
    if step.how == "partly" or (step.how == "given" and step.name not in _PROJECTIONS):
        return f"the text gives numbers of the step {step.name!r}"
    if step.how == "other" or step.name == "biased" or any(operand.symbol == "sink" for operand in step.operands):
        return f"the step {step.name!r} is not one of the live page"
    inputs: list[Step | Operand] = [operand for operand in step.operands if operand.new and operand.symbol != "M"]
    if step.how in ("input", "given"):
        inputs.append(step)
    large = [matrix.symbol for matrix in inputs if matrix.values.abs().max() > MAX_VALUE]
    return f"{large[0]} has numbers above {MAX_VALUE:,.0f}" if large else ""


class _Reader:
    """Reader of the parts of a layer from the steps of its calculation."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        steps = trace.all_steps
        self.sliced = any(step.name == "slice" for step in steps)
        self.cross = any(step.name == "memory" for step in steps)

    def layer(self) -> dict[str, Any]:
        trace = self.trace
        rows = trace.named("embedding") or trace.named("input")
        memory = None
        if self.cross:
            memory = {"tokens": list(trace.memory_tokens), "x": trace.step("memory").values.tolist()}
        return {
            "tokens": list(trace.tokens),
            "x": rows[0].values.tolist(),
            "memory": memory,
            "heads": trace.heads,
            "kv_heads": trace.kv_heads,
            "split": "slice" if self.sliced else "project",
            "weights": {name: self._weights(name).tolist() for name in _PROJECTIONS}
            | {"output": self._operand(trace.step("output"), "W").tolist()},
            "biases": self._biases(),
            "mask": self._mask(),
            "scaling": self._scaling(),
            "softmax": "rows",
            "use_output": True,
            "embedding": self._embedding(rows[0]),
            "positions": self._positions(),
            "given": {
                f"{step.name}-{(step.head or 0) + 1}": step.values.tolist()
                for step in trace
                if step.how == "given" and step.name in _PROJECTIONS
            },
        }

    @staticmethod
    def _operands(step: Step, kind: str) -> list[Operand]:
        return [operand for operand in step.operands if operand.new and operand.symbol.startswith(f"{kind}_")]

    def _operand(self, step: Step, kind: str) -> Tensor:
        return self._operands(step, kind)[0].values

    def _weights(self, name: str) -> Tensor:
        """Return W of each head. That of a given Q, K or V is the one that fits it best, with few digits."""
        steps = self.trace.named(name)
        return torch.stack([self._fitted(step) if step.how == "given" else self._operand(step, "W") for step in steps])

    def _fitted(self, step: Step) -> Tensor:
        """Return the least-squares solution of X W = Q, which the page uses if the reader wants Q computed."""
        source = self.trace.step("memory" if self.cross and step.name != "query" else "input").values
        if self.sliced:
            source = source.chunk(len(self.trace.named(step.name)), dim=1)[step.head or 0]
        fitted = torch.linalg.lstsq(source.double(), step.values.double(), driver="gelsd").solution
        return fitted.round(decimals=_FIT_DIGITS) + 0.0

    def _biases(self) -> dict[str, Any]:
        biases: dict[str, Any] = {}
        for name in (*_PROJECTIONS, "output"):
            steps = self.trace.named(name)
            rows = [operand.values[0] for step in steps for operand in self._operands(step, "b")]
            if rows and name == "output":
                biases[name] = rows[0].tolist()
            elif rows:  # a given matrix has no bias
                per_step = [self._operands(step, "b") for step in steps]
                zero = torch.zeros_like(rows[0])
                biases[name] = [entry[0].values[0].tolist() if entry else zero.tolist() for entry in per_step]
        return biases

    def _mask(self) -> dict[str, Any]:
        masked = self.trace.named("masked")
        if not masked:
            return {"kind": "none", "padding": 0, "hidden": None}
        [added] = (operand.values for operand in masked[0].operands if operand.symbol == "M")
        hidden = added == -torch.inf
        if not self.cross and hidden.equal(torch.ones_like(hidden).triu(1)):
            return {"kind": "causal", "padding": 0, "hidden": None}
        padding = int(hidden[0].sum())
        columns = torch.arange(hidden.shape[1]) >= hidden.shape[1] - padding
        if padding and (hidden == columns).all():
            return {"kind": "padding", "padding": padding, "hidden": None}
        return {"kind": "custom", "padding": 0, "hidden": hidden.tolist()}

    def _scaling(self) -> dict[str, Any]:
        scaled = self.trace.named("scaled")
        if not scaled:
            return {"on": False, "scale": None, "d_k": None}
        step, width = scaled[0], self.trace.named("query")[0].shape[1]
        if not step.scaling.startswith("/ √"):
            return {"on": True, "scale": step.factor, "d_k": None}
        d_k = int(step.scaling.removeprefix("/ √"))
        return {"on": True, "scale": None, "d_k": None if d_k == width else d_k}

    def _embedding(self, rows: Step) -> dict[str, Any] | None:
        if rows.how != "lookup":
            return None
        return {"vocabulary": list(self.trace.vocabulary), "values": rows.operands[0].values.tolist()}

    def _positions(self) -> dict[str, Any] | None:
        steps = self.trace.named("positions")
        if not steps:
            return None
        return {"on": True, "values": steps[0].values.tolist(), "sinusoidal": "=" in steps[0].formula}
