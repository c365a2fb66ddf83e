r"""LaTeX matrices and tables: `\begin{bmatrix}`, `array`, `tabular` and others, with the formula around them."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from clearhead.explain.reading._blocks import Block, Heading, Paragraph, Table
from clearhead.explain.reading._markup import plain_text
from clearhead.explain.reading._symbols import read_formula

_TABULAR = {"tabular", "tabular*", "tabularx", "longtable", "array"}  # take a column specification
_MATRIX = {f"{kind}{name}" for kind in ("", "p", "b", "B", "v", "V") for name in ("matrix", "matrix*", "smallmatrix")}
_ENVIRONMENT = re.compile(r"\\(begin|end)\s*\{(\w{1,20}\*?)\}")
_FLOAT = re.compile(r"\\begin\s*\{(table\*?|figure\*?)\}(.{0,8000}?)\\end\s*\{\1\}", re.DOTALL)
_CAPTION = re.compile(r"\\caption\*?\s*(?:\[[^\]]{0,200}\])?\{((?:[^{}]|\{[^{}]*\}){0,1000})\}")
_HEADING = re.compile(
    r"\\(part|chapter|section|subsection|subsubsection|paragraph|subparagraph|title)\*?\s*"
    r"(?:\[[^\]]{0,200}\])?\{((?:[^{}]|\{[^{}]*\}){0,1000})\}"
)
_LEVELS = ("title", "part", "chapter", "section", "subsection", "subsubsection", "paragraph", "subparagraph")
_COMMENT = re.compile(r"(?<!\\)%.*")
_BREAK = re.compile(r"\n\s*\n|\$+|\\[\[\]()]|\\\\|\\(?:begin|end|intertext|item)\b(?:\s*\{\w*\*?\})?|\\q?quad\b|[,;]\s")
_ARGUMENTS = re.compile(r"\([^()$&\n]{0,300}\)")
_COMMA = re.compile(r"([,;])[ \t]")
_ROW_END = re.compile(r"\\\\\*?(?:\s*\[[^\[\]]{0,20}\])?|\\tabularnewline\b|\\cr\b")
_RULE = re.compile(r"\\(?:hline|toprule|midrule|bottomrule|cline\{[^{}]*\}|cmidrule(?:\([^()]*\))?\{[^{}]*\})")
_EQUALS = re.compile(r"(?<![<>!:≤≥])=|\\approx\b|≈|:=|\\coloneqq\b")
_UNDERBRACE = re.compile(r"\\(?:under|over)(?:brace|set)\{?\s*([\ue000-\uf8ff])\s*\}?\s*[_^]\{([^{}]{1,60})\}")
_FACTOR = re.compile(r"[A-Z]\d{0,2}(?:[_^](?:\{[^{}]*\}|\w))*")
_FIRST_MARK = 0xE000  # private characters stand for the matrices of a formula
MAX_MATRICES = 0x1000


@dataclass(frozen=True)
class _Span:
    """Positions of one matrix environment in a text."""

    start: int
    body: int
    body_end: int
    end: int
    name: str


def read_latex_document(text: str) -> list[Block]:
    """Return the blocks of a LaTeX document, without its preamble and comments."""
    text = _COMMENT.sub("", text)
    start = re.search(r"\\begin\s*\{document\}", text)
    blocks: list[Block] = []
    if start:
        blocks += [block for block in read_latex(text[: start.start()], 1) if _is_title(block)]
    offset = start.end() if start else 0
    return blocks + read_latex(text[offset:], 1 + text.count("\n", 0, offset))


def _is_title(block: Block) -> bool:
    return isinstance(block, Heading) and block.level == 0


def read_latex(text: str, line: int) -> list[Block]:
    """Return the headings, paragraphs and matrices of a text that starts on `line`."""
    text = re.sub("[\ue000-\uf8ff]", " ", text)  # these characters stand for matrices below
    text = _ARGUMENTS.sub(lambda match: _COMMA.sub(r"\1~", match[0]), text)  # a comma between arguments ends no formula
    newlines = [match.start() for match in re.finditer("\n", text)]
    captions = [
        (match.start(), match.end(), plain_text(caption[1]))
        for match in _FLOAT.finditer(text)
        if (caption := _CAPTION.search(match[2]))
    ]
    text_without_captions = _CAPTION.sub(lambda match: " " * len(match[0]), text) if captions else text

    def line_at(position: int) -> int:
        return line + bisect_right(newlines, position - 1)

    blocks: list[Block] = []
    position = 0
    for spans in _formulas(text_without_captions, _matrix_spans(text_without_captions)):
        start, prefix = spans[0].start, ""
        if spans[0].name not in _TABULAR or spans[0].name == "array":
            breaks = [match.end() for match in _BREAK.finditer(text_without_captions, position, start)]
            prefix_start = breaks[-1] if breaks else position
            prefix, start = text_without_captions[prefix_start:start], prefix_start
        blocks += _text_blocks(text_without_captions[position:start], position, line_at)
        caption = next((text for first, last, text in captions if first <= spans[0].start < last), "")
        position = _formula_end(text_without_captions, spans[-1].end)
        gaps = [text_without_captions[left.end : right.start] for left, right in pairwise(spans)]
        formula = prefix + "".join(
            chr(_FIRST_MARK + index) + gap
            for index, gap in enumerate([*gaps, text_without_captions[spans[-1].end : position]])
        )
        lines = [line_at(span.start) for span in spans]
        blocks += _formula_tables(formula, [_rows(text, span) for span in spans], lines, caption)
    blocks += _text_blocks(text_without_captions[position:], position, line_at)
    return blocks


def _matrix_spans(text: str) -> list[_Span]:
    """Return the innermost matrix environments. Unbalanced ones are left out."""
    spans: list[_Span] = []
    stack: list[tuple[str, int, int]] = []
    for match in _ENVIRONMENT.finditer(text):
        if match[1] == "begin":
            stack.append((match[2], match.start(), match.end()))
        elif stack and stack[-1][0] == match[2]:
            name, start, body = stack.pop()
            if name in _TABULAR or name in _MATRIX:
                while spans and spans[-1].start > start:
                    spans.pop()
                spans.append(_Span(start, body, match.start(), match.end(), name))
        elif match[2] in _TABULAR or match[2] in _MATRIX:
            stack.clear()
        if len(spans) >= MAX_MATRICES:
            break
    return spans


def _formulas(text: str, spans: list[_Span]) -> Iterator[list[_Span]]:
    """Group the matrices between which a formula continues."""
    group: list[_Span] = []
    for span in spans:
        if group and (span.name == "tabular" or _BREAK.search(text, group[-1].end, span.start)):
            yield group
            group = []
        group.append(span)
    if group:
        yield group


def _formula_end(text: str, position: int) -> int:
    end = _BREAK.search(text, position)
    return min(end.start() if end else len(text), position + 200)


def _rows(text: str, span: _Span) -> tuple[tuple[str, ...], ...]:
    body = text[span.body : span.body_end]
    if span.name in _TABULAR or span.name.endswith("*"):
        body = _without_arguments(body, 2 if span.name in ("tabularx", "tabular*") else 1)
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)&", row)] for row in _ROW_END.split(_RULE.sub("", body))]
    return tuple(tuple(row) for row in rows if any(row))


def _without_arguments(body: str, count: int) -> str:
    """Remove the optional position and the column specification, whose braces may be nested."""
    body = re.sub(r"^\s*\[[^\[\]]{0,20}\]", "", body)
    for _ in range(count):
        if not body.lstrip().startswith("{"):
            break
        depth = 0
        for position, letter in enumerate(body[:1000]):
            depth += (letter == "{") - (letter == "}")
            if depth == 0 and letter == "}":
                body = body[position + 1 :]
                break
        else:
            break
    return body


def _formula_tables(
    formula: str, matrices: list[tuple[tuple[str, ...], ...]], lines: list[int], caption: str
) -> Iterator[Table]:
    """Yield the matrices that a formula sets equal to a symbol, and the named factors of a product."""
    braces = {match[1]: match[2] for match in _UNDERBRACE.finditer(formula)}
    sides = _EQUALS.split(_UNDERBRACE.sub(r"\1", formula))
    symbols = tuple(side for side in sides if plain_text(side).strip("&[]{} ") and not _marks(side))
    for position, side in enumerate(sides):
        marks = _marks(side)
        rest = re.sub(r"[\[\](){}|.,;&\s]|\\[a-z]*", "", plain_text(re.sub("[\ue000-\uf8ff]", "", side)))
        names: list[tuple[str, ...]]
        if marks and all(mark in braces and read_formula(braces[mark]) for mark in marks):
            names = [(braces[mark],) for mark in marks]
        elif len(marks) == 1 and rest in ("", "^T", ":"):
            names = [symbols]
        else:  # a product: the side before it may name the factors
            names = [(factor,) for factor in _FACTOR.findall(plain_text(sides[position - 1]))] if position else []
            if len(names) != len(marks) or len(marks) < 2:
                continue
        for mark, named in zip(marks, names, strict=True):
            index = ord(mark) - _FIRST_MARK
            if index < len(matrices) and matrices[index]:
                yield Table(lines[index], matrices[index], named, caption, transposed="^T" in rest)


def _marks(side: str) -> list[str]:
    return re.findall("[\ue000-\uf8ff]", side)


def _text_blocks(text: str, offset: int, line_at: Callable[[int], int]) -> Iterator[Block]:
    """Yield the headings and paragraphs of a text without matrices."""
    position = 0
    for heading in _HEADING.finditer(text):
        yield from _paragraphs(text[position : heading.start()], offset + position, line_at)
        yield Heading(line_at(offset + heading.start()), _LEVELS.index(heading[1]), heading[2])
        position = heading.end()
    yield from _paragraphs(text[position:], offset + position, line_at)


def _paragraphs(text: str, offset: int, line_at: Callable[[int], int]) -> Iterator[Paragraph]:
    position = 0
    for part in re.split(r"(\n\s*\n|\\\[|\\\]|\$\$)", text):
        content = _ENVIRONMENT.sub(" ", part)
        if re.search(r"\w", content):
            start = position + len(part) - len(part.lstrip())
            yield Paragraph(line_at(offset + start), content.strip())
        position += len(part)
