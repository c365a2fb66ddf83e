"""Worked examples as TOML files, read strictly: an error says which key, what it was and what was expected."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from decimal import Decimal
from importlib import resources
from pathlib import Path

import torch
from torch import Tensor

from clearhead.explain import BUILT_IN
from clearhead.explain._claims import JOINT, check_keys, nearest, read_claim
from clearhead.explain._grids import BLANK, Grid, read_grid, read_rows, shown
from clearhead.explain._matrices import MATRICES, Sizes, Where
from clearhead.explain.example import Example
from clearhead.explain.steps import NAMES
from clearhead.ops.masks import Causal, Dense, Mask

LARGEST = 2**24  # bytes of a file
_KEYS = ("title", "tokens", "x", "heads", "split", "mask", "seed", "weights", "given", "claims")


def load(name: str | os.PathLike[str]) -> Example:
    """An example that comes with clearhead, by its name, or one from a TOML file."""
    if name in BUILT_IN:
        source = resources.files("clearhead.explain").joinpath("examples", f"{name}.toml").read_bytes()
    else:
        source = _read(Path(name))
    try:
        return parse(source.decode("utf-8-sig"), Path(name).stem)
    except UnicodeDecodeError:
        raise ValueError(f"{name}: not a text file (it is not UTF-8)") from None
    except ArithmeticError:
        raise ValueError(
            f"{name}: not a TOML file that can be read (a number in it has too large an exponent)"
        ) from None
    except RecursionError:
        raise ValueError(f"{name}: nested too deeply; expected a worked example") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{name}: not a TOML file ({error})") from None
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
    except FileNotFoundError:
        if path.suffix or len(path.parts) > 1:
            raise ValueError(f"{path}: there is no such file") from None
        names = ", ".join(BUILT_IN)
        raise ValueError(f"{path}: neither a file nor one of the built-in examples, {names}") from None
    except IsADirectoryError:
        raise ValueError(f"{path}: a folder; expected a TOML file") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: cannot be read ({error})") from None
    if len(content) > LARGEST:
        raise ValueError(f"{path}: larger than {LARGEST // 2**20} MiB; expected a worked example")
    return content


def parse(source: str, title: str = "A worked example") -> Example:
    """An example from the text of a TOML file; `title` is used where the file has none.

    >>> parse("x = [[1, 0], [0, 1]]").trace().output.shape
    torch.Size([2, 2])
    """
    raw = tomllib.loads(source, parse_float=Decimal)
    check_keys("the file", raw, _KEYS)
    if "x" not in raw:
        raise ValueError("x is missing; expected the input, a list of rows, one for each token")
    x = read_grid("x", raw["x"])
    heads = _whole("heads", raw.get("heads", 1), least=1)
    split = raw.get("split", "project")
    if split not in ("project", "slice"):
        raise ValueError(f'split is {shown(split)}; expected "project" or "slice"')
    stated = _weights(raw.get("weights", {}), heads)
    given = _given(raw.get("given", {}), heads)
    weights = Sizes(x.shape, heads, split, stated, given).weights(_whole("seed", raw.get("seed", 0), least=0))
    claims = raw.get("claims", [])
    if not isinstance(claims, list):
        raise ValueError(f"claims is {shown(claims)}; expected tables, [[claims]]")
    example = Example(
        title=_text("title", raw.get("title", title)),
        tokens=_tokens(raw.get("tokens"), x.shape[0]),
        x=x.values,
        heads=heads,
        split=split,
        mask=_mask(raw.get("mask", "none"), x.shape[0]),
        weights=weights,
        stated=tuple(stated),
        given=given,
        claims=tuple(read_claim(number, claim, heads) for number, claim in enumerate(claims, 1)),
        source=source,
    )
    _check_given(example)
    for step in example.trace():
        if step.values.isnan().any() or (step.values.isinf() & (step.name != "masked")).any():
            raise ValueError(f"step {step.name!r} has numbers that are too large to be computed")
    return example


def _weights(raw: object, heads: int) -> dict[str, Tensor]:
    table = _table("weights", raw)
    check_keys("weights", table, MATRICES)
    found = {}
    for name, matrices in table.items():
        if name == "output":
            found[name] = read_grid("weights.output", matrices).values
            continue
        grids = [read_grid(where, matrix) for where, matrix in _per_head(f"weights.{name}", matrices, heads)]
        for number, grid in enumerate(grids, 1):
            if grid.shape != grids[0].shape:
                raise ValueError(f"weights.{name}: head {number} is {grid.shape}, but head 1 is {grids[0].shape}")
        found[name] = torch.stack([grid.values for grid in grids])
    return found


def _given(raw: object, heads: int) -> dict[Where, Grid]:
    table = _table("given", raw)
    known = NAMES[1:]
    check_keys("given", table, known)
    found: dict[Where, Grid] = {}
    for name, matrices in table.items():
        if name in JOINT:
            found[name, None] = read_grid(f"given.{name}", matrices, blanks=True)
            continue
        for number, (where, matrix) in enumerate(_per_head(f"given.{name}", matrices, heads)):
            if matrix != BLANK:
                found[name, number] = read_grid(where, matrix, blanks=True, infinite=name == "masked")
    return found


def _check_given(example: Example) -> None:
    shapes = {(step.name, step.head): step.shape for step in example.trace_without_given()}
    for (name, head), grid in example.given.items():
        which = f"given.{name}" if example.heads == 1 or head is None else f"given.{name}: head {head + 1}"
        if (name, head) not in shapes:
            raise ValueError(f"{which}: this calculation has no such step")
        if grid.shape != shapes[name, head]:
            raise ValueError(f"{which} is {grid.shape}; expected {shapes[name, head]}, rows by columns")


def _per_head(name: str, raw: object, heads: int) -> list[tuple[str, object]]:
    """Each head's matrix with a name for it; a single head's may stand without a list around it."""
    if heads == 1 and not _nested(raw, 3):
        return [(name, raw)]
    if not isinstance(raw, list) or len(raw) != heads:
        found = f"has {len(raw)} entries" if isinstance(raw, list) else f"is {shown(raw)}"
        raise ValueError(f"{name} {found}; expected {heads} matrices, one for each head")
    return [(f"{name}: head {number}", matrix) for number, matrix in enumerate(raw, 1)]


def _nested(raw: object, depth: int) -> bool:
    return depth == 0 or (isinstance(raw, list) and bool(raw) and _nested(raw[0], depth - 1))


def _mask(raw: object, count: int) -> Mask | None:
    """ "causal", "none", or a matrix: of true (may attend) and false, or of 0 and -inf, what is added to the scores."""
    if raw == "none":
        return None
    if raw == "causal":
        return Causal()
    if isinstance(raw, str):
        raise ValueError(f"mask is {shown(raw)}; {nearest(raw, ('causal', 'none'))}")
    kinds = set()

    def allowed(where: str, cell: object) -> bool:
        kinds.add(type(cell) is bool)
        if len(kinds) == 1 and (type(cell) is bool or cell in (0, Decimal("-inf"))):
            return cell is True or (cell == 0 and cell is not False)
        raise ValueError(f"{where} is {shown(cell)}; expected all true and false, or all 0 and -inf")

    table = torch.tensor(read_rows("mask", raw, allowed))
    if tuple(table.shape) != (count, count):
        raise ValueError(f"mask is {tuple(table.shape)}; expected {(count, count)}, a row and a column for each token")
    return Dense(table)


def _tokens(raw: object, count: int) -> tuple[str, ...]:
    if raw is None:
        return tuple(f"token {number}" for number in range(1, count + 1))
    if not isinstance(raw, list) or not raw:
        raise ValueError(f"tokens is {shown(raw)}; expected a list of {count} texts, one for each row of x")
    if len(raw) != count:
        raise ValueError(f"tokens has {len(raw)} entries, but x has {count} rows")
    return tuple(_text(f"tokens: entry {number}", token) for number, token in enumerate(raw, 1))


def _text(name: str, raw: object) -> str:
    if not isinstance(raw, str):
        raise ValueError(f"{name} is {shown(raw)}; expected text in quotes")
    return raw


def _whole(name: str, raw: object, least: int) -> int:
    if type(raw) is not int or not least <= raw < 2**63:
        raise ValueError(f"{name} is {shown(raw)}; expected a whole number, {least} or more")
    return raw


def _table(name: str, raw: object) -> Mapping[str, object]:
    if not isinstance(raw, Mapping):
        raise ValueError(f"{name} is {shown(raw)}; expected a table, [{name}]")
    return raw
