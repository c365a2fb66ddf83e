"""Sheets on paper: Markdown and LaTeX with empty cells to fill in."""

from __future__ import annotations

from clearhead.explain.exercises._sheet import WITHHELD, SheetMatrix, instructions, sections
from clearhead.explain.exercises.exercise import Exercise
from clearhead.explain.render._documents import PREAMBLE, escape_latex, escape_markdown, latex_number
from clearhead.explain.render.wording import short_label

_MARKDOWN_BLANK = "___"
_LATEX_BLANK = r"\answer"
# an empty box as wide as a negative number of four digits
_LATEX_BOX = r"""\setlength{\fboxsep}{0pt}
\newcommand{\answer}{\fbox{\rule[-1mm]{0pt}{6mm}\rule{12mm}{0pt}}}
"""


def markdown_sheet(exercise: Exercise) -> str:
    """Return a sheet in Markdown with `___` in blank cells."""
    parts = [f"# {escape_markdown(exercise.title)}", "Name: ______________________", instructions(exercise)]
    for position, section in enumerate(sections(exercise), 1):
        points = f" ({section.points})" if section.points else ""
        parts += [
            f"## {position}. {section.heading}{points}",
            f"$$\n{section.latex}\n$$",
            section.sentence,
            *(_markdown_table(matrix) for matrix in section.matrices),
            *([WITHHELD] if section.withheld else []),
        ]
    return "\n\n".join(parts) + "\n"


def latex_sheet(exercise: Exercise) -> str:
    """Return a sheet as a complete LaTeX document with a box for each blank cell."""
    title = f"\\title{{{escape_latex(exercise.title)}}}\n\\date{{}}\n\\begin{{document}}\n\\maketitle"
    parts = [f"{PREAMBLE}{_LATEX_BOX}{title}", r"Name: \underline{\hspace{70mm}}", escape_latex(instructions(exercise))]
    for position, section in enumerate(sections(exercise), 1):
        points = f" ({section.points})" if section.points else ""
        parts += [
            f"\\filbreak\n\\section*{{{position}. {escape_latex(section.heading)}{points}}}\n\\nopagebreak",
            f"\\[ {section.latex} \\]\n\\nopagebreak",
            f"{escape_latex(section.sentence)}\\nopagebreak",
            *(_latex_table(matrix) for matrix in section.matrices),
            *([WITHHELD] if section.withheld else []),
        ]
    return "\n\n".join([*parts, "\\end{document}\n"])


def _markdown_table(matrix: SheetMatrix) -> str:
    columns = [escape_markdown(label) for label in matrix.columns]
    lines = [[f"${matrix.latex}$", *columns], [":--", *["--:"] * len(columns)]]
    for label, row in zip(matrix.rows, matrix.cells, strict=True):
        lines.append([escape_markdown(label), *(_MARKDOWN_BLANK if cell is None else cell for cell in row)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _latex_table(matrix: SheetMatrix) -> str:
    head = " & ".join([f"${matrix.latex}$", *(escape_latex(short_label(label)) for label in matrix.columns)])
    rows = [
        " & ".join([escape_latex(short_label(label)), *(_latex_cell(cell) for cell in row)])
        for label, row in zip(matrix.rows, matrix.cells, strict=True)
    ]
    body = " \\\\\n".join(rows)
    table = f"\\begin{{tabular}}{{l|{'r' * len(matrix.columns)}}}\n{head} \\\\ \\hline\n{body}\n\\end{{tabular}}"
    return f"\\begin{{center}}\\fitted{{%\n{table}}}\\end{{center}}"


def _latex_cell(cell: str | None) -> str:
    return _LATEX_BLANK if cell is None else f"${latex_number(cell)}$"
