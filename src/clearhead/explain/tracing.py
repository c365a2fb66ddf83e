"""`trace()`: what a layer computes, step by step, with every matrix in between."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.explain.steps import Operand, Step, Trace
from clearhead.nn import MultiHeadAttention
from clearhead.ops.masks import Dense, Mask
from clearhead.ops.masks import query_positions as consecutive

Given = Mapping[tuple[str, int | None], Tensor]
_SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


def trace(
    layer: MultiHeadAttention,
    x: Float[Tensor, "q_len d_model"],
    memory: Float[Tensor, "kv_len kv_input_dim"] | None = None,
    *,
    mask: Mask | Tensor | None = None,
    tokens: Sequence[str] | None = None,
    memory_tokens: Sequence[str] | None = None,
    given: Given | None = None,
) -> Trace:
    """Follow one text through a layer: every step of every head, written out.

    Args:
        x, memory: one text each, `[length, width]` (or with a batch of one before it).
        mask: as for the layer.
        tokens, memory_tokens: names of the rows; numbered by default.
        given: matrices to use in place of computed ones, by step and head (from 0; None for a step of all heads), as in
            `{("key", 0): sample}`. A NaN leaves its cell as computed.

    The last step is the layer's output to rounding, unless something is given; dropout is left out.

    >>> found = trace(MultiHeadAttention(4, 2, split="slice"), torch.randn(8, 4))
    >>> found.step("scaled", head=0).shapes
    '(8, 2) × (2, 8) / √2 = (8, 8)'
    """
    x = _one_text("x", x, layer.d_model)
    memory = None if memory is None else _one_text("memory", memory, layer.kv_input_dim)
    source = x if memory is None else memory
    names = _names("tokens", tokens, x.shape[0])
    if memory is None and memory_tokens is not None:
        raise ValueError("memory_tokens was given without memory")
    memory_names = names if memory is None else _names("memory_tokens", memory_tokens, source.shape[0])
    given = {} if given is None else dict(given)
    with torch.no_grad():
        layer(x[None], None if memory is None else memory[None], mask=mask)  # for its checks, in its own words
        allowed = _allowed(mask, x.shape[0], source.shape[0])
        inputs = [_settled(step, given) for step in _inputs(x, memory)]
        steps, outputs = list(inputs), []
        for number in range(layer.heads):
            own = _Head(layer, number, inputs[0], inputs[-1], given)
            steps += own.steps(None if allowed is None else allowed[min(number, allowed.shape[0] - 1)])
            outputs.append(steps[-1])
        steps += _ending(layer, outputs, given)
    if given:
        name, head = next(iter(given))
        raise ValueError(f"given has {(name, head)}, and this calculation has no such step and head")
    return Trace(tuple(steps), names, memory_names, layer.heads)


class _Head:
    """The calculation of one head."""

    def __init__(self, layer: MultiHeadAttention, number: int, x: Step, source: Step, given: dict) -> None:
        self.layer, self.number, self.given = layer, number, given
        self.head = layer.head(number)
        self.x, self.source = x, source
        self.low = "" if layer.heads == 1 else str(number + 1).translate(_SUBSCRIPTS)
        self.sub = "" if layer.heads == 1 else f"_{{{number + 1}}}"

    def steps(self, allowed: Tensor | None) -> list[Step]:
        steps, own = [], self.x
        if self.layer.split == "slice":
            own = self._slice()
            steps.append(own)
        query, key, value = (self._projected(name, own) for name in ("query", "key", "value"))
        scores = self._scores(query, key)
        scaled = self._scaled(scores, query, key)
        steps += [query, key, value, scores, scaled]
        if allowed is not None:
            steps.append(self._masked(scaled, allowed))
        weights = self._weights(steps[-1])
        return [*steps, weights, self._output(weights, value)]

    def _slice(self) -> Step:
        """What this head's queries see of the input."""
        part = _part(self.x, self.head.columns)
        return self._step(
            "slice",
            f"X{self.low} = {part.symbol}",
            f"X{self.sub} = {part.latex}",
            f"{_shape(self.x.values)} → {_shape(part.values)}",
            part.values,
            operands=(self.x.as_operand("cell", shift=self.head.columns.start),),
            how="slice",
        )

    def _read(self, name: str, own: Step) -> Operand:
        """What a projection is applied to."""
        if name == "query":
            return own.as_operand("row")
        if self.layer.split == "project":
            return self.source.as_operand("row")
        if self.source is self.x and self.head.kv_columns == self.head.columns:
            return own.as_operand("row")
        return _part(self.source, self.head.kv_columns)

    def _projected(self, name: str, own: Step) -> Step:
        """W_Q, W_K or W_V, the bias, the norm, and the turning by positions."""
        layer, letter = self.layer, name[0].upper()
        weight, bias = getattr(self.head, f"{name}_weight"), getattr(self.head, f"{name}_bias")
        read = self._read(name, own)
        matrix = self._learned("W", letter, weight)
        operands, values = [read, matrix], read.values @ weight
        text, latex = f"{read.symbol} {matrix.symbol}", f"{read.latex} {matrix.latex}"
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
            values = layer.rope(values[None, None], consecutive(count, count, 0, values.device))[0, 0]
            text, latex, how = f"RoPE({text})", f"\\text{{RoPE}}({latex})", "other"
        if how == "other":  # a norm and a rotation mix the columns
            operands[1:] = [replace(operand, marks="all") for operand in operands[1:]]
        return self._step(
            name,
            f"{letter}{self.low} = {text}",
            f"{letter}{self.sub} = {latex}",
            f"{_shape(read.values)} × {_shape(weight)} = {_shape(values)}",
            values,
            multiply_adds=values.shape[0] * weight.numel(),
            weights=learned,
            rows="token" if name == "query" else "memory",
            operands=tuple(operands),
            how=how,
        )

    def _learned(self, kind: str, letter: str, values: Tensor) -> Operand:
        """W or b of this head."""
        symbol, latex = f"{kind}_{letter}{self.low}", f"{kind}^{{{letter}}}{self.sub}"
        return Operand(symbol, latex, values.detach(), "dimension", "dimension", "column", new=True)

    def _scores(self, query: Step, key: Step) -> Step:
        turned = Operand(
            f"{key.symbol}ᵀ", f"{key.latex_symbol}^{{\\top}}", key.values.T, "dimension", "memory", "column"
        )
        values = query.values @ turned.values
        return self._step(
            "scores",
            f"{query.symbol} {turned.symbol}",
            f"{query.latex_symbol} {turned.latex}",
            f"{_shape(query.values)} × {_shape(turned.values)} = {_shape(values)}",
            values,
            multiply_adds=values.numel() * query.values.shape[1],
            columns="memory",
            operands=(query.as_operand("row"), turned),
            how="product",
        )

    def _scaled(self, scores: Step, query: Step, key: Step) -> Step:
        """Divided by √d_k, or whatever else the layer does, and capped where it caps."""
        layer = self.layer
        if layer.scale is None:
            values, scaling = scores.values / layer.key_dim**0.5, f"/ √{layer.key_dim}"
            latex = f"\\frac{{{scores.latex}}}{{\\sqrt{{{layer.key_dim}}}}}"
        else:
            values, scaling = scores.values * layer.scale, f"· {layer.scale:g}"
            latex = f"{scores.latex} \\cdot {layer.scale:g}"
        text, how = f"{scores.formula} {scaling}", "scaled"
        if layer.softcap is not None:
            cap, how = f"{layer.softcap:g}", "other"
            values = layer.softcap * torch.tanh(values / layer.softcap)
            text, latex = f"{cap} tanh({text} / {cap})", f"{cap} \\tanh\\left({latex} / {cap}\\right)"
        factors = f"{_shape(query.values)} × {_shape(key.values.T)}"
        return self._step(
            "scaled",
            f"S{self.low} = {text}",
            f"S{self.sub} = {latex}",
            f"{factors} {scaling.replace('·', '×')} = {_shape(values)}",
            values,
            columns="memory",
            operands=(scores.as_operand("cell"),),
            how=how,
            scaling=scaling,
        )

    def _masked(self, scaled: Step, allowed: Tensor) -> Step:
        added = torch.where(allowed, 0.0, -torch.inf).to(scaled.values)
        shape = _shape(added)
        return self._step(
            "masked",
            f"S{self.low} + M",
            f"S{self.sub} + M",
            f"{shape} + {shape} = {shape}",
            torch.where(allowed, scaled.values, -torch.inf),
            columns="memory",
            operands=(scaled.as_operand("cell"), Operand("M", "M", added, "token", "memory", "cell", new=True)),
            how="masked",
        )

    def _weights(self, scores: Step) -> Step:
        """Softmax of each row; a row without a key is 0, and a sink takes its share."""
        sinks, values = self.layer.sinks, scores.values
        added = values if sinks is None else torch.cat([values, sinks[self.number].expand(len(values), 1)], dim=1)
        some = (added > -torch.inf).any(dim=1, keepdim=True)
        values = (torch.softmax(torch.where(some, added, 0.0), dim=1) * some)[:, : values.shape[1]]
        text, latex, operands = scores.symbol, scores.latex_symbol, [scores.as_operand("row")]
        if sinks is not None:
            text, latex = f"{text}; sink", f"{latex};\\ \\text{{sink}}"
            own = sinks[self.number].detach().reshape(1, 1)
            operands.append(Operand("sink", "\\text{sink}", own, "dimension", "dimension", "all", new=True))
        return self._step(
            "weights",
            f"A{self.low} = softmax({text})",
            f"A{self.sub} = \\text{{softmax}}({latex})",
            f"softmax over each row of {_shape(scores.values)} = {_shape(values)}",
            values,
            weights=0 if sinks is None else 1,
            columns="memory",
            operands=tuple(operands),
            how="softmax",
        )

    def _output(self, weights: Step, value: Step) -> Step:
        values = weights.values @ value.values
        return self._step(
            "head_output",
            f"O{self.low} = {weights.symbol} {value.symbol}",
            f"O{self.sub} = {weights.latex_symbol} {value.latex_symbol}",
            f"{_shape(weights.values)} × {_shape(value.values)} = {_shape(values)}",
            values,
            multiply_adds=weights.values.numel() * value.values.shape[1],
            operands=(weights.as_operand("row"), value.as_operand("column")),
            how="product",
        )

    def _step(self, name: str, formula: str, latex: str, shapes: str, values: Tensor, **rest: Any) -> Step:
        return _settled(Step(name, self.number, formula, latex, shapes, values, **rest), self.given)


