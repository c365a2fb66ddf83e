"""Drafts of worked examples, read from texts in Markdown or LaTeX."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from clearhead._utils.checks import check_path, describe
from clearhead._utils.text import visible_text
from clearhead.explain.example import Example
from clearhead.explain.reading._agreement import agreeing_answers, is_decidable
from clearhead.explain.reading._blocks import Heading
from clearhead.explain.reading._calculation import Calculation
from clearhead.explain.reading._contexts import MatrixContext, Unreadable, read_contexts
from clearhead.explain.reading._latex import read_latex_document
from clearhead.explain.reading._markdown import read_markdown_document
from clearhead.explain.reading._markup import plain_text
from clearhead.explain.reading._matching import LEAVE_OUT, Matcher, Question, step_name
from clearhead.explain.reading._prose import Statements, read_statements
from clearhead.explain.reading._vectors import join_vectors
from clearhead.explain.reading._writing import draft_text
from clearhead.explain.toml_format import parse, read_bounded

__all__ = ["LEAVE_OUT", "Draft", "Question", "load_draft", "parse_draft"]

LATEX_SUFFIX = ".tex"
MAX_LETTERS = 2**19  # of a text; a worked example is far shorter
MAX_TITLE_LETTERS = 200


@dataclass(frozen=True)
class Draft:
    """A worked example read from a text: a TOML file to edit, with the questions that the text leaves open."""

    name: str  # of the text
    toml: str
    questions: tuple[Question, ...]
    notes: tuple[str, ...]  # sentences about what cannot be checked, or was assumed

    def example(self) -> Example:
        """Return the worked example of the draft.

        Raises:
            ValueError: the matrices of the text do not fit together.
        """
        try:
            return parse(self.toml)
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from None

    def question_lines(self) -> list[str]:
        """Return each question and each note as one line."""
        questions = [f"{self.name}, line {question.line}: {question.text}" for question in self.questions]
        return [*questions, *self.notes]


def load_draft(path: str | os.PathLike[str], *, answers: Mapping[int, str] | None = None) -> Draft:
    """Read a text in Markdown or LaTeX, and match its matrices to the steps of attention.

    Tables and LaTeX matrices are matched by their symbols, captions, sentences and headings.

    Args:
        path: a `.md`, `.markdown` or `.tex` file.
        answers: steps and heads of matrices by their position in the text, counted from 1, such as `{3: "query 1"}`,
            or "leave out". They answer the `questions` of an earlier draft.

    Raises:
        ValueError: the file cannot be read, or does not print an input X.
    """
    file = Path(check_path("path", path))
    try:
        text = read_bounded(file).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{file}: not a text file (it is not UTF-8)") from None
    return parse_draft(text, name=file.name, answers=answers)


def parse_draft(text: str, *, name: str = "text.md", answers: Mapping[int, str] | None = None) -> Draft:
    r"""Read a text as `load_draft` does. A `name` that ends in `.tex` makes it a LaTeX document.

    Examples:
        >>> draft = parse_draft("$$X = \\begin{bmatrix} 1 & 0 \\\\ 0 & 1 \\end{bmatrix}$$")
        >>> draft.example().x.tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    for label, value in (("text", text), ("name", name)):
        if not isinstance(value, str):
            raise TypeError(f"{label} is {describe(value)}; expected a string")
    name = visible_text(name)
    if len(text) > MAX_LETTERS:
        raise ValueError(f"{name}: {len(text):,} letters; expected at most {MAX_LETTERS:,}, a worked example")
    draft, contexts = _read(text, name, answers)
    decidable = [question for question in draft.questions if is_decidable(question)]
    if not decidable:
        return draft
    others = {**(answers or {}), **{question.matrix: LEAVE_OUT for question in decidable}}
    try:
        example = _read(text, name, others)[0].example()
    except ValueError:  # the matrices do not fit together, which `Draft.example` reports
        return draft
    first_row = 0 if any(context.row == 0 for context in contexts) else 1
    parts = [(question, contexts[question.matrix - 1]) for question in decidable]
    agreeing = agreeing_answers(
        example,
        [(question, part.grid, None if part.row is None else part.row - first_row) for question, part in parts],
    )
    return _read(text, name, {**(answers or {}), **agreeing})[0] if agreeing else draft


