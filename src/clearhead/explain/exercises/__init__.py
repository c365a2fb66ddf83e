"""Exercises made from worked examples, and marking of answers with credit for numbers that follow from an error."""

from clearhead.explain.exercises.answer_file import to_toml
from clearhead.explain.exercises.exercise import Exercise, exercise
from clearhead.explain.exercises.marking import mark, mark_folder
from clearhead.explain.exercises.marks import CellMark, ClassMarks, Marks, StepMarks, UnreadableFile
from clearhead.explain.exercises.reports import MARKS_FORMATS, render_marks
from clearhead.explain.exercises.sheets import SHEET_FORMATS, render_sheet

__all__ = [
    "MARKS_FORMATS",
    "SHEET_FORMATS",
    "CellMark",
    "ClassMarks",
    "Exercise",
    "Marks",
    "StepMarks",
    "UnreadableFile",
    "exercise",
    "mark",
    "mark_folder",
    "render_marks",
    "render_sheet",
    "to_toml",
]
