"""Worked examples as Markdown and LaTeX documents."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from clearhead._utils.text import visible_text
from clearhead.explain.render.wording import (
    DEFAULT_DIGITS,
    format_matrix,
    short_label,
    step_cost,
    step_heading,
    step_sentence,
)
from clearhead.explain.steps import Operand, Step, Trace

_MARKDOWN_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~$&<>-])")
_LATEX_ESCAPES = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "−": "$-$",
    "∞": r"$\infty$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "…": r"\dots{}",
    "→": r"$\to$",
    '"': r"\textquotedbl{}",
} | {letter: f"\\{letter}" for letter in "&%$#_{}"}
_PREAMBLE = r"""\documentclass{article}
\usepackage{iftex}
\ifPDFTeX
  \usepackage[T1]{fontenc}
  \IfFileExists{lmodern.sty}{\usepackage{lmodern}}{}
\else
  \usepackage{fontspec}
\fi
\usepackage{amsmath}
\usepackage{graphicx}
\usepackage[margin=25mm]{geometry}
\setlength{\parindent}{0pt}
\raggedbottom
\newsavebox{\matrixbox}
% scale down a matrix that is wider than the page
\newcommand{\fitted}[1]{\sbox{\matrixbox}{#1}%
  \ifdim\wd\matrixbox>\linewidth\resizebox{\linewidth}{!}{\usebox{\matrixbox}}\else\usebox{\matrixbox}\fi}
"""


def as_markdown(trace: Trace, title: str, digits: int = DEFAULT_DIGITS) -> str:
    """Return Markdown with tables and `$$` formulas, which GitHub and notebooks support."""
    parts = [f"# {escape_markdown(title)}"]
    for count, step in enumerate(trace, 1):
        parts += [
            f"## {count}. {step_heading(step, trace)}",
            f"$$\n{step.latex}\n$$",
            f"{step_sentence(step)} {_shapes_and_cost(step)}.",
        ]
        parts += [_markdown_table(trace, matrix, digits) for matrix in _displayed_matrices(step)]
    return "\n\n".join(parts) + "\n"


def as_latex(trace: Trace, title: str, digits: int = DEFAULT_DIGITS) -> str:
    """Return a complete LaTeX document. Non-Latin tokens require LuaLaTeX or XeLaTeX, and a font for them."""
    parts = [_PREAMBLE + f"\\title{{{_escape_latex(title)}}}\n\\date{{}}\n\\begin{{document}}\n\\maketitle"]
    for count, step in enumerate(trace, 1):
        shapes = re.sub(r"√([\d.]+)", r"$\\sqrt{\1}$", _escape_latex(_shapes_and_cost(step)))
        parts += [
            f"\\filbreak\n\\section*{{{count}. {_escape_latex(step_heading(step, trace))}}}\n\\nopagebreak",
            f"\\[ {step.latex} \\]\n\\nopagebreak",
            f"{_escape_latex(step_sentence(step))} {shapes}.\\nopagebreak",
        ]
        parts += [_latex_table(trace, matrix, digits) for matrix in _displayed_matrices(step)]
    return "\n\n".join([*parts, "\\end{document}\n"])


def _displayed_matrices(step: Step) -> Iterator[tuple[str, Step | Operand]]:
    """Yield a step's learned matrices and its result, each with its LaTeX symbol."""
    for operand in step.operands:
        if operand.new:
            yield operand.latex, operand
    yield step.latex_symbol, step


def _shapes_and_cost(step: Step) -> str:
    costs = step_cost(step)
    return f"{step.shapes}; {costs}" if costs else step.shapes


def _table_rows(
    trace: Trace, matrix: Step | Operand, digits: int, escape: Callable[[str], str]
) -> tuple[list[str], list[list[str]]]:
    """Return the column labels, and the rows, each of which starts with its label."""
    count, width = matrix.values.shape
    labels = [escape(label) for label in trace.labels(matrix.rows, count)]
    columns = [escape(label) for label in trace.labels(matrix.columns, width)]
    return columns, [[label, *row] for label, row in zip(labels, format_matrix(matrix.values, digits), strict=True)]


def _markdown_table(trace: Trace, named_matrix: tuple[str, Step | Operand], digits: int) -> str:
    symbol, matrix = named_matrix
    columns, rows = _table_rows(trace, matrix, digits, escape_markdown)
    lines = [[f"${symbol}$", *columns], [":--", *["--:"] * len(columns)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _latex_table(trace: Trace, named_matrix: tuple[str, Step | Operand], digits: int) -> str:
    symbol, matrix = named_matrix
    columns, rows = _table_rows(trace, matrix, digits, lambda token: _escape_latex(short_label(token)))
    head = " & ".join([f"${symbol}$", *columns])
    body = " \\\\\n".join(" & ".join([label, *(f"${_latex_number(cell)}$" for cell in row)]) for label, *row in rows)
    table = f"\\begin{{tabular}}{{l|{'r' * len(columns)}}}\n{head} \\\\ \\hline\n{body}\n\\end{{tabular}}"
    return f"\\begin{{center}}\\fitted{{%\n{table}}}\\end{{center}}"


def _latex_number(cell: str) -> str:
    return cell.replace("∞", "\\infty")


def _escape_latex(text: str) -> str:
    return "".join(_LATEX_ESCAPES.get(letter, letter) for letter in visible_text(text))


def escape_markdown(text: str) -> str:
    """Return a text on one line with Markdown's and HTML's special characters escaped."""
    return (
        _MARKDOWN_SPECIAL.sub(r"\\\1", visible_text(text))
        .replace("\\<", "&lt;")
        .replace("\\>", "&gt;")
        .replace("\\&", "&amp;")
    )
