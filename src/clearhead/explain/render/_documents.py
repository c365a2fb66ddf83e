"""Worked examples as Markdown and LaTeX documents."""

from __future__ import annotations

import re
from collections.abc import Callable

from clearhead._utils.text import visible_text
from clearhead.explain.render._arithmetic import arithmetic_lines
from clearhead.explain.render._formula import cost_sentences, whole_formula
from clearhead.explain.render._layout import GAP, HIDDEN, Layout, View, new_matrices
from clearhead.explain.render.wording import DEFAULT_DIGITS, short_label, step_cost, step_heading, step_sentence
from clearhead.explain.steps import Step, Trace

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
    "ᵀ": r"$^{\top}$",
    '"': r"\textquotedbl{}",
} | {letter: f"\\{letter}" for letter in "&%$#_{}"}
PREAMBLE = r"""\documentclass{article}
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
    layout = Layout(trace, new_matrices)
    formulas = [f"$$\n{latex}\n$$" for _, latex in whole_formula(trace)]
    parts = [f"# {escape_markdown(title)}", *formulas, escape_markdown(trace.counting)]
    for position, step in trace.numbered():
        parts += [
            f"## {position}. {step_heading(step, trace)}",
            f"$$\n{step.latex}\n$$",
            f"{step_sentence(step, trace)} {_shapes_and_cost(step)}.".strip(),
            *(f"${line}$" for line in arithmetic_lines(step, trace, digits, latex=True)),
        ]
        for matrix in new_matrices(step):
            view = layout.view(matrix, digits)
            parts += [f"${view.latex}$ {view.caption}", _markdown_table(view)]
    return "\n\n".join([*parts, *cost_sentences(trace)]) + "\n"


def as_latex(trace: Trace, title: str, digits: int = DEFAULT_DIGITS) -> str:
    """Return a complete LaTeX document. Non-Latin tokens require LuaLaTeX or XeLaTeX, and a font for them."""
    layout = Layout(trace, new_matrices)
    parts = [PREAMBLE + f"\\title{{{escape_latex(title)}}}\n\\date{{}}\n\\begin{{document}}\n\\maketitle"]
    parts += [*(f"\\[ {latex} \\]" for _, latex in whole_formula(trace)), escape_latex(trace.counting)]
    for position, step in trace.numbered():
        shapes = re.sub(r"√([\d.]+)", r"$\\sqrt{\1}$", escape_latex(_shapes_and_cost(step)))
        parts += [
            f"\\filbreak\n\\section*{{{position}. {escape_latex(step_heading(step, trace))}}}\n\\nopagebreak",
            f"\\[ {step.latex} \\]\n\\nopagebreak",
            f"{escape_latex(step_sentence(step, trace))} {shapes}.\\nopagebreak",
            *(f"${line}$\\nopagebreak" for line in arithmetic_lines(step, trace, digits, latex=True)),
        ]
        for matrix in new_matrices(step):
            view = layout.view(matrix, digits)
            caption = f"${view.latex}$ {escape_latex(view.caption)}"
            parts.append(f"\\begin{{center}}{caption}\\\\\n{_latex_table(view)}\\end{{center}}")
    costs = [escape_latex(sentence) for sentence in cost_sentences(trace)]
    return "\n\n".join([*parts, *costs, "\\end{document}\n"])


def _shapes_and_cost(step: Step) -> str:
    costs = step_cost(step)
    return f"{step.shapes}; {costs}" if costs else step.shapes


def _table_rows(view: View, escape: Callable[[str], str]) -> tuple[list[str], list[list[str]]]:
    """Return the column labels, and the rows, each of which starts with its label."""
    labels, columns = ([escape(label) for label in names] for names in (view.row_labels, view.column_labels))
    rows = [[label, *row] for label, row in zip(labels, view.cells, strict=True)]
    if view.sums:
        columns = [*columns, "sum"]
        rows = [[*row, total] for row, total in zip(rows, view.sums, strict=True)]
    return columns, rows


def _markdown_table(view: View) -> str:
    columns, rows = _table_rows(view, escape_markdown)
    lines = [[f"${view.latex}$", *columns], [":--", *["--:"] * len(columns)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _latex_table(view: View) -> str:
    columns, rows = _table_rows(view, lambda token: escape_latex(short_label(token)))
    head = " & ".join([f"${view.latex}$", *columns])
    body = " \\\\\n".join(" & ".join([label, *(f"${latex_number(cell)}$" for cell in row)]) for label, *row in rows)
    right = f"{'r' * len(view.column_labels)}{'|r' if view.sums else ''}"
    return f"\\fitted{{%\n\\begin{{tabular}}{{l|{right}}}\n{head} \\\\ \\hline\n{body}\n\\end{{tabular}}}}"


def latex_number(cell: str) -> str:
    """Return a formatted number for LaTeX's math mode."""
    return cell.replace("∞", "\\infty").replace(HIDDEN, "\\cdot").replace(GAP, "\\dots")


def escape_latex(text: str) -> str:
    """Return a text on one line with LaTeX's special characters escaped."""
    return "".join(_LATEX_ESCAPES.get(letter, letter) for letter in visible_text(text))


def escape_markdown(text: str) -> str:
    """Return a text on one line with Markdown's and HTML's special characters escaped."""
    return (
        _MARKDOWN_SPECIAL.sub(r"\\\1", visible_text(text))
        .replace("\\<", "&lt;")
        .replace("\\>", "&gt;")
        .replace("\\&", "&amp;")
    )
