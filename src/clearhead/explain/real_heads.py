"""Heads of real models as worked examples: the same steps, with the queries, keys and values of a model."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from clearhead._utils.checks import check_int, describe
from clearhead._utils.text import count_noun, visible_text
from clearhead.explain._layer_options import LayerOptions
from clearhead.explain.steps import Axis, Operand, Step, Trace, key_head
from clearhead.ops.alibi import ALiBi
from clearhead.ops.masks import query_positions
from clearhead.recording.addresses import find_address
from clearhead.recording.recording import Recording
from clearhead.weights.matrix import AttentionWeights

MAX_SCORES = 4_000_000  # of the head; more take longer than a few seconds
_MAX_WIDTH, _SHOWN_COLUMNS = 8, 4  # a wider query, key or value shows its first numbers
_MAX_TOKENS, _FIRST_TOKENS, _LAST_TOKENS, _STRONGEST_KEYS = 16, 6, 4, 6


def trace_head(recording: Recording, head: str, *, query: int | None = None) -> Trace:
    """Return the calculation of one head of a recorded model, from queries and keys to the head's output.

    The weights equal those of the model up to rounding: they are computed again in float64 from the model's queries
    and keys, which already contain biases, norms and rotary embeddings. A long text is shortened in the output to its
    first and last tokens and the strongest keys.

    Args:
        recording: a recording with queries and keys, from `record(model, text, values=True)`.
        head: stack, layer and head, counted from 0, such as "cross.2.5". Of a model with one stack, its name may be
            left out.
        query: index of the only query to compute, from 0, as for a long text (default: all queries).

    Examples:
        >>> import clearhead
        >>> recording = clearhead.record("en-ja", "The cat ate the fish.", values=True)
        >>> trace_head(recording, "cross.2.5").step("weights").shapes
        'softmax over each row of (7, 7) = (7, 7)'
    """
    if not isinstance(recording, Recording):
        raise TypeError(f"recording is {describe(recording)}; expected a Recording, from record(model, text)")
    address = find_address(recording, head)
    stack, layer, index = address
    layers = recording[stack].layers[layer]
    weights = recording.weights(address)
    if weights.query is None or weights.key is None:
        raise ValueError(
            f"the recording of {visible_text(recording.model)} holds scores instead of queries and keys; expected a"
            " recording with values"
        )
    (q_len, kv_len), width = weights.shape[2:], weights.key.shape[3]
    queries, keys, rows = recording[stack].queries.texts, recording[stack].keys.texts, ""
    if query is not None:
        if not 0 <= check_int("query", query, least=0) < q_len:
            raise ValueError(f"query is {query}; expected at most {q_len - 1}, because head {head} has {q_len} queries")
        weights, queries = weights.part(queries=slice(query, query + 1)), queries[query : query + 1]
        rows = f" The only row is row {query + 1} of the {count_noun(q_len, 'row')} of this head."
    if (q_len if query is None else width) * kv_len > MAX_SCORES:  # the largest matrix
        raise ValueError(
            f"head {head} has {q_len:,} × {kv_len:,} scores; expected at most {MAX_SCORES:,}: use a shorter text"
        )
    name = ".".join(map(str, address))
    steps = _HeadSteps(weights, _shared_note(layers, index)).steps()
    matrix = next(step for step in steps if step.name == "weights").values
    return Trace(
        steps,
        tuple(queries),
        tuple(keys),
        heads=1,
        head_name=name,
        counting=f"Layers and heads are counted from 0, as in the model: {visible_text(name)} is head {index} of layer"
        f" {layer} of the stack {visible_text(stack)}. Rows and columns are counted from 1.{rows}",
        visible=_visible(steps, matrix),
        options=LayerOptions(softcap=weights.softcap),  # queries and keys are already normed and rotated
    )


def _shared_note(layer: AttentionWeights, head: int) -> str:
    """Return a sentence if several query heads share one key head."""
    heads, key_heads = layer.shape[1], layer.key_heads
    if heads == key_heads:
        return ""
    index, group = key_head(head, heads, key_heads), heads // key_heads
    first = index * group
    return f"Heads {first} to {first + group - 1} of this layer share these numbers (key head {index})."


@dataclass(frozen=True)
class _HeadSteps:
    """Steps of one head, computed in float64 from its queries, keys and values."""

    weights: AttentionWeights
    shared_note: str

    def steps(self) -> tuple[Step, ...]:
        """Return all steps; without the output of the head if the recording has no values."""
        weights = self.weights
        assert weights.query is not None
        assert weights.key is not None
        query = self._projected("query", "Q", weights.query, "token")
        key = self._projected("key", "K", weights.key, "memory")
        scores = _scores(query, key)
        scaled = self._scaled(scores, query.shape[1])
        steps = [query, key, scores, scaled]
        if weights.value is not None:
            steps.insert(2, self._projected("value", "V", weights.value, "memory"))
        bias, allowed = self._bias_and_mask()
        if bias is not None:
            steps.append(_added(steps[-1], "biased", "B", bias, "bias of the model"))
        if not allowed.all():
            mask = torch.where(allowed, 0.0, -torch.inf).double()
            steps.append(_added(steps[-1], "masked", "M", mask, "mask of the model"))
        attention = self._softmax(steps[-1])
        steps.append(attention)
        if weights.value is not None:
            steps.append(_output(attention, steps[2]))
        return tuple(steps)

    def _projected(self, name: str, letter: str, values: Tensor, rows: Axis) -> Step:
        matrix = values[0, 0].double().cpu()
        count, width = matrix.shape
        return Step(
            name,
            0,
            letter,
            letter,
            f"({count}, {width})",
            matrix,
            rows=rows,
            how="input",
            origin="computed by the model"
            + ("" if name == "value" else ", after the rotary embedding where it has one"),
            note="" if name == "query" else self.shared_note,
        )

    def _scaled(self, scores: Step, width: int) -> Step:
        scale, softcap = self.weights.scale, self.weights.softcap
        if math.isclose(scale, width**-0.5, rel_tol=1e-6):
            scaling, latex = f"/ √{width}", f"\\frac{{{scores.latex}}}{{\\sqrt{{{width}}}}}"
        else:
            scaling, latex = f"· {scale:g}", f"{scores.latex} \\cdot {scale:g}"
        text, values, how = f"{scores.formula} {scaling}", scores.values * scale, "scaled"
        if softcap is not None:
            text, latex = f"{softcap:g} tanh({text} / {softcap:g})", f"{softcap:g} \\tanh({latex} / {softcap:g})"
            values, how = softcap * torch.tanh(values / softcap), "other"
        return Step(
            "scaled",
            0,
            f"S = {text}",
            f"S = {latex}",
            f"{scores.shape} {scaling.replace('·', '×')} = {scores.shape}",
            values,
            columns="memory",
            operands=(scores.as_operand("cell"),),
            how=how,
            scaling=scaling,
            factor=scale,
        )

    def _bias_and_mask(self) -> tuple[Float[Tensor, "q_len kv_len"] | None, Bool[Tensor, "q_len kv_len"]]:
        """Return the bias, 0 where it is −∞, and which keys each query may attend to."""
        weights = self.weights
        q_len, kv_len = weights.shape[2:]
        allowed = weights.scores[0, 0].cpu() > -torch.inf
        if isinstance(weights.bias, ALiBi):
            positions = query_positions(q_len, kv_len, weights.query_start, torch.device("cpu"))[0]
            distance = (positions[:, None] - torch.arange(kv_len)).abs()
            return -weights.bias.slopes.double().cpu() * distance, allowed
        if weights.bias is None:
            return None, allowed
        bias = weights.bias[0, 0].double().cpu().expand(q_len, kv_len)
        bias = torch.where(allowed, bias, 0.0)
        return (bias if bool(bias.any()) else None), allowed

    def _softmax(self, scores: Step) -> Step:
        sinks = self.weights.sinks
        logits = scores.values
        operands = [scores.as_operand("row")]
        if sinks is not None:
            sink = sinks.double().cpu().reshape(1, 1)
            logits = torch.cat([logits, sink.expand(len(logits), 1)], dim=1)
            operands.append(Operand("sink", "\\text{sink}", sink, "dimension", "dimension", "all", new=True))
        hidden = scores.values == -torch.inf
        has_keys = (logits > -torch.inf).any(dim=1, keepdim=True)
        values = torch.softmax(torch.where(has_keys, logits, 0.0), dim=1) * has_keys
        text, latex = ("", "") if sinks is None else ("; sink", ";\\ \\text{sink}")
        return Step(
            "weights",
            0,
            f"A = softmax({scores.symbol}{text})",
            f"A = \\text{{softmax}}({scores.latex_symbol}{latex})",
            f"softmax over each row of {scores.shape} = {scores.shape}",
            values[:, : scores.shape[1]],
            columns="memory",
            operands=tuple(operands),
            how="softmax",
            hidden=hidden if hidden.any() else None,
        )


def _scores(query: Step, key: Step) -> Step:
    transposed = Operand("Kᵀ", "K^{\\top}", key.values.T, "dimension", "memory", "column", origin=key.origin)
    values = query.values @ transposed.values
    width = query.shape[1]
    return Step(
        "scores",
        0,
        "Q Kᵀ",
        "Q K^{\\top}",
        f"{query.shape} × ({width}, {key.shape[0]}) = {tuple(values.shape)}",
        values,
        multiply_adds=values.numel() * width,
        columns="memory",
        operands=(query.as_operand("row"), transposed),
        how="product",
    )


def _added(scores: Step, name: str, symbol: str, values: Tensor, origin: str) -> Step:
    """Return scores plus a bias or a mask."""
    operand = Operand(symbol, symbol, values, "token", "memory", "cell", new=True, origin=origin)
    return Step(
        name,
        0,
        f"{scores.symbol} + {symbol}",
        f"{scores.latex_symbol} + {symbol}",
        f"{scores.shape} + {scores.shape} = {scores.shape}",
        scores.values + values,
        columns="memory",
        operands=(scores.as_operand("cell"), operand),
        how="masked",
    )


def _output(attention: Step, value: Step) -> Step:
    values = attention.values @ value.values
    return Step(
        "head_output",
        0,
        "O = A V",
        "O = A V",
        f"{attention.shape} × {value.shape} = {tuple(values.shape)}",
        values,
        multiply_adds=attention.values.numel() * value.shape[1],
        operands=(attention.as_operand("row"), value.as_operand("column")),
        how="product",
    )


def _visible(steps: tuple[Step, ...], attention: Tensor) -> dict[Axis, Collection[int]]:
    """Return the rows and columns to show: the first and last tokens, the strongest keys, the first numbers."""
    visible: dict[Axis, Collection[int]] = {}
    if max(step.shape[1] for step in steps if step.columns == "dimension") > _MAX_WIDTH:
        visible["dimension"] = range(_SHOWN_COLUMNS)
    q_len, kv_len = attention.shape
    if q_len > _MAX_TOKENS:
        visible["token"] = _first_and_last(q_len)
    if kv_len > _MAX_TOKENS:
        strongest = attention.sum(dim=0).topk(_STRONGEST_KEYS).indices.tolist()
        visible["memory"] = {*_first_and_last(kv_len), *strongest}
    return visible


def _first_and_last(count: int) -> set[int]:
    return {*range(_FIRST_TOKENS), *range(count - _LAST_TOKENS, count)}
