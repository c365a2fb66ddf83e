"""`trace()`: what a layer computes, step by step, with every matrix in between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.checks import whole_number
from clearhead.heads import head_numbers
from clearhead.layer import MultiHeadAttention
from clearhead.masks import Dense, Mask
from clearhead.masks import positions as consecutive

# in the order in which they come; slice only where heads see slices, masked only where there is a mask
NAMES = (
    "input",
    "slice",
    "query",
    "key",
    "value",
    "scores",
    "scaled",
    "masked",
    "weights",
    "head_output",
    "concat",
    "output",
)
_SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


@dataclass(frozen=True, eq=False)
class Step:
    """One matrix of the calculation, how it was made and what that cost."""

    name: str
    head: int | None  # counted from 0; None where all heads take part. Typeset they count from 1
    formula: str
    latex: str
    shapes: str  # a sentence such as "(8, 2) × (2, 8) / √2 = (8, 8)"
    values: Float[Tensor, "rows columns"]
    multiply_adds: int
    weights: int  # how many learned numbers took part

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.values.shape
        return rows, columns


@dataclass(frozen=True, eq=False)
class Trace:
    """All steps of one calculation, in order."""

    steps: tuple[Step, ...]
    tokens: tuple[str, ...]
    memory_tokens: tuple[str, ...]  # what keys and values belong to: the same as `tokens` in self-attention

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)

    def step(self, name: str, head: int | None = None) -> Step:
        """One step by its name, and its head (from 0) where each head has one."""
        if name not in NAMES:
            raise ValueError(f"step is {name!r}; expected one of {', '.join(NAMES)}")
        found = [step for step in self.steps if step.name == name]
        if not found:
            raise ValueError(f"step {name!r} does not occur in this calculation")
        if found[0].head is None:
            return found[0]
        if head is None and len(found) > 1:
            raise ValueError(f"step {name!r} occurs once for each of {len(found)} heads; give head")
        [number] = head_numbers("head", 0 if head is None else whole_number("head", head, least=0), len(found))
        return found[number]

    @property
    def output(self) -> Float[Tensor, "q_len output_dim"]:
        return self.steps[-1].values


def trace(
    layer: MultiHeadAttention,
    x: Float[Tensor, "q_len d_model"],
    memory: Float[Tensor, "kv_len kv_input_dim"] | None = None,
    *,
    mask: Mask | Tensor | None = None,
    tokens: Sequence[str] | None = None,
    memory_tokens: Sequence[str] | None = None,
) -> Trace:
    """Follow one text through a layer: every step of every head, written out.

    Args:
        x, memory: one text each, `[length, width]` (or with a batch of one before it).
        mask: as for the layer.
        tokens, memory_tokens: names of the rows; numbered by default.

    The last step is the layer's output to rounding; dropout is left out.

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
    with torch.no_grad():
        layer(x[None], None if memory is None else memory[None], mask=mask)  # for its checks, in its own words
        allowed = _allowed(mask, x.shape[0], source.shape[0])
        steps = list(_inputs(x, memory))
        outputs = []
        for number in range(layer.heads):
            own = _Head(layer, number, x, source, memory is not None)
            steps += own.steps(None if allowed is None else allowed[min(number, allowed.shape[0] - 1)])
            outputs.append(steps[-1].values)
        steps += _ending(layer, outputs)
    return Trace(tuple(steps), names, memory_names)


