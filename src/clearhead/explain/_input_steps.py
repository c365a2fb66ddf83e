"""Steps that make the input of a layer: embedding, positions, input and memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from jaxtyping import Float
from torch import Tensor

from clearhead.explain._layer_steps import shape_text, with_given
from clearhead.explain.steps import Operand, Step, StepKey


@dataclass(frozen=True, eq=False)
class InputParts:
    """Matrices that the input X is made of: the rows of the tokens, and positions that are added to them."""

    rows: Float[Tensor, "tokens d_model"]  # without positions
    table: Float[Tensor, "vocabulary d_model"] | None = None  # embedding table that the rows are looked up in
    vocabulary: tuple[str, ...] = ()  # tokens of the table
    positions: Float[Tensor, "tokens d_model"] | None = None
    sinusoidal: bool = False  # positions are sines and cosines, not stated numbers

    @property
    def x(self) -> Float[Tensor, "tokens d_model"]:
        """Input of the layer."""
        return self.rows if self.positions is None else self.rows + self.positions

    def steps(self) -> Iterator[Step]:
        """Yield the embedding and the positions, if positions are added, and the input."""
        if self.positions is None:
            yield self._looked_up("input", "X")
            return
        rows = self._looked_up("embedding", "E")
        yield rows
        formula, latex = ("P", "P") if not self.sinusoidal else ("P = sinusoidal", "P = \\text{sinusoidal}")
        positions = Step("positions", None, formula, latex, shape_text(self.positions), self.positions, how="input")
        positions = replace(positions, origin="computed" if self.sinusoidal else "input")
        yield positions
        shape = shape_text(self.x)
        operands = (rows.as_operand("cell"), positions.as_operand("cell"))
        yield Step(
            "input",
            None,
            "X = E + P",
            "X = E + P",
            f"{shape} + {shape} = {shape}",
            self.x,
            operands=operands,
            how="sum",
        )

    def _looked_up(self, name: str, symbol: str) -> Step:
        """Return the rows of the tokens, from the table if there is one."""
        step = Step(name, None, symbol, symbol, shape_text(self.rows), self.rows, how="input", origin="input")
        if self.table is None:
            return step
        table = Operand("W_E", "W_{E}", self.table, "vocabulary", "dimension", "column", new=True)
        return replace(
            step,
            formula=f"{symbol} = W_E[tokens]",
            latex=f"{symbol} = W_{{E}}[\\text{{tokens}}]",
            shapes=f"{len(self.rows)} rows of {shape_text(self.table)} = {shape_text(self.rows)}",
            weights=self.table.numel(),
            operands=(table,),
            how="lookup",
            origin="computed",
        )


def input_steps(parts: InputParts, memory: Tensor | None, given: dict[StepKey, Tensor]) -> Iterator[Step]:
    """Yield the steps up to the input X, and the memory Z if keys and values are computed from it."""
    for step in parts.steps():
        yield with_given(step, given)
    if memory is not None:
        step = Step("memory", None, "Z", "Z", shape_text(memory), memory, rows="memory", how="input", origin="input")
        yield with_given(step, given)
