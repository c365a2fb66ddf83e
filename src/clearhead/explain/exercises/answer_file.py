"""Answer files: an exercise in TOML, with "_" in blank cells or with the answers of a student.

The file is a worked example with an `[exercise]` table, so that `clearhead check` reads it too. It contains the given
numbers and the shown steps, but never a solution.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from clearhead._utils.checks import describe
from clearhead.explain._claims import check_keys
from clearhead.explain._printed_matrix import BLANK, short_repr
from clearhead.explain._toml_text import toml_lines, toml_string, toml_value
from clearhead.explain.exercises._drawing import givens_source
from clearhead.explain.exercises.exercise import MAX_DIGITS, Exercise, check_exercise, read_blanks, with_points
from clearhead.explain.steps import StepKey
from clearhead.explain.toml_format import named_errors, parse, read_bounded

_TABLE_KEYS = ("example", "seed", "digits", "blank", "points", "student")
_NAMES_OF_TABLES = ("exercise", "claims", "title")  # not givens

Cell = str | int | Decimal
AnswerRows = Sequence[Sequence[Cell]]


@dataclass(frozen=True, eq=False)
class AnswerFile:
    """A student's file: the exercise that it states, and the answers as written."""

    exercise: Exercise
    student: str
    answers: Mapping[StepKey, object]  # values of every claim, as parsed
    givens: Mapping[str, Any]  # parsed keys of the file without title, claims and the [exercise] table


def to_toml(exercise: Exercise, *, student: str = "", answers: Mapping[StepKey, AnswerRows] | None = None) -> str:
    """Return the answer file of an exercise, blank or with answers.

    Args:
        exercise: the exercise.
        student: name of the student.
        answers: rows of cells for some of the blank steps.
    """
    check_exercise(exercise)
    if not isinstance(student, str):
        raise TypeError(f"student is {describe(student)}; expected a name")
    answers = {} if answers is None else answers
    if not isinstance(answers, Mapping) or not set(answers) <= set(exercise.blanks):
        raise ValueError(f"answers is {describe(answers)}; expected a mapping from blank steps to rows of cells")
    before, after = file_parts(exercise)
    claims = []
    for key in exercise.blanks:
        rows, columns = exercise.steps[key].shape
        claims.append(_claim(key, answers.get(key, [[BLANK] * columns] * rows)))
    return f"{before}{toml_string(student)}{after}{''.join(claims)}"


def file_parts(exercise: Exercise) -> tuple[str, str]:
    """Return the text before the name of the student, and the text between the name and the answers."""
    raw = tomllib.loads(exercise.example.source, parse_float=Decimal)
    givens, _, weights = givens_source(raw, exercise.title, raw["x"], raw["weights"]).partition("\n[weights]\n")
    table = {
        "example": exercise.name,
        "seed": exercise.seed,
        "digits": exercise.digits,
        "blank": exercise.blank_names(),
        "points": exercise.points,
    }
    lines = [f"{key} = {toml_value(value)}" for key, value in table.items() if key != "points" or value]
    shown = [_claim(key, exercise.printed(key)) for key in exercise.shown]
    intro = f'# Replace each "{BLANK}" at the end of this file by a number with {exercise.digits} digits.\n'
    head = "\n".join([*lines, "student = "])
    return (
        f"{intro}{givens}\n[exercise]\n{head}",
        f"\n\n[weights]\n{weights}\n# Steps that the exercise shows.\n{''.join(shown)}\n# Answers.\n",
    )


def _claim(key: StepKey, rows: AnswerRows) -> str:
    name, head = key
    lines = ["[[claims]]", f'step = "{name}"', *([] if head is None else [f"head = {head + 1}"])]
    values = toml_lines(f"[{', '.join(map(_cell, row))}]" for row in rows)
    return "\n".join([*lines, f"values = {values}\n\n"])


def _cell(cell: Cell) -> str:
    """Return a cell as TOML: a number as written, and any other text in quotes."""
    if cell == "-∞":
        return "-inf"
    try:
        return str(cell) if isinstance(cell, str) and tomllib.loads(f"cell = {cell}") else toml_value(cell)
    except tomllib.TOMLDecodeError:
        return toml_string(str(cell))


def read_answers(path: str | os.PathLike[str]) -> AnswerFile:
    """Read an exercise, blank or with answers, from a TOML file.

    Raises:
        ValueError: the file cannot be read, or is not an exercise.
    """
    if not Path(path).exists():
        raise ValueError(f"{path}: there is no such file")
    source = read_bounded(Path(path))
    with named_errors(path):
        return parse_answers(source.decode("utf-8-sig"))


def parse_answers(source: str) -> AnswerFile:
    """Parse the text of an answer file."""
    raw = tomllib.loads(source, parse_float=Decimal)
    table = raw.get("exercise")
    if not isinstance(table, Mapping):
        raise ValueError("there is no [exercise] table; expected a file from `clearhead exercise`")
    check_keys("exercise", table, _TABLE_KEYS)
    for key, kind, name in (("seed", int, "a whole number"), ("digits", int, "a whole number"),
                            ("blank", list, "a list of steps")):  # fmt: skip
        if type(table.get(key)) is not kind:
            raise ValueError(f"exercise.{key} is {short_repr(table.get(key))}; expected {name}")
    if not 1 <= table["digits"] <= MAX_DIGITS:
        raise ValueError(f"exercise.digits is {table['digits']}; expected 1 to {MAX_DIGITS}")
    for key in ("x", "weights"):
        if key not in raw:
            raise ValueError(f"{key} is missing; expected the given numbers of the exercise")
    title = raw.get("title", "An exercise")
    example = parse(givens_source(raw, str(title), raw["x"], _table("weights", raw["weights"])))
    if missing := [name for name in example.weights if name not in example.stated]:
        raise ValueError(f"weights.{missing[0]} is missing; expected the given numbers of the exercise")
    blanks = read_blanks(table["blank"], example.trace())
    digits = table["digits"]
    sheet = Exercise(example, str(table.get("example", "")), table["seed"], blanks, digits, 10.0**-digits, {})
    points = {name: _to_points(value) for name, value in _table("exercise.points", table.get("points", {})).items()}
    student = table.get("student", "")
    if not isinstance(student, str):
        raise ValueError(f"exercise.student is {short_repr(student)}; expected a name in quotes")
    givens = {key: value for key, value in raw.items() if key not in _NAMES_OF_TABLES}
    return AnswerFile(with_points(sheet, points), student.strip(), _read_claims(raw.get("claims", [])), givens)


def _table(name: str, raw: object) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise ValueError(f"{name} is {short_repr(raw)}; expected a table, [{name}]")
    return raw


def _to_points(value: object) -> Any:
    return float(value) if isinstance(value, Decimal) else value


def _read_claims(raw: object) -> dict[StepKey, object]:
    """Return the values of each claim, by step and head."""
    if not isinstance(raw, list):
        raise ValueError(f"claims is {short_repr(raw)}; expected tables, [[claims]]")
    answers: dict[StepKey, object] = {}
    for position, claim in enumerate(raw, 1):
        if not isinstance(claim, Mapping):
            raise ValueError(f"claim {position} is {short_repr(claim)}; expected a table, [[claims]]")
        head = claim.get("head")
        key = (str(claim.get("step")), head - 1 if type(head) is int else None)
        if key in answers:
            raise ValueError(f"claim {position} ({key[0]}): answers this step again; expected one answer")
        answers[key] = claim.get("values")
    return answers
