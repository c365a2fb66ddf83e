"""A claimed matrix with new errors, and what is necessary to search for their cause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from math import isinf

from jaxtyping import Bool, Float
from torch import Tensor

from clearhead._utils.text import short_token
from clearhead.explain._claims import KEY_HEAD_MATRICES, SHARED_MATRICES, head_count
from clearhead.explain._error_propagation import CellIndex, agree
from clearhead.explain._printed_matrix import PrintedMatrix
from clearhead.explain._recompute import OPERANDS, Recomputation
from clearhead.explain.example import Example
from clearhead.explain.steps import Axis, StepKey

_LABEL_COLUMNS = 16


@dataclass(frozen=True, eq=False)
class WrongMatrix:
    """A claimed matrix with new errors, and the values from which its author may have started."""

    example: Example
    step: str
    head: int | None
    symbol: str
    claimed: PrintedMatrix
    tolerance: Float[Tensor, "rows columns"]
    new_errors: Bool[Tensor, "rows columns"]  # every written cell if the shape is wrong
    starts: Sequence[Recomputation]  # calculations without the mistake, the exact one first
    printed: frozenset[StepKey]  # earlier matrices that the text prints completely
    axes: tuple[Axis, Axis]
    labels: tuple[Sequence[str], Sequence[str]]

    @property
    def exact(self) -> Recomputation:
        """Calculation from the stated numbers, without rounding."""
        return self.starts[0]

    @cached_property
    def computed(self) -> Float[Tensor, "rows columns"]:
        return self.exact.matrix(self.step, self.head or 0)

    @property
    def shape_is_wrong(self) -> bool:
        return tuple(self.computed.shape) != self.claimed.shape

    @property
    def written(self) -> Bool[Tensor, "rows columns"]:
        return ~self.claimed.blank

    @property
    def heads(self) -> range:
        return range(self.example.heads)

    @property
    def other_heads(self) -> list[int]:
        count = head_count(self.step, self.example.heads, self.example.kv_heads)
        return [head for head in range(count) if head != self.head]

    def other_key_heads(self) -> list[tuple[int, str]]:
        """Return the key heads that this head does not use, and the words for each."""
        heads, kv_heads = self.example.heads, self.example.kv_heads
        if self.head is None:
            return []
        noun = "head" if kv_heads == heads else "key head"
        used = self.head if self.step in KEY_HEAD_MATRICES else self.head * kv_heads // heads
        return [(index, f"{noun} {index + 1}") for index in range(kv_heads) if index != used]

    @cached_property
    def reachable(self) -> frozenset[str]:
        """Steps between this matrix and the nearest earlier matrices that the text prints."""
        names, waiting = {self.step}, [self.step]
        while waiting:
            for operand in OPERANDS.get(waiting.pop(), ()):
                if operand not in names and not self._is_printed(operand):
                    names.add(operand)
                    waiting.append(operand)
        return frozenset(names)

    def _is_printed(self, name: str) -> bool:
        if name in SHARED_MATRICES:
            return (name, None) in self.printed
        if self.head is not None:
            heads = [self.head]
        else:
            heads = range(head_count(name, self.example.heads, self.example.kv_heads))
        if name in KEY_HEAD_MATRICES and self.step not in KEY_HEAD_MATRICES and self.head is not None:
            heads = [self.example.key_head(self.head)]
        return all((name, head) in self.printed for head in heads)

    def matches(self, result: Float[Tensor, "rows columns"]) -> Bool[Tensor, "rows columns"]:
        """Return the written cells that equal a result to their printed digits."""
        # both ways, because a very large number on one side would count every difference as float64 rounding
        claimed = self.claimed.values
        return agree(claimed, result, self.tolerance) & agree(result, claimed, self.tolerance)

    def label(self, axis: int, index: int) -> str:
        """Return the label of a row (axis 0) or column (axis 1): a token in quotes, or a number."""
        if self.shape_is_wrong or self.axes[axis] == "dimension":
            return str(index + 1)
        return f'"{short_token(self.labels[axis][index], _LABEL_COLUMNS)}"'

    def describe_cell(self, cell: CellIndex) -> str:
        """Return a cell's row and column in words."""
        return f"row {self.label(0, cell[0])}, column {self.label(1, cell[1])}"

    def printed_cell(self, cell: CellIndex) -> str:
        """Return a cell as the text prints it."""
        return self.claimed.printed[cell[0]][cell[1]].replace("Infinity", "∞")

    def rounded_like(self, cell: CellIndex, value: float) -> str:
        """Return a number with as many digits as the text prints in a cell."""
        if isinf(value):
            return "∞" if value > 0 else "-∞"
        exponent = Decimal(self.claimed.printed[cell[0]][cell[1]]).as_tuple().exponent
        text = f"{value:.{max(0, -exponent) if isinstance(exponent, int) else 2}f}"
        return text.lstrip("-") if float(text) == 0 else text
