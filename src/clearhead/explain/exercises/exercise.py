"""An exercise: an example with new numbers, some of whose steps are left blank."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from clearhead._utils.checks import check_float, check_int, check_path, describe
from clearhead.explain._claims import SHARED_MATRICES, suggestion
from clearhead.explain.example import Example
from clearhead.explain.exercises._drawing import redraw
from clearhead.explain.render.wording import format_matrix
from clearhead.explain.steps import ABSENT_STEPS, STEP_NAMES, Step, StepKey, Trace
from clearhead.explain.toml_format import load

MAX_DIGITS = 6
MAX_BLANK_CELLS = 2000
_COMPUTED_STEPS = STEP_NAMES[STEP_NAMES.index("slice") :]  # all before are given
# a step -> the later step that repeats its numbers
_COPIES = {"scaled": "masked", "head_output": "concat"}


@dataclass(frozen=True, eq=False)
class Exercise:
    """A calculation whose blank steps a student computes. Solutions are not stored, but computed when needed."""

    example: Example  # the given numbers, without claims
    name: str  # name of the example that the exercise was made from
    seed: int
    blanks: tuple[StepKey, ...]  # in the order of the calculation; heads are counted from 0
    digits: int  # after the decimal point, of every answer and every printed number
    tolerance: float  # largest accepted difference
    points: Mapping[str, float]  # points for a step of all heads (default: one for each cell)

    @property
    def title(self) -> str:
        return self.example.title

    @cached_property
    def trace(self) -> Trace:
        """Every step with its exact numbers, including the solutions."""
        return self.example.trace()

    @cached_property
    def steps(self) -> dict[StepKey, Step]:
        """Steps that are computed from the given numbers, by name and head."""
        return {(step.name, step.head): step for step in self.trace if step.name in _COMPUTED_STEPS}

    @cached_property
    def withheld(self) -> frozenset[StepKey]:
        """Steps that are not blank, but not shown either, because they repeat the numbers of a blank step."""
        blank_names = {name for name, _ in self.blanks}
        copies = {copy for name, copy in _COPIES.items() if name in blank_names}
        return frozenset(
            key
            for key, step in self.steps.items()
            if key not in self.blanks
            and (key[0] in copies or any(key[0] == name and step.values.equal(self.steps[name, head].values)
                                         for name, head in self.blanks))
        )  # fmt: skip

    @property
    def shown(self) -> tuple[StepKey, ...]:
        """Steps whose numbers are printed."""
        return tuple(key for key in self.steps if key not in self.blanks and key not in self.withheld)

    def printed(self, key: StepKey) -> list[list[str]]:
        """Return the numbers of a shown step as printed, with at most `digits` digits. −∞ is "-∞"."""
        return format_matrix(self.steps[key].values, self.digits)

    def possible_points(self, key: StepKey) -> float:
        """Return the points for one blank matrix. Configured points are divided among the heads of a step."""
        cells = self.steps[key].values.numel()
        if key[0] not in self.points:
            return float(cells)
        return self.points[key[0]] * cells / sum(self.steps[name, head].values.numel()
                                                 for name, head in self.blanks if name == key[0])  # fmt: skip

    def blank_names(self) -> list[str]:
        """Return the blank steps as `exercise()` takes them: "weights", or "weights:1" for a single head."""
        names: list[str] = []
        for name in dict.fromkeys(name for name, _ in self.blanks):
            heads = [head for blank, head in self.blanks if blank == name]
            whole = len(heads) == len(self.trace.named(name))
            names += [name] if whole else [f"{name}:{head + 1}" for head in heads if head is not None]
        return names


def exercise(
    example: Example | str | os.PathLike[str],
    blank: str | Sequence[str] = ("weights",),
    *,
    seed: int = 0,
    digits: int = 2,
    points: Mapping[str, float] | None = None,
) -> Exercise:
    """Make an exercise from an example: new numbers, and blanks for some steps.

    Shapes, heads, split, mask and tokens are those of the example. Input and weights are drawn from the seed.

    Args:
        example: an `Example`, the path of a TOML file, or the name of a built-in example.
        blank: steps to leave blank, such as `("query", "weights:1")`, or the same as one text, "query,weights:1".
            Heads are counted from 1; without a head, the step is blank in all heads.
        seed: seed of the new numbers.
        digits: digits after the decimal point that answers need. An answer may differ from the unrounded number by one
            unit of the last digit.
        points: points for a step, such as `{"weights": 6}` (default: one point for each cell).

    Examples:
        >>> sheet = exercise("two-heads", "weights,output", seed=7)
        >>> sheet.blanks
        (('weights', 0), ('weights', 1), ('output', None))
    """
    example = example if isinstance(example, Example) else load(check_path("example", example))
    name = Path(example.name).stem or example.title
    seed = check_int("seed", seed, least=0)
    digits = check_int("digits", digits, least=1, most=MAX_DIGITS)
    blanks = read_blanks(blank, example.trace_without_given())
    new = Exercise(redraw(example, seed), name, seed, blanks, digits, 10.0**-digits, {})
    return with_points(new, {} if points is None else points)


def check_exercise(exercise: object) -> None:
    """Raise if the argument `exercise` is not an `Exercise`."""
    if not isinstance(exercise, Exercise):
        raise TypeError(f"exercise is {describe(exercise)}; expected an Exercise")


def with_points(exercise: Exercise, points: Mapping[str, float]) -> Exercise:
    """Return the exercise with points for some steps. Every step must be blank."""
    if not isinstance(points, Mapping):
        raise TypeError(f"points is {describe(points)}; expected a mapping from steps to points")
    names = dict.fromkeys(name for name, _ in exercise.blanks)
    for name, value in points.items():
        if name not in names:
            raise ValueError(f"points has {describe(name)}, which is not a blank step; {suggestion(str(name), names)}")
        if check_float(f"points for {name}", value) <= 0:
            raise ValueError(f"points for {name} is {describe(value)}; expected a number above 0")
    return Exercise(
        exercise.example,
        exercise.name,
        exercise.seed,
        exercise.blanks,
        exercise.digits,
        exercise.tolerance,
        {name: float(value) for name, value in points.items()},
    )


def read_blanks(blank: str | Sequence[str], trace: Trace) -> tuple[StepKey, ...]:
    """Return the blank steps in the order of the calculation."""
    if not isinstance(blank, str | list | tuple):
        raise TypeError(f"blank is {describe(blank)}; expected names of steps")
    entries = blank.split(",") if isinstance(blank, str) else blank
    chosen = {key for entry in entries for key in _blank_keys(entry, trace)}
    if not chosen:
        raise ValueError("blank is empty; expected at least one step, such as weights")
    keys = [(step.name, step.head) for step in trace]
    cells = sum(step.values.numel() for step in trace if (step.name, step.head) in chosen)
    if cells > MAX_BLANK_CELLS:
        raise ValueError(f"{cells:,} cells would be blank; expected at most {MAX_BLANK_CELLS:,}")
    return tuple(key for key in keys if key in chosen)


def _blank_keys(entry: object, trace: Trace) -> Iterable[StepKey]:
    if not isinstance(entry, str):
        raise TypeError(f"blank has {describe(entry)}; expected the name of a step, such as 'weights' or 'weights:1'")
    name, colon, head = (part.strip() for part in entry.partition(":"))
    if name not in _COMPUTED_STEPS:
        raise ValueError(f"blank has {name!r}; {suggestion(name, _COMPUTED_STEPS)}")
    steps = trace.named(name)
    if not steps:
        raise ValueError(f"blank has {name!r}, but this calculation has no such step: {ABSENT_STEPS[name]}")
    if not colon:
        return [(name, step.head) for step in steps]
    if name in SHARED_MATRICES:
        raise ValueError(f"blank has {entry!r}, but there is one {name} for all heads; leave the head out")
    if not head.isdecimal() or not 1 <= int(head) <= len(steps):
        raise ValueError(f"blank has {entry!r}; expected a head from 1 to {len(steps)}, counted from 1")
    return [(name, int(head) - 1)]
