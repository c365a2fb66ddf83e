"""Steps of a layer's calculation after its input: the heads and the output."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from clearhead.explain.steps import KEY_HEAD_STEPS, Operand, Step, StepKey, key_head
from clearhead.nn import MultiHeadAttention
from clearhead.ops.masks import query_positions

_SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


class HeadTracer:
    """Tracer of the calculation of one head."""

    def __init__(
        self,
        layer: MultiHeadAttention,
        index: int,
        x: Step,
        source: Step,
        given: dict[StepKey, Tensor],
        d_k: int | None = None,
    ) -> None:
        self.layer, self.index, self.given, self.d_k = layer, index, given, d_k
        self.head = layer.head(index)
        self.key_head = key_head(index, layer.heads, layer.kv_heads)
        self.x, self.source = x, source
        self.subscript, self.latex_subscript = _subscripts(index, layer.heads)

    def steps(self, allowed: Tensor | None, shared: dict[StepKey, Step]) -> list[Step]:
        """Return the steps from the head's input to its output.

        Args:
            allowed: the head's mask `[q_len, kv_len]`.
            shared: keys and values of earlier heads. A head that shares a key head uses them; they are not repeated.
        """
        steps, head_input = [], self.x
        if self.layer.split == "slice":
            head_input = self._slice()
            steps.append(head_input)
        query = self._projected("query", head_input)
        steps.append(query)
        for name in KEY_HEAD_STEPS:
            if (name, self.key_head) not in shared:
                shared[name, self.key_head] = self._projected(name, head_input)
                steps.append(shared[name, self.key_head])
        key, value = (shared[name, self.key_head] for name in KEY_HEAD_STEPS)
        scores = self._scores(query, key)
        steps.append(scores)
        if self.layer.scale != 1 or self.layer.softcap is not None or self.d_k is not None:
            steps.append(self._scaled(scores, query, key))
        if allowed is not None:
            steps.append(self._masked(steps[-1], allowed))
        weights = self._weights(steps[-1])
        return [*steps, weights, self._output(weights, value)]

    def _slice(self) -> Step:
        """Return the columns of the input that this head's queries are computed from."""
        part = _column_operand(self.x, self.head.columns)
        return self._step(
            "slice",
            f"X{self.subscript} = {part.symbol}",
            f"X{self.latex_subscript} = {part.latex}",
            f"{shape_text(self.x.values)} → {shape_text(part.values)}",
            part.values,
            operands=(self.x.as_operand("cell", shift=self.head.columns.start),),
            how="slice",
        )

    def _projection_input(self, name: str, head_input: Step) -> Operand:
        """Return the matrix that a projection is applied to."""
        if name == "query":
            return head_input.as_operand("row")
        columns = self.head.kv_columns
        if self.layer.split == "project" or columns == slice(0, self.layer.kv_input_dim):
            return self.source.as_operand("row")
        if self.source is self.x and columns == self.head.columns:
            return head_input.as_operand("row")
        return _column_operand(self.source, columns)

    def _projected(self, name: str, head_input: Step) -> Step:
        """Apply W_Q, W_K or W_V, then the bias, the norm and the rotary embedding."""
        layer, letter = self.layer, name[0].upper()
        subscript, latex_subscript = self._subscripts_of(letter)
        weight, bias = getattr(self.head, f"{name}_weight"), getattr(self.head, f"{name}_bias")
        factor = self._projection_input(name, head_input)
        matrix = self._learned("W", letter, weight)
        operands, values = [factor, matrix], factor.values @ weight
        text, latex = f"{factor.symbol} {matrix.symbol}", f"{factor.latex} {matrix.latex}"
        if bias is not None:
            operands.append(self._learned("b", letter, bias[None]))
            values = values + bias
            text, latex = f"{text} + {operands[-1].symbol}", f"{latex} + {operands[-1].latex}"
        learned = sum(operand.values.numel() for operand in operands[1:])
        how = "product"
        norm = {"query": layer.query_norm, "key": layer.key_norm}.get(name)
        if norm is not None:
            values, how, learned = norm(values), "other", learned + norm.weight.numel()
            text, latex = f"RMSNorm({text})", f"\\text{{RMSNorm}}({latex})"
        if layer.rope is not None and name != "value":
            count = values.shape[0]
            values = layer.rope(values[None, None], query_positions(count, count, 0, values.device))[0, 0]
            text, latex, how = f"RoPE({text})", f"\\text{{RoPE}}({latex})", "other"
        if how == "other":  # a norm or a rotation mixes the columns
            operands[1:] = [replace(operand, marks="all") for operand in operands[1:]]
        return self._step(
            name,
            f"{letter}{subscript} = {text}",
            f"{letter}{latex_subscript} = {latex}",
            f"{shape_text(factor.values)} × {shape_text(weight)} = {shape_text(values)}",
            values,
            multiply_adds=values.shape[0] * weight.numel(),
            weights=learned,
            rows="token" if name == "query" else "memory",
            operands=tuple(operands),
            how=how,
        )

    def _subscripts_of(self, letter: str) -> tuple[str, str]:
        """Return the subscripts of Q, K or V, as text and in LaTeX. K and V count key heads."""
        if letter == "Q":
            return self.subscript, self.latex_subscript
        return _subscripts(self.key_head, self.layer.kv_heads)

    def _learned(self, kind: str, letter: str, values: Tensor) -> Operand:
        """Return W or b of this head."""
        subscript, latex_subscript = self._subscripts_of(letter)
        symbol, latex = f"{kind}_{letter}{subscript}", f"{kind}_{{{letter}{latex_subscript}}}"
        return Operand(symbol, latex, values.detach(), "dimension", "dimension", "column", new=True)

    def _scores(self, query: Step, key: Step) -> Step:
        symbol, latex = f"{key.symbol}ᵀ", f"{key.latex_symbol}^{{\\top}}"
        transposed = Operand(symbol, latex, key.values.T, "dimension", "memory", "column", origin=key.origin)
        values = query.values @ transposed.values
        return self._step(
            "scores",
            f"{query.symbol} {transposed.symbol}",
            f"{query.latex_symbol} {transposed.latex}",
            f"{shape_text(query.values)} × {shape_text(transposed.values)} = {shape_text(values)}",
            values,
            multiply_adds=values.numel() * query.values.shape[1],
            columns="memory",
            operands=(query.as_operand("row"), transposed),
            how="product",
        )

    def _scaled(self, scores: Step, query: Step, key: Step) -> Step:
        """Divide by √d_k, or multiply by the layer's scale, and apply its softcap."""
        layer = self.layer
        if layer.scale is None or self.d_k is not None:
            d_k = layer.key_dim if self.d_k is None else self.d_k
            values, scaling = scores.values / d_k**0.5, f"/ √{d_k}"
            latex = f"\\frac{{{scores.latex}}}{{\\sqrt{{{d_k}}}}}"
        else:
            values, scaling = scores.values * layer.scale, f"· {layer.scale:g}"
            latex = f"{scores.latex} \\cdot {layer.scale:g}"
        text, how = f"{scores.formula} {scaling}", "scaled"
        if layer.softcap is not None:
            cap, how = f"{layer.softcap:g}", "other"
            values = layer.softcap * torch.tanh(values / layer.softcap)
            text, latex = f"{cap} tanh({text} / {cap})", f"{cap} \\tanh\\left({latex} / {cap}\\right)"
        factors = f"{shape_text(query.values)} × {shape_text(key.values.T)}"
        return self._step(
            "scaled",
            f"S{self.subscript} = {text}",
            f"S{self.latex_subscript} = {latex}",
            f"{factors} {scaling.replace('·', '×')} = {shape_text(values)}",
            values,
            columns="memory",
            operands=(scores.as_operand("cell"),),
            how=how,
            scaling=scaling,
            factor=layer.key_dim**-0.5 if layer.scale is None else layer.scale,
        )

    def _masked(self, scaled: Step, allowed: Tensor) -> Step:
        added = torch.where(allowed, 0.0, -torch.inf).to(scaled.values)
        shape = shape_text(added)
        return self._step(
            "masked",
            f"{scaled.symbol} + M",
            f"{scaled.latex_symbol} + M",
            f"{shape} + {shape} = {shape}",
            torch.where(allowed, scaled.values, -torch.inf),
            columns="memory",
            operands=(scaled.as_operand("cell"), Operand("M", "M", added, "token", "memory", "cell", new=True)),
            how="masked",
        )

    def _weights(self, scores: Step) -> Step:
        """Apply softmax to each row, with the sink as an additional score. A row without visible keys is 0."""
        sinks, values = self.layer.sinks, scores.values
        logits = values if sinks is None else torch.cat([values, sinks[self.index].expand(len(values), 1)], dim=1)
        hidden = values == -torch.inf
        has_keys = (logits > -torch.inf).any(dim=1, keepdim=True)
        values = (torch.softmax(torch.where(has_keys, logits, 0.0), dim=1) * has_keys)[:, : values.shape[1]]
        text, latex, operands = scores.symbol, scores.latex_symbol, [scores.as_operand("row")]
        if sinks is not None:
            text, latex = f"{text}; sink", f"{latex};\\ \\text{{sink}}"
            sink = sinks[self.index].detach().reshape(1, 1)
            operands.append(Operand("sink", "\\text{sink}", sink, "dimension", "dimension", "all", new=True))
        return self._step(
            "weights",
            f"A{self.subscript} = softmax({text})",
            f"A{self.latex_subscript} = \\text{{softmax}}({latex})",
            f"softmax over each row of {shape_text(scores.values)} = {shape_text(values)}",
            values,
            weights=0 if sinks is None else 1,
            columns="memory",
            operands=tuple(operands),
            how="softmax",
            hidden=hidden if hidden.any() else None,
        )

    def _output(self, weights: Step, value: Step) -> Step:
        values = weights.values @ value.values
        return self._step(
            "head_output",
            f"O{self.subscript} = {weights.symbol} {value.symbol}",
            f"O{self.latex_subscript} = {weights.latex_symbol} {value.latex_symbol}",
            f"{shape_text(weights.values)} × {shape_text(value.values)} = {shape_text(values)}",
            values,
            multiply_adds=weights.values.numel() * value.values.shape[1],
            operands=(weights.as_operand("row"), value.as_operand("column")),
            how="product",
        )

    def _step(self, name: str, formula: str, latex: str, shapes: str, values: Tensor, **details: Any) -> Step:
        head = self.key_head if name in KEY_HEAD_STEPS else self.index
        return with_given(Step(name, head, formula, latex, shapes, values, **details), self.given)