class _Head:
    """The calculation of one head."""

    def __init__(self, layer: MultiHeadAttention, number: int, x: Tensor, source: Tensor, crosses: bool) -> None:
        self.layer, self.number = layer, number
        self.head = layer.head(number)
        self.x, self.source = x, source
        self.sliced = layer.split == "slice"
        self.crosses = crosses
        self.low = "" if layer.heads == 1 else str(number + 1).translate(_SUBSCRIPTS)
        self.sub = "" if layer.heads == 1 else f"_{{{number + 1}}}"

    def steps(self, allowed: Tensor | None) -> list[Step]:
        steps = [self._slice()] if self.sliced else []
        query, key, value = (self._projected(name) for name in ("query", "key", "value"))
        steps += [query, key, value, *self._scores(query.values, key.values)]
        if allowed is not None:
            steps.append(self._masked(steps[-1].values, allowed))
        steps.append(self._weights(steps[-1].values, masked=allowed is not None))
        steps.append(self._output(steps[-1].values, value.values))
        return steps

    def _slice(self) -> Step:
        """What this head's queries see of the input."""
        text, latex, values = self._part("X", self.x, self.head.columns)
        return self._step(
            "slice", f"X{self.low} = {text}", f"X{self.sub} = {latex}", f"{_shape(self.x)} → {_shape(values)}", values
        )

    @staticmethod
    def _part(letter: str, tensor: Tensor, columns: slice) -> tuple[str, str, Tensor]:
        where = f"{columns.start}:{columns.stop}"
        return f"{letter}[:, {where}]", f"{letter}_{{:,\\,{where}}}", tensor[:, columns]

    def _source(self, name: str) -> tuple[str, str, Tensor]:
        """What a projection is applied to: its name, as text and in LaTeX, and its values."""
        own, columns = self.head.columns, self.head.columns if name == "query" else self.head.kv_columns
        letter, tensor = ("Z", self.source) if self.crosses and name != "query" else ("X", self.x)
        if not self.sliced:
            return letter, letter, tensor
        if letter == "X" and columns == own:
            return f"X{self.low}", f"X{self.sub}", tensor[:, columns]
        return self._part(letter, tensor, columns)

    def _projected(self, name: str) -> Step:
        """W_Q, W_K or W_V, the bias, the norm, and the turning by positions."""
        layer, letter = self.layer, name[0].upper()
        weight, bias = getattr(self.head, f"{name}_weight"), getattr(self.head, f"{name}_bias")
        text, latex, source = self._source(name)
        values = source @ weight
        learned = weight.numel()
        text, latex = f"{text} W_{letter}{self.low}", f"{latex} W^{{{letter}}}{self.sub}"
        if bias is not None:
            values, learned = values + bias, learned + bias.numel()
            text, latex = f"{text} + b_{letter}{self.low}", f"{latex} + b^{{{letter}}}{self.sub}"
        norm = {"query": layer.query_norm, "key": layer.key_norm}.get(name)
        if norm is not None:
            values, learned = norm(values), learned + norm.weight.numel()
            text, latex = f"RMSNorm({text})", f"\\mathrm{{RMSNorm}}({latex})"
        if layer.rope is not None and name != "value":
            count = values.shape[0]
            values = layer.rope(values[None, None], consecutive(count, count, 0, values.device))[0, 0]
            text, latex = f"RoPE({text})", f"\\mathrm{{RoPE}}({latex})"
        return self._step(
            name,
            f"{letter}{self.low} = {text}",
            f"{letter}{self.sub} = {latex}",
            f"{_shape(source)} × {_shape(weight)} = {_shape(values)}",
            values,
            values.shape[0] * weight.numel(),
            learned,
        )

    def _scores(self, query: Tensor, key: Tensor) -> Iterator[Step]:
        """Q Kᵀ, then scaled, and capped where the layer does so."""
        layer = self.layer
        products = query @ key.T
        text, latex = f"Q{self.low} K{self.low}ᵀ", f"Q{self.sub} K{self.sub}^{{\\mathsf{{T}}}}"
        sentence = f"{_shape(query)} × {_shape(key.T)}"
        cost = products.numel() * query.shape[1]
        yield self._step("scores", text, latex, f"{sentence} = {_shape(products)}", products, cost)
        if layer.scale is None:
            values, how = products / layer.key_dim**0.5, f"/ √{layer.key_dim}"
            latex = f"\\frac{{{latex}}}{{\\sqrt{{{layer.key_dim}}}}}"
        else:
            values, how = products * layer.scale, f"· {layer.scale:g}"
            latex = f"{latex} \\cdot {layer.scale:g}"
        text, sentence = f"{text} {how}", f"{sentence} {how.replace('·', '×')}"
        if layer.softcap is not None:
            cap = f"{layer.softcap:g}"
            values = layer.softcap * torch.tanh(values / layer.softcap)
            text, latex = f"{cap} tanh({text} / {cap})", f"{cap} \\tanh\\left({latex} / {cap}\\right)"
        text, latex = f"S{self.low} = {text}", f"S{self.sub} = {latex}"
        yield self._step("scaled", text, latex, f"{sentence} = {_shape(values)}", values)

    def _masked(self, scores: Tensor, allowed: Tensor) -> Step:
        values = torch.where(allowed, scores, -torch.inf)
        shape = _shape(values)
        text, latex = f"S{self.low} + M", f"S{self.sub} + M"
        return self._step("masked", text, latex, f"{shape} + {shape} = {shape}", values)

    def _weights(self, scores: Tensor, masked: bool) -> Step:
        """Softmax of each row; a row without a key is 0, and a sink takes its share."""
        sinks = self.layer.sinks
        added = scores if sinks is None else torch.cat([scores, sinks[self.number].expand(len(scores), 1)], dim=1)
        some = (added > -torch.inf).any(dim=1, keepdim=True)
        values = (torch.softmax(torch.where(some, added, 0.0), dim=1) * some)[:, : scores.shape[1]]
        inside = f"S{self.low} + M" if masked else f"S{self.low}"
        latex = f"S{self.sub} + M" if masked else f"S{self.sub}"
        if sinks is not None:
            inside, latex = f"{inside}; sink", f"{latex};\\ \\mathrm{{sink}}"
        return self._step(
            "weights",
            f"A{self.low} = softmax({inside})",
            f"A{self.sub} = \\mathrm{{softmax}}({latex})",
            f"softmax over each row of {_shape(scores)} = {_shape(values)}",
            values,
            weights=0 if sinks is None else 1,
        )

    def _output(self, weights: Tensor, value: Tensor) -> Step:
        values = weights @ value
        return self._step(
            "head_output",
            f"O{self.low} = A{self.low} V{self.low}",
            f"O{self.sub} = A{self.sub} V{self.sub}",
            f"{_shape(weights)} × {_shape(value)} = {_shape(values)}",
            values,
            weights.numel() * value.shape[1],
        )

    def _step(
        self, name: str, text: str, latex: str, shapes: str, values: Tensor, multiply_adds: int = 0, weights: int = 0
    ) -> Step:
        return Step(name, self.number, text, latex, shapes, values, multiply_adds, weights)