def _inputs(x: Tensor, memory: Tensor | None) -> Iterator[Step]:
    yield Step("input", None, "X", "X", _shape(x), x, how="input")
    if memory is not None:
        yield Step("input", None, "Z", "Z", _shape(memory), memory, rows="memory", how="input")


def _ending(layer: MultiHeadAttention, outputs: list[Step], given: dict) -> Iterator[Step]:
    """Concat and W_O."""
    values = torch.cat([output.values for output in outputs], dim=1)
    concat = Step(
        "concat",
        None,
        f"C = Concat({', '.join(output.symbol for output in outputs)})",
        f"C = \\text{{Concat}}({', '.join(output.latex_symbol for output in outputs)})",
        f"Concat[{', '.join(_shape(output.values) for output in outputs)}] = {_shape(values)}",
        values,
        operands=tuple(
            output.as_operand("cell", shift=-number * layer.value_dim) for number, output in enumerate(outputs)
        ),
        how="concat",
    )
    concat = _settled(concat, given)
    yield concat
    weight, bias = layer.output.weight.detach().T, layer.output.bias
    operands = [
        concat.as_operand("row"),
        Operand("W_O", "W^{O}", weight, "dimension", "dimension", "column", new=True),
    ]
    values, text, latex = concat.values @ weight, "Y = C W_O", "Y = C W^{O}"
    if bias is not None:
        operands.append(Operand("b_O", "b^{O}", bias.detach()[None], "dimension", "dimension", "column", new=True))
        values, text, latex = values + bias, f"{text} + b_O", f"{latex} + b^{{O}}"
    output = Step(
        "output",
        None,
        text,
        latex,
        f"{_shape(concat.values)} × {_shape(weight)} = {_shape(values)}",
        values,
        multiply_adds=values.shape[0] * weight.numel(),
        weights=sum(operand.values.numel() for operand in operands[1:]),
        operands=tuple(operands),
        how="product",
    )
    yield _settled(output, given)