def output_steps(layer: MultiHeadAttention, outputs: list[Step], given: dict[StepKey, Tensor]) -> Iterator[Step]:
    """Yield the concatenation of the heads and the product with W_O."""
    values = torch.cat([output.values for output in outputs], dim=1)
    concat = Step(
        "concat",
        None,
        f"C = Concat({', '.join(output.symbol for output in outputs)})",
        f"C = \\text{{Concat}}({', '.join(output.latex_symbol for output in outputs)})",
        f"Concat[{', '.join(shape_text(output.values) for output in outputs)}] = {shape_text(values)}",
        values,
        operands=tuple(
            output.as_operand("cell", shift=-index * layer.value_dim) for index, output in enumerate(outputs)
        ),
        how="concat",
    )
    concat = with_given(concat, given)
    yield concat
    weight, bias = layer.output.weight.detach().T, layer.output.bias
    operands = [
        concat.as_operand("row"),
        Operand("W_O", "W_{O}", weight, "dimension", "dimension", "column", new=True),
    ]
    values, text, latex = concat.values @ weight, "Y = C W_O", "Y = C W_{O}"
    if bias is not None:
        operands.append(Operand("b_O", "b_{O}", bias.detach()[None], "dimension", "dimension", "column", new=True))
        values, text, latex = values + bias, f"{text} + b_O", f"{latex} + b_{{O}}"
    output = Step(
        "output",
        None,
        text,
        latex,
        f"{shape_text(concat.values)} × {shape_text(weight)} = {shape_text(values)}",
        values,
        multiply_adds=values.shape[0] * weight.numel(),
        weights=sum(operand.values.numel() for operand in operands[1:]),
        operands=tuple(operands),
        how="product",
    )
    yield with_given(output, given)


