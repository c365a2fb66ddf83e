"""Steps of a calculation, each with its formula, operands and cost."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from jaxtyping import Bool, Float
from torch import Tensor

from clearhead._utils.checks import check_int
from clearhead._utils.text import count_noun
from clearhead.explain._layer_options import LayerOptions
from clearhead.nn.head import check_head_indices

# in order; the steps of ABSENT_STEPS occur in some calculations only
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
# reasons why a step does not occur
ABSENT_STEPS = {
    "embedding": "no positions are added, so the rows of the tokens are the input",
    "positions": "no positions are added to the input",
    "memory": "the keys and the values are computed from X",
    "slice": "every head reads all of X",
    "scaled": "the scores are not scaled",
    "masked": "there is no mask",
}
MASK = "mask"  # M, which is an operand of "masked" and can be selected as a step
SCORE_STEPS = ("scores", "scaled", "masked", "weights")  # a row for each query, a column for each key

StepKey = tuple[str, int | None]  # a step and its head, counted from 0; None for a step of all heads
KEY_HEAD_STEPS = ("key", "value")  # computed once for all query heads that share a key head
Axis = Literal["token", "memory", "vocabulary", "dimension"]  # meaning of a matrix's rows or columns
Marks = Literal["row", "column", "cell", "all"]
COUNTING = "Heads, rows and columns are counted from 1."
Operation = Literal[
    "input", "lookup", "sum", "given", "partly", "slice", "product", "scaled", "masked", "softmax", "concat", "other"
]


def key_head(head: int, heads: int, kv_heads: int) -> int:
    """Return the key head that a query head uses, both counted from 0."""
    return head * kv_heads // heads


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
    first_column: int = 0  # of some columns of X or Z: the first of them, counted from 0
    origin: str = ""  # source of the numbers, such as "drawn at random (seed 5)"
    hidden: Bool[Tensor, "rows columns"] | None = None  # weights that are 0 because of the mask


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
    factor: float | None = None  # of the step "scaled": each score is multiplied by it
    origin: str = ""  # source of the numbers, such as "computed"
    note: str = ""  # sentence about this step in this example
    hidden: Bool[Tensor, "rows columns"] | None = None  # weights that are 0 because of the mask

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
        return Operand(
            self.symbol,
            self.latex_symbol,
            self.values,
            self.rows,
            self.columns,
            marks,
            shift,
            origin=self.origin,
            hidden=self.hidden,
        )


@dataclass(frozen=True, eq=False)
class Trace:
    """All steps of one calculation, in order.

    Attributes:
        steps: the steps, or a selection of them.
        tokens: labels of the queries.
        memory_tokens: labels of keys and values; equal to `tokens` in self-attention.
        heads: number of heads.
        all_steps: all steps of the calculation, of which `steps` may be a selection.
        positions: position of each of `steps` among all steps, counted from 1.
        head_name: name of the only head, such as "cross.2.5", if it is one of a model.
        counting: sentence about the counting of heads, rows and columns in every output.
        visible: indices of the rows or columns to show of a matrix that is too large (default: the first and last).
        cells: rows and columns, counted from 0, whose arithmetic is shown (default: one sample of each step).
        options: rotation, norms and softcap of the layer.
    """

    steps: tuple[Step, ...]
    tokens: tuple[str, ...]
    memory_tokens: tuple[str, ...]
    heads: int
    group: int = 1  # number of query heads that share a key head
    vocabulary: tuple[str, ...] = ()  # tokens of the embedding table
    all_steps: tuple[Step, ...] = ()
    positions: tuple[int, ...] = ()
    head_name: str = ""
    counting: str = COUNTING
    visible: Mapping[Axis, Collection[int]] = field(default_factory=dict)
    cells: Mapping[StepKey, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    options: LayerOptions = field(default_factory=LayerOptions)

    def __post_init__(self) -> None:
        if not self.all_steps:
            object.__setattr__(self, "all_steps", self.steps)
            object.__setattr__(self, "positions", tuple(range(1, len(self.steps) + 1)))

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)

    def numbered(self) -> Iterator[tuple[int, Step]]:
        """Yield each step with its position among all steps, counted from 1."""
        return zip(self.positions, self.steps, strict=True)

    @property
    def kv_heads(self) -> int:
        """Number of key heads, each shared by `group` query heads."""
        return self.heads // self.group

    @property
    def is_whole(self) -> bool:
        """True if no steps were left out by `select`."""
        return len(self.steps) == len(self.all_steps)

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
        if name not in STEP_NAMES and all(step.name != name for step in self.all_steps):
            raise ValueError(f"step is {name!r}; expected one of {', '.join((*STEP_NAMES, MASK))}{_advice(name)}")
        return [step for step in self.steps if step.name == name]

    def select(self, names: Collection[str] = (), heads: Collection[int] = ()) -> Trace:
        """Select steps by name and by head (counted from 0). An empty collection selects all.

        Steps keep their positions. The name "mask" selects M, the mask of the step "masked".
        """
        for name in names:
            if name == MASK and not self.named("masked"):
                raise ValueError("step 'mask' does not occur in this calculation, which has no mask")
            if name != MASK and not self.named(name):
                raise ValueError(f"step {name!r} does not occur in this calculation")
        for head in heads:
            if not 0 <= head < self.heads:
                raise ValueError(f"head {head + 1} does not occur; expected 1 to {self.heads}, counted from 1")
        key_heads = {key_head(head, self.heads, self.kv_heads) for head in heads}
        chosen: list[tuple[int, Step]] = []
        for position, step in self.numbered():
            if heads and step.head not in (key_heads if step.name in KEY_HEAD_STEPS else heads):
                continue
            if step.name == "masked" and MASK in names:
                mask = _mask_step(step)
                if not any(other.name == MASK and other.values.equal(mask.values) for _, other in chosen):
                    chosen.append((position, mask))
            if not names or step.name in names:
                chosen.append((position, step))
        if not chosen:
            raise ValueError(f"step {' or '.join(names)} is shared by all heads; leave the head out")
        positions, steps = zip(*chosen, strict=True)
        return replace(self, steps=steps, positions=positions)

    def select_cells(self, addresses: Sequence[str], heads: Sequence[int] = ()) -> Trace:
        """Select the steps of some cells, whose arithmetic is then shown in every format.

        Args:
            addresses: step, head, row and column of each cell, counted from 1, such as "weights:1,3" or
                "weights.2:1,3".
            heads: heads of addresses without a head, counted from 0 (default: the only head).
        """
        from clearhead.explain._cells import select_cells  # imports this module

        return select_cells(self, addresses, heads)

    def labels(self, axis: Axis, count: int) -> tuple[str, ...]:
        """Return the labels of rows or columns."""
        if axis == "dimension":
            return tuple(str(index) for index in range(1, count + 1))
        return {"token": self.tokens, "memory": self.memory_tokens, "vocabulary": self.vocabulary}[axis]

    @property
    def output(self) -> Float[Tensor, "q_len output_dim"]:
        """Matrix of the last step."""
        return self.steps[-1].values

    def __repr__(self) -> str:
        names = ", ".join(dict.fromkeys(step.name for step in self.steps))
        return (
            f"Trace({count_noun(len(self), 'step')}, {count_noun(len(self.tokens), 'token')},"
            f" {count_noun(self.heads, 'head')}: {names})"
        )

    def _repr_html_(self) -> str:
        from clearhead.explain.render.formats import render  # imports this module
        from clearhead.explain.render.notebooks import page_html

        return page_html(self, lambda style: render(self, style), "A worked example")


def _mask_step(masked: Step) -> Step:
    """Return M, which the step "masked" adds."""
    [mask] = (operand for operand in masked.operands if operand.symbol == "M")
    rows, columns = mask.values.shape
    return Step(
        MASK,
        None,
        mask.symbol,
        mask.latex,
        f"({rows}, {columns})",
        mask.values,
        rows=mask.rows,
        columns=mask.columns,
        how="input",
        origin=mask.origin,
    )


def _advice(name: str) -> str:
    """Return which step another name stands for in many texts."""
    meant = {"softmax": "weights", "attention": "weights", "logits": "scores", "queries": "query", "keys": "key"}
    meant |= {"values": "value", "q": "query", "k": "key", "v": "value", "m": MASK, "x": "input", "y": "output"}
    return f"; did you mean {meant[name.lower()]!r}?" if name.lower() in meant else ""
