"""Strict reader of worked examples in TOML files. An error names the key, its value and the expected value."""

from __future__ import annotations

import os
import tomllib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from importlib import resources
from pathlib import Path

import torch
from torch import Tensor

from clearhead._utils.suffixes import TEXT_FORMATS
from clearhead.explain._built_in import BUILT_IN
from clearhead.explain._claims import BIASES, SHARED_MATRICES, Claim, check_keys, head_count, read_claim
from clearhead.explain._layer_weights import WEIGHT_NAMES, LayerWidths
from clearhead.explain._printed_matrix import BLANK, PrintedMatrix, read_matrix, short_repr
from clearhead.explain._toml_fields import per_head, read_int, read_scale, read_string, read_table
from clearhead.explain._toml_inputs import read_inputs, read_mask, read_memory, read_rotary
from clearhead.explain.example import Example
from clearhead.explain.steps import KEY_HEAD_STEPS, STEP_NAMES, StepKey, Trace

MAX_FILE_BYTES = 2**24
TEXT_SUFFIXES = TEXT_FORMATS["markdown"] + TEXT_FORMATS["latex"]  # texts whose tables and matrices are read
MAX_CELLS = 100_000  # in all matrices together; more takes minutes to write out
_FILE_KEYS = (
    "title", "tokens", "x", "heads", "split", "mask", "seed", "weights", "given", "claims",
    "embedding", "positions", "memory", "memory_tokens", "kv_heads", "scale", "d_k", "biases", "exercise",
)  # fmt: skip
_GIVEN_STEPS = STEP_NAMES[STEP_NAMES.index("slice") :]


def load(name: str | os.PathLike[str]) -> Example:
    """Load a built-in example by name, or an example from a file in TOML, Markdown or LaTeX.

    A warning names each matrix of a text in Markdown or LaTeX that could not be matched with certainty.

    Raises:
        ValueError: the file cannot be read, or is not a valid example.
    """
    if name not in BUILT_IN and Path(name).suffix.lower() in TEXT_SUFFIXES:
        return _load_text(name)
    if name in BUILT_IN:
        source = resources.files("clearhead.explain").joinpath("examples", f"{name}.toml").read_bytes()
    else:
        source = read_bounded(Path(name))
    with named_errors(name):
        return replace(parse(source.decode("utf-8-sig"), Path(name).stem), name=str(name))


@contextmanager
def named_errors(name: str | os.PathLike[str]) -> Iterator[None]:
    """Turn every error of a file's content into a ValueError that names the file."""
    try:
        yield
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


def _load_text(path: str | os.PathLike[str]) -> Example:
    from clearhead.explain.reading import load_draft  # which imports this module

    draft = load_draft(path)
    for line in draft.question_lines():
        warnings.warn(line, stacklevel=3)
    return replace(draft.example(), name=str(path))


