"""Valid calls of exercises, marks and the course, whose arguments `wrong_calls.py` replaces one at a time."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from clearhead.explain.exercises import exercise, mark, mark_folder, render_marks, render_sheet, to_toml
from support.wrong_calls import Call


def exercise_calls() -> list[Call]:
    sheet = exercise("song", "weights", seed=1)
    folder = Path(tempfile.mkdtemp())
    file = folder / "answers.toml"
    file.write_text(to_toml(sheet))
    made: dict[str, Any] = {"blank": "weights", "seed": 1, "digits": 2, "points": {"weights": 3.0}}
    return [
        Call("exercise", exercise, lambda: {"example": "song", **made}),
        Call("render_sheet", render_sheet, lambda: {"exercise": sheet, "style": "html", "self_check": False}),
        Call("to_toml", to_toml, lambda: {"exercise": sheet, "student": "Ada", "answers": None}),
        Call("mark", mark, lambda: {"file": file, "exercise": file}, {"exercise": ("no such file",)}),
        Call(
            "mark_folder",
            mark_folder,
            lambda: {"folder": folder, "exercise": None, "progress": None},
            {"exercise": ("no such file",)},
            skipped=("progress",),  # a function of the caller, whose errors are not caught
        ),
        Call("render_marks", render_marks, lambda: {"marks": mark(file), "style": "csv"}),
    ]
