"""Steps of a calculation in order, each with its formula, its operands and its cost."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from clearhead._utils.checks import check_int
from clearhead.nn.head import check_head_indices

# in the order in which they come; slice only where heads see slices, masked only where there is a mask
STEP_NAMES = (
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
SCORE_STEPS = ("scores", "scaled", "masked", "weights")  # a row for each query, a column for each key

StepKey = tuple[str, int | None]  # a step and its head, from 0; None for a step of all heads
Axis = Literal["token", "memory", "dimension"]  # of a matrix's rows or columns
Marks = Literal["row", "column", "cell", "all"]
Operation = Literal["input", "given", "partly", "slice", "product", "scaled", "masked", "softmax", "concat", "other"]


@dataclass(frozen=True, eq=False)
class Operand:
    """A matrix that a step reads. Cell (i, j) of the result is made of row i of it, or column j, or cell (i, j).

    `shift` is added to j first: a slice's first column is the third of X, and so on.
    """

    symbol: str
    latex: str
    values: Float[Tensor, "rows columns"]
    rows: Axis
    columns: Axis
    marks: Marks
    shift: int = 0
    new: bool = False  # a learned matrix or a mask, which no step before has shown


@dataclass(frozen=True, eq=False)
class Step:
    """One matrix of the calculation, how it was made and what that cost."""

    name: str
    head: int | None  # counted from 0; None where all heads take part. Typeset they count from 1
    formula: str
    latex: str
    shapes: str  # a sentence such as "(8, 2) × (2, 8) / √2 = (8, 8)"
    values: Float[Tensor, "rows columns"]
    multiply_adds: int = 0
    weights: int = 0  # how many learned numbers took part
    rows: Axis = "token"
    columns: Axis = "dimension"
    operands: tuple[Operand, ...] = ()
    how: Operation = "other"
    scaling: str = ""  # what "scaled" does to each number, such as "/ √2"

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.values.shape
        return rows, columns

    @property
    def symbol(self) -> str:
        """The left side of the formula, or all of it if it has none."""
        return self.formula.split(" = ")[0]

    @property
    def latex_symbol(self) -> str:
        return self.latex.split(" = ")[0]

    def as_operand(self, marks: Marks, shift: int = 0) -> Operand:
        """Return this step's matrix as an operand of a later step."""
        return Operand(self.symbol, self.latex_symbol, self.values, self.rows, self.columns, marks, shift)


@dataclass(frozen=True, eq=False)
class Trace:
    """All steps of one calculation, in order."""

    steps: tuple[Step, ...]
    tokens: tuple[str, ...]
    memory_tokens: tuple[str, ...]  # what keys and values belong to: the same as `tokens` in self-attention
    heads: int

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)

    def step(self, name: str, head: int | None = None) -> Step:
        """Return one step by its name, and its head (from 0) if each head has one."""
        steps = self.named(name)
        if not steps:
            raise ValueError(f"step {name!r} does not occur in this calculation")
        if steps[0].head is None:
            return steps[0]
        if head is None and len(steps) > 1:
            raise ValueError(f"step {name!r} occurs once for each of {len(steps)} heads; give head")
        [index] = check_head_indices("head", 0 if head is None else check_int("head", head, least=0), len(steps))
        return steps[index]

    def named(self, name: str) -> list[Step]:
        """Return all steps of a name: one, or one for each head, or none."""
        if name not in STEP_NAMES:
            raise ValueError(f"step is {name!r}; expected one of {', '.join(STEP_NAMES)}")
        return [step for step in self.steps if step.name == name]

    def select(self, names: Collection[str] = (), heads: Collection[int] = ()) -> Trace:
        """Select steps by name and by head (from 0); an empty choice selects all."""
        for name in names:
            if not self.named(name):
                raise ValueError(f"step {name!r} does not occur in this calculation")
        for head in heads:
            if not 0 <= head < self.heads:
                raise ValueError(f"head {head + 1} does not occur: this calculation has {self.heads}, counted from 1")
        chosen = [
            step for step in self.steps if step.name in (names or STEP_NAMES) and (not heads or step.head in heads)
        ]
        if not chosen:
            raise ValueError(f"no head has a step {' or '.join(names)} of its own; leave the head out")
        return replace(self, steps=tuple(chosen))

    def labels(self, axis: Axis, count: int) -> tuple[str, ...]:
        """Return the labels of rows or columns."""
        if axis == "dimension":
            return tuple(str(index) for index in range(1, count + 1))
        return self.tokens if axis == "token" else self.memory_tokens

    @property
    def output(self) -> Float[Tensor, "q_len output_dim"]:
        return self.steps[-1].values