def with_given(step: Step, given: dict[StepKey, Tensor]) -> Step:
    """Replace the computed matrix of a step by the given one, if any, and remove it from `given`."""
    values = given.pop((step.name, step.head), None)
    if values is None:
        return step
    if tuple(values.shape) != step.shape:
        raise ValueError(
            f"given {(step.name, step.head)} has shape {tuple(values.shape)}; expected {step.shape}, {step.formula}"
        )
    blank = values.isnan()
    values = torch.where(blank, step.values, values.to(step.values))
    if blank.any():
        shapes = f"partly given: {step.shapes}"
        return replace(step, values=values, shapes=shapes, how="partly", origin="partly given", hidden=None)
    return replace(
        step,
        formula=f"{step.symbol} = given",
        latex=f"{step.latex_symbol} = \\text{{given}}",
        shapes=f"given: {shape_text(values)}",
        values=values,
        multiply_adds=0,
        weights=0,
        operands=(),
        how="given",
        origin="given",
        hidden=None,
    )


def _column_operand(step: Step, columns: slice) -> Operand:
    """Return a range of columns of X or Z as an operand, whose symbol counts them from 1."""
    first, last = columns.start + 1, columns.stop
    text, latex = f"columns {first} to {last}", f"\\text{{columns }}{first}\\text{{ to }}{last}"
    if first == last:
        text, latex = f"column {first}", f"\\text{{column }}{first}"
    return Operand(
        f"{step.symbol}[{text}]",
        f"{step.latex_symbol}_{{{latex}}}",
        step.values[:, columns],
        step.rows,
        "dimension",
        "row",
        new=True,  # as no step shows them
        first_column=columns.start,
        origin=step.origin or "computed",
    )


def _subscripts(index: int, count: int) -> tuple[str, str]:
    """Return the subscript of one of `count` heads, as text and in LaTeX."""
    return ("", "") if count == 1 else (str(index + 1).translate(_SUBSCRIPTS), f"_{{{index + 1}}}")


def shape_text(tensor: Tensor) -> str:
    """Return the shape of a matrix, such as "(8, 2)"."""
    return f"({tensor.shape[0]}, {tensor.shape[1]})"