def read_bounded(path: Path) -> bytes:
    """Return the content of a file of at most `MAX_FILE_BYTES`; raise a ValueError that names it otherwise."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        if path.suffix or len(path.parts) > 1:
            raise ValueError(f"{path}: there is no such file") from None
        names = ", ".join(BUILT_IN)
        raise ValueError(f"{path}: neither a file nor one of the built-in examples, {names}") from None
    except IsADirectoryError:
        raise ValueError(f"{path}: a folder; expected a TOML, Markdown or LaTeX file") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
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
    if "dropout" in raw:
        raise ValueError("the file has the key 'dropout'; leave it out: dropout is random, so no text can print it")
    check_keys("the file", raw, _FILE_KEYS)
    tokens, parts = read_inputs(raw)
    memory, memory_tokens = read_memory(raw)
    heads = read_int("heads", raw.get("heads", 1), least=1)
    kv_heads = read_int("kv_heads", raw.get("kv_heads", heads), least=1)
    if heads % kv_heads:
        raise ValueError(f"kv_heads is {kv_heads}; expected a divisor of heads, which is {heads}")
    split = raw.get("split", "project")
    if split not in ("project", "slice"):
        raise ValueError(f'split is {short_repr(split)}; expected "project" or "slice"')
    stated = _read_weights(raw.get("weights", {}), heads, kv_heads)
    biases = _read_biases(raw.get("biases", {}), heads, kv_heads)
    given = _read_given(raw.get("given", {}), heads, kv_heads)
    memory_shape = None if memory is None else (memory.shape[0], memory.shape[1])
    widths = LayerWidths(
        (len(tokens), parts.x.shape[1]), heads, split, stated, given, kv_heads=kv_heads, memory=memory_shape
    )
    _check_size(widths)
    widths.check_biases(biases)
    seed = read_int("seed", raw.get("seed", 0), least=0)
    weights = widths.weights(seed)
    scale, d_k = read_scale(raw.get("scale"), raw.get("d_k"))
    mask_shape = (len(tokens), len(tokens if memory is None else memory))
    example = Example(
        title=read_string("title", raw.get("title", title)),
        tokens=tokens,
        x=parts.x,
        heads=heads,
        split=split,
        mask=read_mask(raw.get("mask", "none"), mask_shape, has_memory=memory is not None),
        weights=weights,
        stated=tuple(stated),
        given=given,
        claims=(),
        source=source,
        scale=scale,
        stated_d_k=d_k,
        memory=memory,
        memory_tokens=memory_tokens or tokens,
        biases=biases,
        rope=read_rotary(raw.get("positions"), key_dim=widths.key_dim, has_memory=memory is not None),
        input_parts=parts,
        seed=seed,
        as_drawn=tuple(widths.as_drawn),
    )
    _check_given(example)
    trace = example.trace()
    for step in trace:
        if step.values.isnan().any() or (step.values.isinf() & (step.name != "masked")).any():
            raise ValueError(f"step {step.name!r} overflows; expected smaller numbers")
    return replace(example, claims=_read_claims(raw.get("claims", []), example, trace))


def _check_size(widths: LayerWidths) -> None:
    cells = widths.cell_count()
    if cells > MAX_CELLS:
        size = f"{widths.x[0]:,} × {widths.x[1]:,}"
        raise ValueError(
            f"x is {size}, which gives {cells:,} cells in all matrices; expected at most {MAX_CELLS:,}, as in a text"
        )


def _read_weights(raw: object, heads: int, kv_heads: int) -> dict[str, Tensor]:
    table = read_table("weights", raw)
    check_keys("weights", table, WEIGHT_NAMES)
    weights = {}
    for name, raw_matrices in table.items():
        label = f"weights.{name}"
        if name == "output":
            weights[name] = read_matrix(label, raw_matrices).values
            continue
        entries = per_head(label, raw_matrices, *_heads_of(name, heads, kv_heads))
        matrices = [read_matrix(entry_label, matrix) for entry_label, matrix in entries]
        for (entry_label, _), matrix in zip(entries, matrices, strict=True):
            if matrix.shape != matrices[0].shape:
                first = entries[0][0].removeprefix(f"{label}: ")
                raise ValueError(f"{entry_label} is {matrix.shape}, but {first} is {matrices[0].shape}")
        weights[name] = torch.stack([matrix.values for matrix in matrices])
    return weights


def _heads_of(name: str, heads: int, kv_heads: int) -> tuple[int, int, str]:
    """Return the arguments of `per_head` for a matrix: the number of its heads, its depth, and their name."""
    shared = kv_heads != heads and name in ("key", "value")
    return head_count(name, heads, kv_heads), 2, "key head" if shared else "head"


def _read_biases(raw: object, heads: int, kv_heads: int) -> dict[str, Tensor]:
    table = read_table("biases", raw)
    check_keys("biases", table, WEIGHT_NAMES)
    biases = {}
    for name, raw_rows in table.items():
        count, _, noun = _heads_of(name, heads, kv_heads)
        entries = per_head(f"biases.{name}", raw_rows, 1 if name == "output" else count, 1, noun)
        for label, row in entries:
            if not isinstance(row, list) or not row or any(isinstance(cell, list) for cell in row):
                raise ValueError(f"{label} is {short_repr(row)}; expected a list of numbers, one for each column")
        biases[name] = read_matrix(f"biases.{name}", [row for _, row in entries]).values
    return biases


def _read_given(raw: object, heads: int, kv_heads: int) -> dict[StepKey, PrintedMatrix]:
    table = read_table("given", raw)
    check_keys("given", table, _GIVEN_STEPS)
    given: dict[StepKey, PrintedMatrix] = {}
    for name, matrices in table.items():
        if name in SHARED_MATRICES:
            given[name, None] = read_matrix(f"given.{name}", matrices, blanks=True)
            continue
        for head, (label, matrix) in enumerate(per_head(f"given.{name}", matrices, *_heads_of(name, heads, kv_heads))):
            if matrix != BLANK:
                given[name, head] = read_matrix(label, matrix, blanks=True, infinite=name == "masked")
    return given


def _check_given(example: Example) -> None:
    shapes = {(step.name, step.head): step.shape for step in example.trace_without_given()}
    for (name, head), matrix in example.given.items():
        noun = "key head" if name in KEY_HEAD_STEPS and example.kv_heads != example.heads else "head"
        label = f"given.{name}" if example.heads == 1 or head is None else f"given.{name}: {noun} {head + 1}"
        if (name, head) not in shapes:
            raise ValueError(f"{label}: this calculation has no such step")
        if matrix.shape != shapes[name, head]:
            raise ValueError(f"{label} is {matrix.shape}; expected {shapes[name, head]}, rows by columns")


def _read_claims(raw: object, example: Example, trace: Trace) -> tuple[Claim, ...]:
    if not isinstance(raw, list):
        raise ValueError(f"claims is {short_repr(raw)}; expected tables, [[claims]]")

    def shape_of(name: str) -> tuple[int, int] | None:
        if name in STEP_NAMES:
            steps = trace.named(name)
            return steps[0].shape if steps else None
        if name == "mask":
            matrix = example.additive_mask()
        elif name in BIASES:
            matrix = example.bias(name.removesuffix("_bias"))[:1]
        else:
            matrix = example.weights[name.removesuffix("_weight")]
        rows, columns = matrix.shape[-2:]
        return rows, columns

    return tuple(
        read_claim(position, claim, example.heads, example.kv_heads, shape_of) for position, claim in enumerate(raw, 1)
    )
