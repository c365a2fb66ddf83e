"""Readers of the inputs of an example file: tokens, x, embedding, positions, memory and mask."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

import torch

from clearhead.explain._claims import suggestion
from clearhead.explain._input_steps import InputParts
from clearhead.explain._printed_matrix import read_matrix, read_rows, short_repr
from clearhead.explain._toml_fields import read_string, read_table
from clearhead.nn import Rotary, sinusoidal
from clearhead.ops.masks import Causal, Dense, Mask

_ROTARY = {"rotary": Rotary(), "rotary-interleaved": Rotary(layout="interleaved")}
_POSITIONS = ("none", "sinusoidal", *_ROTARY)


def read_inputs(raw: Mapping[str, object]) -> tuple[tuple[str, ...], InputParts]:
    """Read the tokens and the matrices that the input is made of."""
    if "embedding" in raw:
        if "x" in raw:
            raise ValueError("x and embedding are both given; expected one of them")
        tokens, parts = _looked_up(raw)
    elif "x" in raw:
        x = read_matrix("x", raw["x"])
        tokens, parts = read_tokens("tokens", raw.get("tokens"), x.shape[0], "x"), InputParts(x.values)
    else:
        raise ValueError("x is missing; expected the input, a list of rows, one for each token")
    positions = raw.get("positions", "none")
    if positions == "sinusoidal":
        matrix = sinusoidal(*parts.rows.shape, dtype=torch.float64)
    elif isinstance(positions, str):
        if positions not in _POSITIONS:
            raise ValueError(f"positions is {short_repr(positions)}; {suggestion(positions, _POSITIONS)}")
        return tokens, parts
    else:
        matrix = read_matrix("positions", positions).values
        if matrix.shape != parts.rows.shape:
            expected = f"{tuple(parts.rows.shape)}, a row for each token"
            raise ValueError(f"positions is {tuple(matrix.shape)}; expected {expected}")
    return tokens, InputParts(parts.rows, parts.table, parts.vocabulary, matrix, positions == "sinusoidal")


def _looked_up(raw: Mapping[str, object]) -> tuple[tuple[str, ...], InputParts]:
    table = read_table("embedding", raw["embedding"])
    if not table:
        raise ValueError("embedding is empty; expected a row for each token")
    vocabulary = tuple(table)
    values = read_matrix("embedding", list(table.values())).values
    tokens = raw.get("tokens")
    if not isinstance(tokens, list) or not tokens:
        raise ValueError(
            f"tokens is {short_repr(tokens)}; expected a list of texts, the tokens to look up in embedding"
        )
    names = read_tokens("tokens", tokens, len(tokens), "embedding")
    for position, token in enumerate(names, 1):
        if token not in table:
            expected = suggestion(token, vocabulary)
            raise ValueError(f"tokens: entry {position} is {short_repr(token)}, which embedding lacks; {expected}")
    return names, InputParts(values[[vocabulary.index(token) for token in names]], values, vocabulary)


def read_rotary(positions: object, *, key_dim: int, has_memory: bool) -> Rotary | None:
    """Return the rotary positions of Q and K, if the key `positions` asks for them."""
    rope = _ROTARY.get(positions) if isinstance(positions, str) else None
    if rope is not None and has_memory:
        raise ValueError(f"positions is {short_repr(positions)}, but memory is another text; leave one of them out")
    if rope is not None and key_dim % 2:
        columns = f"Q and K have {key_dim} columns"
        raise ValueError(
            f"positions is {short_repr(positions)}, but {columns}; expected an even number, as columns"
            " are rotated in pairs"
        )
    return rope


def read_memory(raw: Mapping[str, object]) -> tuple[torch.Tensor | None, tuple[str, ...]]:
    """Read the other text of cross-attention, and its tokens."""
    if "memory" not in raw:
        if "memory_tokens" in raw:
            raise ValueError("memory_tokens is given without memory; expected memory, a list of rows")
        return None, ()
    memory = read_matrix("memory", raw["memory"])
    return memory.values, read_tokens("memory_tokens", raw.get("memory_tokens"), memory.shape[0], "memory")


def read_mask(raw: object, shape: tuple[int, int], *, has_memory: bool) -> Mask | None:
    """Read a mask: "causal", "none", or a matrix of true (attend) and false, or of 0 (attend) and -inf."""
    if raw == "none":
        return None
    if raw == "causal":
        if has_memory:
            raise ValueError('mask is "causal", but memory is another text; expected "none" or a matrix')
        return Causal()
    if isinstance(raw, str):
        raise ValueError(f"mask is {short_repr(raw)}; {suggestion(raw, ('causal', 'none'))}")
    kinds = set()

    def read_cell(name: str, cell: object) -> bool:
        kinds.add(type(cell) is bool)
        if len(kinds) == 1 and (type(cell) is bool or cell in (0, Decimal("-inf"))):
            return cell is True or (cell == 0 and cell is not False)
        raise ValueError(f"{name} is {short_repr(cell)}; expected all true and false, or all 0 and -inf")

    table = torch.tensor(read_rows("mask", raw, read_cell))
    if tuple(table.shape) != shape:
        lines = "a row for each token and a column for each row of memory"
        lines = lines if has_memory else "a row and a column for each token"
        raise ValueError(f"mask is {tuple(table.shape)}; expected {shape}, {lines}")
    return Dense(table)


def read_tokens(name: str, raw: object, count: int, matrix: str) -> tuple[str, ...]:
    """Read one text for each row of a matrix (default: token 1, token 2 …)."""
    if raw is None:
        return tuple(f"token {position}" for position in range(1, count + 1))
    if not isinstance(raw, list) or not raw:
        raise ValueError(f"{name} is {short_repr(raw)}; expected a list of {count} texts, one for each row of {matrix}")
    if len(raw) != count:
        raise ValueError(f"{name} has {len(raw)} entries, but {matrix} has {count} rows")
    return tuple(read_string(f"{name}: entry {position}", token) for position, token in enumerate(raw, 1))
