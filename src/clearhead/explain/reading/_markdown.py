"""Blocks of Markdown documents, parsed by markdown-it-py, with LaTeX formulas as blocks."""

from __future__ import annotations

import re
from typing import Any

from markdown_it import MarkdownIt

from clearhead.explain.reading._blocks import Block, Heading, Paragraph, Table
from clearhead.explain.reading._html_tables import read_html
from clearhead.explain.reading._inline import is_sentence, read_sentences
from clearhead.explain.reading._latex import read_latex
from clearhead.explain.reading._plain import read_lines

_FRONT_MATTER = re.compile(r"\A---\r?\n(.{0,20000}?)\r?\n---[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_TITLE = re.compile(r"^title:[ \t]*[\"']?(.*?)[\"']?[ \t]*$", re.MULTILINE)
_FORMULA_LANGUAGES = ("math", "latex", "tex", "katex")
MAX_FORMULA_LINES = 500


def read_markdown_document(text: str) -> list[Block]:
    """Return the headings, paragraphs and tables of a Markdown text, with their lines."""
    blocks: list[Block] = []
    if matter := _FRONT_MATTER.match(text):
        if title := _TITLE.search(matter[1]):
            blocks.append(Heading(1, 0, title[1]))
        text = "\n" * matter[0].count("\n") + text[matter.end() :]
    parser = MarkdownIt("commonmark").enable("table").disable("inline")
    parser.block.ruler.before("table", "formula", _formula_block, {"alt": ["paragraph", "reference", "blockquote"]})
    return blocks + _Tokens(parser.parse(text)).blocks()


def _formula_block(state: Any, start: int, end: int, silent: bool) -> bool:
    r"""Read `$$ … $$`, `\[ … \]` and `\begin{…} … \end{…}` as one block: a rule of markdown-it-py."""
    if state.is_code_block(start):
        return False
    first = state.src[state.bMarks[start] + state.tShift[start] : state.eMarks[start]]
    opening = re.match(r"\$\$|\\\[|\\begin\{(\w{1,20}\*?)\}", first)
    if opening is None:
        return False
    closing = {"$$": "$$", "\\[": "\\]"}.get(opening[0], f"\\end{{{opening[1]}}}")
    last = min(end, start + MAX_FORMULA_LINES) - 1
    begin = state.bMarks[start] + state.tShift[start] + len(opening[0])
    close = state.src.find(closing, begin, state.eMarks[last])  # bounded, because each line may open a formula
    if close < 0:
        return False
    if silent:
        return True
    state.line = start + 1
    while state.eMarks[state.line - 1] < close:
        state.line += 1
    token = state.push("formula", "", 0)
    token.content = state.getLines(start, state.line, state.blkIndent, False)
    token.map = [start, state.line]
    return True


class _Tokens:
    """Reader of the tokens of markdown-it-py."""

    def __init__(self, tokens: list[Any]) -> None:
        self.tokens = tokens
        self.list_lines: list[tuple[int, str]] = []  # of a list without blank lines, whose items may be rows
        self.result: list[Block] = []

    def blocks(self) -> list[Block]:
        rows: list[list[str]] = []
        table_line = 0
        for position, token in enumerate(self.tokens):
            line = token.map[0] + 1 if token.map else 1
            if token.type == "table_open":
                self._end_list()
                rows, table_line = [], line
            elif token.type == "tr_open":
                rows.append([])
            elif token.type == "table_close":
                self.result.append(Table(table_line, tuple(map(tuple, rows)), has_header=True))
            elif token.type == "inline":
                parent = self.tokens[position - 1]
                if parent.type in ("th_open", "td_open"):
                    rows[-1].append(token.content)
                elif parent.type == "heading_open":
                    self._end_list()
                    self.result.append(Heading(line, int(parent.tag[1:]), token.content))
                elif parent.type == "paragraph_open" and parent.hidden:
                    self.list_lines.append((line, token.content))
                else:
                    self._end_list()
                    self.result += _read_text(token.content, line)
            elif token.type in ("formula", "fence", "code_block", "html_block"):
                self._end_list()
                self.result += _read_block(token, line)
        self._end_list()
        return self.result

    def _end_list(self) -> None:
        if self.list_lines:
            self.result += _read_text("\n".join(text for _, text in self.list_lines), self.list_lines[0][0])
            self.list_lines = []


def _read_block(token: Any, line: int) -> list[Block]:
    if token.type == "formula":
        return read_latex(token.content, line)
    if token.type == "html_block":
        if "<table" in token.content.lower():
            return read_html(token.content, line)
        return [Paragraph(line, token.content)] if re.search(r">[^<]*\w", token.content) else []
    language = token.info.strip().split(" ")[0].lower() if token.info else ""
    first_line = line + (token.type == "fence")
    if language in _FORMULA_LANGUAGES or "\\begin{" in token.content:
        return read_latex(token.content, first_line)
    return read_lines(token.content, first_line, in_code=True)


def _read_text(text: str, line: int) -> list[Block]:
    if "\\begin{" in text:
        return read_latex(text, line)
    if is_sentence(text):
        return read_sentences(text, line)
    if re.search(r"\[\s*\[|[:=≈]\s*\[|[=≈]\s*\((?=[^()A-Za-z]{1,400},)[^()A-Za-z]{2,800}\)", text):
        blocks = read_lines(text, line, in_code=False)
        if any(isinstance(block, Table) for block in blocks):
            return blocks
    return [Paragraph(line, text)]
