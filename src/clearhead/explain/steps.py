"""Steps of a calculation, each with its formula, operands and cost."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from clearhead._utils.checks import check_int
from clearhead.nn.head import check_head_indices

# in order; embedding and positions occur only if they are added, memory in cross-attention, slice with split="slice",
# scaled unless the scores are used unscaled, masked with a mask
STEP_NAMES = (
    "embedding",
    "positions",
    "input",
    "memory",
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

StepKey = tuple[str, int | None]  # a step and its head, counted from 0; None for a step of all heads
KEY_HEAD_STEPS = ("key", "value")  # computed once for all query heads that share a key head
Axis = Literal["token", "memory", "vocabulary", "dimension"]  # meaning of a matrix's rows or columns
Marks = Literal["row", "column", "cell", "all"]
Operation = Literal[
    "input", "lookup", "sum", "given", "partly", "slice", "product", "scaled", "masked", "softmax", "concat", "other"
]


@dataclass(frozen=True, eq=False)
class Operand:
    """A matrix that a step reads.

    Cell (i, j) of the result depends on row i, column j, cell (i, j) or all cells of the operand, as `marks` specifies.
    `shift` is added to j first: the first column of a slice can be the third column of X.
    """

    symbol: str
    latex: str
    values: Float[Tensor, "rows columns"]
    rows: Axis
    columns: Axis
    marks: Marks
    shift: int = 0
    new: bool = False  # a learned matrix or a mask, which is not the result of an earlier step


@dataclass(frozen=True, eq=False)
class Step:
    """One matrix of the calculation, with its formula, operands and cost."""

    name: str
    head: int | None  # counted from 0, but from 1 in output; the key head of key and value; None for all heads
    formula: str
    latex: str
    shapes: str  # such as "(8, 2) × (2, 8) / √2 = (8, 8)"
    values: Float[Tensor, "rows columns"]
    multiply_adds: int = 0
    weights: int = 0  # number of learned parameters that the step uses
    rows: Axis = "token"
    columns: Axis = "dimension"
    operands: tuple[Operand, ...] = ()
    how: Operation = "other"
    scaling: str = ""  # operation of the step "scaled" on each number, such as "/ √2"

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.values.shape
        return rows, columns

    @property
    def symbol(self) -> str:
        """Left side of the formula, or the whole formula if it has no left side."""
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
    memory_tokens: tuple[str, ...]  # tokens of keys and values; equal to `tokens` in self-attention
    heads: int
    group: int = 1  # number of query heads that share a key head
    vocabulary: tuple[str, ...] = ()  # tokens of the embedding table

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)

    def step(self, name: str, head: int | None = None) -> Step:
        """Return one step by name, and by head (counted from 0) if each head has one."""
        steps = self.named(name)
        if not steps:
            raise ValueError(f"step {name!r} does not occur in this calculation")
        if steps[0].head is None:
            return steps[0]
        if head is None and len(steps) > 1:
            raise ValueError(f"step {name!r} occurs once for each of {len(steps)} heads; pass head")
        [index] = check_head_indices("head", 0 if head is None else check_int("head", head, least=0), len(steps))
        return steps[index]

    def named(self, name: str) -> list[Step]:
        """Return all steps with a name: one, one for each head, or an empty list."""
        if name not in STEP_NAMES:
            raise ValueError(f"step is {name!r}; expected one of {', '.join(STEP_NAMES)}")
        return [step for step in self.steps if step.name == name]

    def select(self, names: Collection[str] = (), heads: Collection[int] = ()) -> Trace:
        """Select steps by name and by head (counted from 0). An empty collection selects all."""
        for name in names:
            if not self.named(name):
                raise ValueError(f"step {name!r} does not occur in this calculation")
        for head in heads:
            if not 0 <= head < self.heads:
                raise ValueError(f"head {head + 1} does not occur; expected 1 to {self.heads}, counted from 1")
        key_heads = {head // self.group for head in heads}
        chosen = [
            step
            for step in self.steps
            if step.name in (names or STEP_NAMES)
            and (not heads or step.head in (key_heads if step.name in KEY_HEAD_STEPS else heads))
        ]
        if not chosen:
            raise ValueError(f"step {' or '.join(names)} is shared by all heads; leave the head out")
        return replace(self, steps=tuple(chosen))

    def labels(self, axis: Axis, count: int) -> tuple[str, ...]:
        """Return the labels of rows or columns."""
        if axis == "dimension":
            return tuple(str(index) for index in range(1, count + 1))
        return {"token": self.tokens, "memory": self.memory_tokens, "vocabulary": self.vocabulary}[axis]

    @property
    def output(self) -> Float[Tensor, "q_len output_dim"]:
        """Matrix of the last step."""
        return self.steps[-1].values
