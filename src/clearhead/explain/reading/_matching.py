"""Matching of matrices to steps and heads. Ambiguities become questions with the assumption that was made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from clearhead._utils.text import visible_text
from clearhead.explain._claims import BIASES, CLAIMABLE_MATRICES, KEY_HEAD_MATRICES, SHARED_MATRICES
from clearhead.explain.reading._contexts import MatrixContext
from clearhead.explain.reading._grids import Grid
from clearhead.explain.reading._markup import plain_text
from clearhead.explain.reading._prose import Statements

LEAVE_OUT = "leave out"
STEP_WORDS = {
    "input": "input X",
    "slice": "slice of X",
    "query": "queries",
    "key": "keys",
    "value": "values",
    "scores": "scores",
    "scaled": "scaled scores",
    "masked": "masked scores",
    "weights": "attention weights",
    "head_output": "head output",
    "concat": "concatenated heads",
    "output": "output",
    "mask": "mask",
    "query_weight": "W_Q",
    "key_weight": "W_K",
    "value_weight": "W_V",
    "output_weight": "W_O",
    "query_bias": "bias of the queries",
    "key_bias": "bias of the keys",
    "value_bias": "bias of the values",
    "output_bias": "bias of the output",
    "embedding": "embeddings",
    "positions": "positional encoding",
    "memory": "memory",
}
_SPLIT_BY_COLUMNS = ("query_weight", "key_weight", "value_weight", "query", "key", "value", *BIASES[:3])
_SCORE_SHAPED = ("scores", "scaled", "masked", "weights", "mask")


@dataclass(frozen=True)
class Question:
    """An ambiguity of a text: which step a matrix belongs to, and what was assumed."""

    matrix: int  # position among the matrices of the text, counted from 1
    line: int
    text: str
    choices: tuple[str, ...]  # such as "query 1": a step and its head, counted from 1
    assumed: str | None  # one of the choices, or None if the matrix is left out


@dataclass(frozen=True)
class MatchedMatrix:
    """A matrix with its step and head, counted from 1."""

    grid: Grid  # transposed as the step requires
    step: str
    head: int | None
    line: int
    description: str
    row: int | None = None  # of a single vector, counted from 1; its cells are one row


def choice_text(step: str, head: int | None) -> str:
    """Return a step and its head as one of the choices of a question."""
    return step if head is None else f"{step} {head}"


def step_name(step: str, head: int | None) -> str:
    """Return a step and its head in words, such as "queries of head 1"."""
    return STEP_WORDS[step] if head is None else f"{STEP_WORDS[step]} of head {head}"


class Matcher:
    """Matcher of the matrices of one text, in their order."""

    def __init__(self, contexts: list[MatrixContext], statements: Statements, answers: Mapping[int, str]) -> None:
        self.contexts, self.statements, self.answers = contexts, statements, answers
        self.matched: list[MatchedMatrix] = []
        self.left_out: list[tuple[MatrixContext, str]] = []
        self.questions: list[Question] = []
        printed = {context.head for context in contexts if context.head is not None}
        self.first_head = 0 if 0 in printed else 1
        self.first_row = 0 if any(context.row == 0 for context in contexts) else 1
        self.whole = [context for context in contexts if context.row is None]
        self.tokens, self.width = self._input_shape()
        self.contexts = [self._with_memory(context) for context in self.contexts]
        self.whole = [context for context in self.contexts if context.row is None]
        memories = [context.grid.shape[0] for context in self.whole if context.steps[:1] == ("memory",)]
        self.key_tokens = memories[0] if memories else self.tokens
        self.heads = self._count_heads({head - self.first_head + 1 for head in printed})
        self.key_heads = self._count_key_heads()
        self.explicit = {
            (context.steps[0], self._head(context)) for context in self.whole if len(context.steps) == 1
        }  # steps and heads that one matrix names without doubt

    def match(self) -> None:
        """Match every matrix, or leave it out with a question."""
        for position, context in enumerate(self.contexts, 1):
            answer = self.answers.get(position)
            if answer is not None:
                self._take_answer(position, context, answer)
            else:
                self._match(position, context)

    def _input_shape(self) -> tuple[int | None, int | None]:
        for step in ("input", "embedding"):
            for context in self.whole:
                if context.steps == (step,):
                    return _upright_shape(context)
        return None, None

    def _with_memory(self, context: MatrixContext) -> MatrixContext:
        """Return M or H as the memory if W_K can be applied to it, and its shape is not that of X or of a mask."""
        rows, columns = context.grid.shape
        symbol = plain_text(context.grid.symbols[0]) if context.grid.symbols else ""
        inputs = {other.grid.shape[0] for other in self.whole if other.steps == ("key_weight",)}
        if self.tokens in (None, rows) or symbol not in ("M", "H") or inputs != {columns}:
            return context
        is_certain = columns != self.width or context.steps == ("memory",)
        return replace(context, steps=("memory",) if is_certain else ("memory", *(context.steps or ("input",))))

    def _count_heads(self, printed: set[int]) -> int:
        stated = self.statements.heads
        largest = max(printed, default=0)
        if largest:
            return max(largest, stated[0]) if len(stated) == 1 and stated[0] <= 2 * largest else largest
        divisible = [count for count in stated if count > 1 and self.width and self.width % count == 0]
        names = [context.steps[0] for context in self.whole if len(context.steps) == 1]
        for count in divisible:
            repeated = any(names.count(step) == count for step in ("query", "query_weight", "weights", "scores"))
            whole = any(
                context.steps[0] in _SPLIT_BY_COLUMNS and context.grid.shape[1] == self.width and not repeated
                for context in self.whole
                if len(context.steps) == 1
            )
            if repeated or (whole and "concat" in names):
                return count
        return 1

    def _count_key_heads(self) -> int:
        """Return the number of heads of K and V, which is smaller where heads share them."""
        counts = []
        for step in KEY_HEAD_MATRICES:
            printed = [context for context in self.whole if context.steps == (step,)]
            counts.append(max([len(printed), *(self._head(context) or 0 for context in printed)]))
        count = max(counts)
        return count if self.statements.grouped and 0 < count < self.heads and self.heads % count == 0 else self.heads

    def _head(self, context: MatrixContext) -> int | None:
        return None if context.head is None else context.head - self.first_head + 1

    def _match(self, position: int, context: MatrixContext) -> None:
        head = self._head(context)
        if head is not None and head > self.heads:
            head = None
        steps = self._plausible_steps(context, head)
        if not steps:
            self._ask_unknown(position, context)
            return
        step = steps[0]
        if step == "positions" and self._is_taken(step, None, context) and self._fits("weights", context):
            step, steps = "weights", ["weights"]  # P is also the name of the probabilities
        if step in SHARED_MATRICES:
            head = None
        elif head is None and self.heads == 1:
            head = 1
        if self.key_heads < self.heads and step in KEY_HEAD_MATRICES:
            same = [other for other in self.whole if other.steps[:1] == (step,)]
            head = head or (same.index(context) + 1 if context in same and len(same) == self.key_heads else None)
        if head is None and step not in SHARED_MATRICES:
            self._match_without_head(position, context, step)
            return
        if context.row is not None and self.tokens is not None and context.row - self.first_row >= self.tokens:
            self._ask(position, context, [(step, head)], certain=False)
            return
        if not context.is_named and self._is_taken(step, head, context):
            self._ask_unknown(position, context)
            return
        if len(steps) > 1:
            self._ask(position, context, [(step, None if step in SHARED_MATRICES else head) for step in steps])
        self._add(context, step, head)

    def _is_taken(self, step: str, head: int | None, context: MatrixContext) -> bool:
        """Return whether another matrix with other numbers has this step and head."""
        if step == "input" and any(matrix.step == "positions" for matrix in self.matched):
            return False  # the input with and without positions
        return any(
            (matrix.step, matrix.head) == (step, head) and matrix.grid.cells != context.grid.cells
            for matrix in self.matched
        )

    def _plausible_steps(self, context: MatrixContext, head: int | None) -> list[str]:
        """Return the candidates in the order of likelihood; a single one is certain."""
        steps = list(context.steps)
        if self.statements.unscaled:  # then there is no step of scaled scores
            steps = list(dict.fromkeys("scores" if step == "scaled" else step for step in steps))
        if len(steps) < 2 or steps[0] == "memory":
            return steps
        steps = [step for step in steps if self._fits(step, context)] or steps
        if set(steps) == {"head_output", "output"}:
            has_output_weight = ("output_weight", None) in self.explicit
            if head is not None or not has_output_weight:
                steps = ["head_output"] if head is not None or self.heads == 1 else ["output"]
            elif self.heads > 1:
                steps = ["output"]
        if steps == ["weights", "positions"]:
            has_weights = ("weights", head) in self.explicit or ("weights", None) in self.explicit
            steps = ["positions"] if self.statements.positions and has_weights else ["weights"]
        if set(steps) == {"scores", "scaled"}:
            named = {step for step, of_head in self.explicit if step in steps and of_head == head}
            if len(named) == 1:
                steps = [step for step in steps if step not in named]
            elif context.mentions_scaling:
                steps = ["scaled"]
        if context.row is not None:  # other rows of the same matrix do not exclude a step
            return steps
        used = {(matrix.step, matrix.head) for matrix in self.matched} | self.explicit
        free = [step for step in steps if not {(step, head), (step, head or 1), (step, None)} & used]
        return free or steps

    def _fits(self, step: str, context: MatrixContext) -> bool:
        """Return whether the shape of a matrix is possible for a step."""
        rows, columns = _upright_shape(context)
        if self.tokens is None or self.width is None or context.row is not None:
            return True
        if step in _SCORE_SHAPED:
            return (rows, columns) == (self.tokens, self.key_tokens)
        if step in BIASES:
            return 1 in (rows, columns)
        if step.endswith("_weight"):
            return step == "output_weight" or rows in (self.width, self.width // self.heads)
        if step in ("key", "value"):
            return rows == self.key_tokens
        if step == "memory":
            return True
        return rows == self.tokens and (step not in ("input", "embedding", "positions") or columns == self.width)

    def _match_without_head(self, position: int, context: MatrixContext, step: str) -> None:
        """Match a matrix of one head that does not name its head."""
        grid = _upright_grid(context, step)
        columns = grid.shape[1]
        same = [other for other in self.whole if other.steps[:1] == (step,) and other.head is None]
        if context.row is None and len(same) == self.heads:
            head = 1 + same.index(context)
            self._ask(position, context, [(step, head)])
            self._add(context, step, head)
        elif context.row is None and step in _SPLIT_BY_COLUMNS and columns % self.heads == 0 and columns == self.width:
            size = columns // self.heads
            for head in range(self.heads):
                part = tuple(row[head * size : (head + 1) * size] for row in grid.cells)
                columns_text = f"columns {head * size + 1} to {(head + 1) * size} of {context.description}"
                self._append(replace(grid, cells=part, columns=()), context, step, head + 1, columns_text)
        elif context.row is None and step == "head_output" and columns == self.width:
            self._add(context, "concat", None)
        else:
            free = [
                head
                for head in range(1, self.heads + 1)
                if not any((matrix.step, matrix.head) == (step, head) for matrix in self.matched)
            ]
            self._ask(position, context, [(step, head) for head in free or range(1, self.heads + 1)], certain=False)

    def _ask(
        self, position: int, context: MatrixContext, choices: list[tuple[str, int | None]], *, certain: bool = True
    ) -> None:
        """Add a question. Without a `certain` assumption the matrix is left out."""
        names = [step_name(step, head) for step, head in choices]
        options = tuple(choice_text(step, head) for step, head in choices)
        if len(choices) == 1 and not certain:
            text = f"{_what(context)} is of token {context.row}, but X has {self.tokens} rows; left out of the check"
        elif len(choices) == 1:
            text = f"{_what(context)} does not name its head; assumed {names[0]}"
        elif certain:
            text = f"{_what(context)} could be the {' or the '.join(names)}; assumed {names[0]}"
        else:
            text = f"{_what(context)} could be the {' or the '.join(names)}; left out of the check"
        if not certain:
            self.left_out.append((context, "head not named"))
        question = Question(position, context.grid.line, text, options, options[0] if certain else None)
        self.questions.append(question)

    def _ask_unknown(self, position: int, context: MatrixContext) -> None:
        if not context.is_named and context.grid.shape[1] == 1 and context.grid.columns:
            return  # a table of other data, such as names and ages
        steps = [step for step in CLAIMABLE_MATRICES if self._fits(step, context)]
        heads: list[int | None] = [*range(1, self.heads + 1)]
        options = tuple(
            choice_text(step, head) for step in steps for head in ([None] if step in SHARED_MATRICES else heads)
        )
        text = f"{_what(context)} is not named; left out of the check"
        self.left_out.append((context, "step not named"))
        self.questions.append(Question(position, context.grid.line, text, options, None))

    def _take_answer(self, position: int, context: MatrixContext, answer: str) -> None:
        if answer == LEAVE_OUT:
            self.left_out.append((context, "left out on request"))
            return
        step, _, head_text = answer.partition(" ")
        is_shared = step in SHARED_MATRICES
        head = None if is_shared else int(head_text) if head_text.isdecimal() and len(head_text) < 4 else 1
        if step not in CLAIMABLE_MATRICES or (head_text and (is_shared or not head_text.isdecimal())):
            raise ValueError(
                f"answers: matrix {position} is {answer!r}; expected a step and its head, such as 'query 1', "
                f"or {LEAVE_OUT!r}"
            )
        if head is not None and not 1 <= head <= self.heads:
            raise ValueError(f"answers: head of matrix {position} is {head}; expected 1 to {self.heads}")
        self._add(context, step, head)

    def _add(self, context: MatrixContext, step: str, head: int | None) -> None:
        grid = _upright_grid(context, step)
        self._append(grid, context, step, head, context.description)

    def _append(self, grid: Grid, context: MatrixContext, step: str, head: int | None, description: str) -> None:
        row = None if context.row is None else context.row - self.first_row + 1
        self.matched.append(MatchedMatrix(grid, step, head, context.grid.line, description, row))


def _upright_grid(context: MatrixContext, step: str) -> Grid:
    """Return a matrix as the step requires it. A bias is a row, also where the text prints a column."""
    is_column = step in BIASES and context.grid.shape[1] == 1
    return context.grid.transpose() if context.transposed or is_column else context.grid


def _upright_shape(context: MatrixContext) -> tuple[int, int]:
    rows, columns = context.grid.shape
    return (columns, rows) if context.transposed else (rows, columns)


def _what(context: MatrixContext) -> str:
    rows, columns = context.grid.shape
    near = visible_text(context.description[:60])
    return f"the {rows} × {columns} matrix" + (f' under "{near}"' if context.description else "")