def _settled(step: Step, given: dict) -> Step:
    """The step, or the same with a matrix that was given in its place; what is used is taken out of `given`."""
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
        return replace(step, values=values, shapes=f"partly given: {step.shapes}", how="partly")
    return replace(
        step,
        formula=f"{step.symbol} = given",
        latex=f"{step.latex_symbol} = \\text{{given}}",
        shapes=f"given: {_shape(values)}",
        values=values,
        multiply_adds=0,
        weights=0,
        operands=(),
        how="given",
    )


def _part(step: Step, columns: slice) -> Operand:
    """Some columns of X or Z."""
    where = f"{columns.start}:{columns.stop}"
    return Operand(
        f"{step.symbol}[:, {where}]",
        f"{step.latex_symbol}_{{:,\\,{where}}}",
        step.values[:, columns],
        step.rows,
        "dimension",
        "row",
        new=True,
    )


def _shape(tensor: Tensor) -> str:
    return f"({tensor.shape[0]}, {tensor.shape[1]})"


def _one_text(name: str, tensor: Tensor, width: int) -> Float[Tensor, "length width"]:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} is a {type(tensor).__name__}; expected a tensor [length, {width}]")
    if tensor.ndim == 3 and tensor.shape[0] == 1:
        tensor = tensor[0]
    if tensor.ndim != 2 or tensor.shape[1] != width:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}; expected one text, [length, {width}]")
    return tensor.detach()


def _names(argument: str, tokens: Sequence[str] | None, length: int) -> tuple[str, ...]:
    if tokens is None:
        return tuple(f"token {number + 1}" for number in range(length))
    if len(tokens) != length:
        raise ValueError(f"{argument} has {len(tokens)} names, but there are {length} rows")
    return tuple(str(token) for token in tokens)


def _allowed(mask: Mask | Tensor | None, q_len: int, kv_len: int) -> Tensor | None:
    """Which keys each query may attend to: `[heads or 1, q_len, kv_len]`."""
    if mask is None:
        return None
    mask = Dense(mask) if isinstance(mask, Tensor) else mask
    return mask.dense(q_len, kv_len)[0].expand(-1, q_len, kv_len)
