"""Exercises made from worked examples, and marking of the answers with credit for numbers that are carried on."""

from clearhead.explain.exercises.answer_file import to_toml
from clearhead.explain.exercises.exercise import Exercise, exercise
from clearhead.explain.exercises.marking import mark, mark_folder
from clearhead.explain.exercises.marks import CellMark, ClassMarks, Marks, StepMarks, UnreadableFile

__all__ = [
    "CellMark",
    "ClassMarks",
    "Exercise",
    "Marks",
    "StepMarks",
    "UnreadableFile",
    "exercise",
    "mark",
    "mark_folder",
    "to_toml",
]