def _read(text: str, name: str, answers: Mapping[int, str] | None) -> tuple[Draft, list[MatrixContext]]:
    """Read a text, and return its draft and its matrices."""
    is_latex = name.lower().endswith(LATEX_SUFFIX)
    blocks = read_latex_document(text) if is_latex else read_markdown_document(text)
    statements = read_statements(blocks)
    entries = list(read_contexts(blocks))
    contexts = join_vectors([entry for entry in entries if isinstance(entry, MatrixContext)])
    matcher = Matcher(contexts, statements, _check_answers(answers, len(contexts)))
    matcher.match()
    try:
        calculation = Calculation(matcher.matched, matcher.heads, matcher.key_heads, statements)
    except LookupError:
        raise ValueError(f"{name}: {_without_input(matcher)}") from None
    except ValueError as error:
        raise ValueError(f"{name}, {error}") from None
    scaling, notes = _scaling(calculation, statements)
    notes += [f"line {entry.line}: {entry.reason}; the table is left out" for entry in entries
              if isinstance(entry, Unreadable)]  # fmt: skip
    notes += [f"line {line}: {note}" if line else note for line, note in calculation.notes]
    titles = [plain_text(block.text) for block in blocks if isinstance(block, Heading)]
    toml = draft_text(
        calculation,
        name=name,
        title=(titles[0][:MAX_TITLE_LETTERS] if titles else "") or name,
        scaling=scaling,
        left_out=matcher.left_out,
    )
    draft = Draft(name, toml, tuple(matcher.questions), tuple(f"{name}, {note}" for note in notes))
    return draft, contexts


def _check_answers(answers: object, count: int) -> Mapping[int, str]:
    if answers is None:
        return {}
    if not isinstance(answers, Mapping):
        raise TypeError(f"answers is {describe(answers)}; expected a dict from positions to steps")
    for position, answer in answers.items():
        if not isinstance(position, int) or not 1 <= position <= count or not isinstance(answer, str):
            raise ValueError(
                f"answers has {position!r}: {answer!r}; expected a position from 1 to {count} and a step, as 'query 1'"
            )
    return answers


def _without_input(matcher: Matcher) -> str:
    if not matcher.contexts:
        return "no matrices; expected Markdown tables, LaTeX matrices or lines of numbers, one of them the input X"
    names = [f"{step_name(matrix.step, matrix.head)} (line {matrix.line})" for matrix in matcher.matched[:4]]
    listed = ": " + ", ".join([*names, "…"] if len(matcher.matched) > 4 else names) if names else ""
    count = len(matcher.contexts)
    matrices = "1 matrix" if count == 1 else f"{count} matrices"
    return f'{matrices}{listed}, but no input X; expected a matrix named X, or one under a heading such as "Input"'


def _scaling(calculation: Calculation, statements: Statements) -> tuple[list[str], list[str]]:
    """Return the lines of the draft about scaling, and the notes about them."""
    tokens, width = calculation.x.grid.shape
    columns = {
        matrix.grid.shape[1]
        for step in ("query_weight", "key_weight")
        for matrix in calculation.weights.get(step, [])
        if matrix is not None
    } | {matrix.grid.shape[1] for (step, _), matrix in calculation.given.items() if step in ("query", "key")}
    if statements.unscaled:
        return ['scale = "none"  # the text leaves the scaling out'], []
    unusual = [count for count in statements.key_dims if count not in (*columns, tokens, width)]
    if len(unusual) == 1 and len(statements.key_dims) == 1 and columns:
        note = f"the text divides by √{unusual[0]}, but its keys have other columns; assumed d_k = {unusual[0]}"
        return [f"d_k = {unusual[0]}  # the text divides by √{unusual[0]}"], [note]
    return [], []
