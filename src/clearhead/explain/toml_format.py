"""Strict reader of worked examples in TOML files. An error names the key, its value and the expected value."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from importlib import resources
from pathlib import Path

import torch
from torch import Tensor

from clearhead.explain._built_in import BUILT_IN
from clearhead.explain._claims import SHARED_MATRICES, check_keys, read_claim, suggestion
from clearhead.explain._layer_weights import WEIGHT_NAMES, LayerWidths
from clearhead.explain._printed_matrix import BLANK, PrintedMatrix, read_matrix, read_rows, short_repr
from clearhead.explain.example import Example
from clearhead.explain.steps import MAX_SCORES, STEP_NAMES, StepKey
from clearhead.ops.masks import Causal, Dense, Mask

MAX_FILE_BYTES = 2**24
_FILE_KEYS = ("title", "tokens", "x", "heads", "split", "mask", "seed", "weights", "given", "claims")


def load(name: str | os.PathLike[str]) -> Example:
    """Load a built-in example by name, or an example from a TOML file.

    Raises:
        ValueError: the file cannot be read, or is not a valid example.
    """
    if name in BUILT_IN:
        source = resources.files("clearhead.explain").joinpath("examples", f"{name}.toml").read_bytes()
    else:
        source = _read_file(Path(name))
    try:
        return replace(parse(source.decode("utf-8-sig"), Path(name).stem), name=str(name))
    except UnicodeDecodeError:
        raise ValueError(f"{name}: not a text file (it is not UTF-8)") from None
    except ArithmeticError:
        raise ValueError(f"{name}: not a readable TOML file (the exponent of a number is too large)") from None
    except RecursionError:
        raise ValueError(f"{name}: nested too deeply; expected a worked example") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{name}: not a TOML file ({error})") from None
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _read_file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        if path.suffix or len(path.parts) > 1:
            raise ValueError(f"{path}: there is no such file") from None
        names = ", ".join(BUILT_IN)
        raise ValueError(f"{path}: neither a file nor one of the built-in examples, {names}") from None
    except IsADirectoryError:
        raise ValueError(f"{path}: a folder; expected a TOML file") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: cannot be read ({error})") from None
    if len(content) > MAX_FILE_BYTES:
        raise ValueError(f"{path}: larger than {MAX_FILE_BYTES // 2**20} MiB; expected a worked example")
    return content


def parse(source: str, title: str = "A worked example") -> Example:
    """Parse the text of a TOML file. `title` is used if the file has no title.

    Examples:
        >>> parse("x = [[1, 0], [0, 1]]").trace().output.shape
        torch.Size([2, 2])
    """
    raw = tomllib.loads(source, parse_float=Decimal)
    check_keys("the file", raw, _FILE_KEYS)
    if "x" not in raw:
        raise ValueError("x is missing; expected the input, a list of rows, one for each token")
    x = read_matrix("x", raw["x"])
    heads = _read_int("heads", raw.get("heads", 1), least=1)
    scores = heads * x.shape[0] ** 2
    if scores > MAX_SCORES:
        raise ValueError(
            f"x has {x.shape[0]} rows, which give {scores:,} scores with heads = {heads}; expected at most"
            f" {MAX_SCORES:,}, because each number is written out"
        )
    split = raw.get("split", "project")
    if split not in ("project", "slice"):
        raise ValueError(f'split is {short_repr(split)}; expected "project" or "slice"')
    stated = _read_weights(raw.get("weights", {}), heads)
    given = _read_given(raw.get("given", {}), heads)
    seed = _read_int("seed", raw.get("seed", 0), least=0)
    widths = LayerWidths(x.shape, heads, split, stated, given)
    weights = widths.weights(seed)
    claims = raw.get("claims", [])
    if not isinstance(claims, list):
        raise ValueError(f"claims is {short_repr(claims)}; expected tables, [[claims]]")
    example = Example(
        title=_read_string("title", raw.get("title", title)),
        tokens=_read_tokens(raw.get("tokens"), x.shape[0]),
        x=x.values,
        heads=heads,
        split=split,
        mask=_read_mask(raw.get("mask", "none"), x.shape[0]),
        weights=weights,
        stated=tuple(stated),
        given=given,
        claims=tuple(read_claim(position, claim, heads) for position, claim in enumerate(claims, 1)),
        source=source,
        seed=seed,
        as_drawn=tuple(widths.as_drawn),
    )
    _check_given(example)
    for step in example.trace():
        if step.values.isnan().any() or (step.values.isinf() & (step.name != "masked")).any():
            raise ValueError(f"step {step.name!r} overflows; expected smaller numbers")
    return example


def _read_weights(raw: object, heads: int) -> dict[str, Tensor]:
    table = _read_table("weights", raw)
    check_keys("weights", table, WEIGHT_NAMES)
    weights = {}
    for name, raw_matrices in table.items():
        if name == "output":
            weights[name] = read_matrix("weights.output", raw_matrices).values
            continue
        matrices = [read_matrix(label, matrix) for label, matrix in _per_head(f"weights.{name}", raw_matrices, heads)]
        for head, matrix in enumerate(matrices, 1):
            if matrix.shape != matrices[0].shape:
                raise ValueError(f"weights.{name}: head {head} is {matrix.shape}, but head 1 is {matrices[0].shape}")
        weights[name] = torch.stack([matrix.values for matrix in matrices])
    return weights


def _read_given(raw: object, heads: int) -> dict[StepKey, PrintedMatrix]:
    table = _read_table("given", raw)
    check_keys("given", table, STEP_NAMES[1:])
    given: dict[StepKey, PrintedMatrix] = {}
    for name, matrices in table.items():
        if name in SHARED_MATRICES:
            given[name, None] = read_matrix(f"given.{name}", matrices, blanks=True)
            continue
        for head, (label, matrix) in enumerate(_per_head(f"given.{name}", matrices, heads)):
            if matrix != BLANK:
                given[name, head] = read_matrix(label, matrix, blanks=True, infinite=name == "masked")
    return given


def _check_given(example: Example) -> None:
    shapes = {(step.name, step.head): step.shape for step in example.trace_without_given()}
    for (name, head), matrix in example.given.items():
        label = f"given.{name}" if example.heads == 1 or head is None else f"given.{name}: head {head + 1}"
        if (name, head) not in shapes:
            raise ValueError(f"{label}: this calculation has no such step")
        if matrix.shape != shapes[name, head]:
            raise ValueError(f"{label} is {matrix.shape}; expected {shapes[name, head]}, rows by columns")


def _per_head(name: str, raw: object, heads: int) -> list[tuple[str, object]]:
    """Return a label and a matrix for each head. The matrix of a single head may be given without a list."""
    if heads == 1 and not _nested(raw, 3):
        return [(name, raw)]
    if not isinstance(raw, list) or len(raw) != heads:
        content = f"has {len(raw)} entries" if isinstance(raw, list) else f"is {short_repr(raw)}"
        raise ValueError(f"{name} {content}; expected {heads} matrices, one for each head")
    return [(f"{name}: head {head}", matrix) for head, matrix in enumerate(raw, 1)]


def _nested(raw: object, depth: int) -> bool:
    return depth == 0 or (isinstance(raw, list) and bool(raw) and _nested(raw[0], depth - 1))


def _read_mask(raw: object, count: int) -> Mask | None:
    """Read a mask: "causal", "none", or a matrix of true (attend) and false, or of 0 (attend) and -inf."""
    if raw == "none":
        return None
    if raw == "causal":
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
    if tuple(table.shape) != (count, count):
        raise ValueError(f"mask is {tuple(table.shape)}; expected {(count, count)}, a row and a column for each token")
    return Dense(table)


def _read_tokens(raw: object, count: int) -> tuple[str, ...]:
    if raw is None:
        return tuple(f"token {position}" for position in range(1, count + 1))
    if not isinstance(raw, list) or not raw:
        raise ValueError(f"tokens is {short_repr(raw)}; expected a list of {count} texts, one for each row of x")
    if len(raw) != count:
        raise ValueError(f"tokens has {len(raw)} entries, but x has {count} rows")
    return tuple(_read_string(f"tokens: entry {position}", token) for position, token in enumerate(raw, 1))


def _read_string(name: str, raw: object) -> str:
    if not isinstance(raw, str):
        raise ValueError(f"{name} is {short_repr(raw)}; expected text in quotes")
    return raw


def _read_int(name: str, raw: object, least: int) -> int:
    if type(raw) is not int or not least <= raw < 2**63:
        raise ValueError(f"{name} is {short_repr(raw)}; expected a whole number, {least} or more")
    return raw


def _read_table(name: str, raw: object) -> Mapping[str, object]:
    if not isinstance(raw, Mapping):
        raise ValueError(f"{name} is {short_repr(raw)}; expected a table, [{name}]")
    return raw
