"""Sheets as self-contained HTML pages with an input for each blank cell."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from clearhead._utils.extras import needs_extra
from clearhead._utils.fonts import embed_font
from clearhead._utils.text import visible_text
from clearhead.explain.exercises._self_check import calculation
from clearhead.explain.exercises._sheet import WITHHELD, SheetSection, instructions, sections
from clearhead.explain.exercises.answer_file import file_parts
from clearhead.explain.exercises.exercise import Exercise
from clearhead.explain.render._html import LOADERS
from clearhead.explain.render._html import TEMPLATES as PAGE_TEMPLATES
from clearhead.explain.render.wording import format_number

with needs_extra("explain", "the HTML format"):
    from jinja2 import ChoiceLoader, PackageLoader
    from latex2mathml.converter import convert
    from markupsafe import Markup

# the settings of the other pages, and their style sheet
TEMPLATES = PAGE_TEMPLATES.overlay(loader=ChoiceLoader([PackageLoader("clearhead.explain.exercises"), *LOADERS]))
TEMPLATES.filters = {
    **PAGE_TEMPLATES.filters,
    "visible": visible_text,
    "mathml": lambda latex, display="inline": Markup(convert(latex, display=display)),
    "rounded": lambda value, digits: format_number(value, digits).replace("-", "−"),
    "signed": lambda cell: cell.replace("-", "−"),
}


def html_sheet(exercise: Exercise, *, self_check: bool = False) -> str:
    """Return one HTML page that saves the answers as a TOML file.

    The answers are kept in the browser while the student works. With `self_check`, the page marks them: it recomputes
    the calculation from the given numbers.
    """
    before, after = file_parts(exercise)
    data: dict[str, Any] = {
        "id": hashlib.sha256(f"{before}{after}".encode()).hexdigest()[:16],
        "before": before,
        "after": after,
        "answers": [_answer_entry(section) for section in sections(exercise) if section.points],
    }
    if self_check:
        data["calculation"] = calculation(exercise)
        data["digits"], data["tolerance"] = exercise.digits, exercise.tolerance
    page = TEMPLATES.get_template("sheet.html").render(
        title=exercise.title,
        instructions=instructions(exercise),
        sections=list(sections(exercise)),
        withheld=WITHHELD,
        self_check=self_check,
        data=_script_data(data),
    )
    return embed_font(page)


def _answer_entry(section: SheetSection) -> dict[str, Any]:
    step, head = section.key
    return {"id": section.id, "step": step, "head": None if head is None else head + 1}


def _script_data(data: object) -> Markup:
    """Return JSON for a script element, in which no text can end the element."""
    text = json.dumps(data)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))