def _inputs(x: Tensor, memory: Tensor | None) -> Iterator[Step]:
    yield Step("input", None, "X", "X", _shape(x), x, 0, 0)
    if memory is not None:
        yield Step("input", None, "Z", "Z", _shape(memory), memory, 0, 0)


def _ending(layer: MultiHeadAttention, outputs: list[Tensor]) -> Iterator[Step]:
    """Concat and W_O."""
    joined = torch.cat(outputs, dim=1)
    lows = [str(number + 1) for number in range(len(outputs))] if len(outputs) > 1 else [""]
    parts = ", ".join(_shape(output) for output in outputs)
    yield Step(
        "concat",
        None,
        f"C = Concat({', '.join(f'O{low.translate(_SUBSCRIPTS)}' for low in lows)})",
        f"C = \\mathrm{{Concat}}({', '.join(f'O_{{{low}}}' if low else 'O' for low in lows)})",
        f"Concat[{parts}] = {_shape(joined)}",
        joined,
        0,
        0,
    )
    weight, bias = layer.output.weight, layer.output.bias
    values = joined @ weight.T
    text, latex = "Y = C W_O", "Y = C W^{O}"
    if bias is not None:
        values, text, latex = values + bias, f"{text} + b_O", f"{latex} + b^{{O}}"
    learned = weight.numel() + (0 if bias is None else bias.numel())
    sentence = f"{_shape(joined)} × {_shape(weight.T)} = {_shape(values)}"
    yield Step("output", None, text, latex, sentence, values, joined.shape[0] * weight.numel(), learned)


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
