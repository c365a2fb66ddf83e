"""Marks of one student and of a class: a verdict on each cell, and points for each step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from clearhead._utils.text import json_text
from clearhead.explain.audit import Cause
from clearhead.explain.steps import COUNTING

CellVerdict = Literal["right", "carried", "wrong", "blank"]
VERDICTS: tuple[CellVerdict, ...] = ("right", "carried", "wrong", "blank")


@dataclass(frozen=True)
class CellMark:
    """Verdict on one answer. Right and carried answers get full credit."""

    row: int  # rows and columns are counted from 0
    column: int
    row_label: str
    column_label: str
    answer: str  # as written
    expected: float  # exact; a carried answer differs from it
    verdict: CellVerdict


@dataclass(frozen=True)
class StepMarks:
    """Marks of one blank matrix."""

    step: str
    head: int | None  # counted from 0
    title: str  # such as "Attention weights, head 1"
    formula: str
    possible: float
    cells: tuple[CellMark, ...]  # row by row
    causes: tuple[Cause, ...] = ()  # usual mistakes that explain wrong answers; several may fit
    notes: tuple[str, ...] = ()

    @property
    def points(self) -> float:
        """Points, in proportion to the answers that are right or carried."""
        return self.possible * (self.count("right") + self.count("carried")) / len(self.cells)

    @property
    def column_name(self) -> str:
        """Name of the step in a table of a class: "weights 1" for head 1, "output" for a step of all heads."""
        return self.step if self.head is None else f"{self.step} {self.head + 1}"

    def count(self, verdict: CellVerdict) -> int:
        """Return the number of answers with this verdict."""
        return sum(cell.verdict == verdict for cell in self.cells)

    def rows(self) -> Iterator[tuple[CellMark, ...]]:
        """Yield the rows of the matrix."""
        columns = 1 + max(cell.column for cell in self.cells)
        for start in range(0, len(self.cells), columns):
            yield self.cells[start : start + columns]


@dataclass(frozen=True)
class Marks:
    """Marks of one answer file."""

    student: str  # as written in the file, or the name of the file
    file: str
    title: str
    seed: int
    digits: int
    verified: bool  # the given numbers were compared with those of the teacher's exercise
    steps: tuple[StepMarks, ...]

    @property
    def points(self) -> float:
        return sum(step.points for step in self.steps)

    @property
    def possible(self) -> float:
        return sum(step.possible for step in self.steps)

    @property
    def complete(self) -> bool:
        """True if every answer gets full credit."""
        return all(cell.verdict in ("right", "carried") for step in self.steps for cell in step.cells)

    def to_json(self) -> str:
        """Return the marks as JSON. Heads, rows and columns are counted from 1."""
        return json_text(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Return the marks as values that JSON supports."""
        return {
            "student": self.student,
            "file": self.file,
            "title": self.title,
            "counting": COUNTING,
            "seed": self.seed,
            "verified": self.verified,
            "points": round(self.points, 6),
            "possible": round(self.possible, 6),
            "steps": [_step_to_dict(step) for step in self.steps],
        }


@dataclass(frozen=True)
class UnreadableFile:
    """An answer file that cannot be marked."""

    file: str
    reason: str


@dataclass(frozen=True)
class ClassMarks:
    """Marks of all answer files of a folder, sorted by the name of the file."""

    marks: tuple[Marks, ...]
    unreadable: tuple[UnreadableFile, ...]

    @property
    def complete(self) -> bool:
        """True if every answer of every student gets full credit and every file is readable."""
        return not self.unreadable and all(marks.complete for marks in self.marks)

    def to_json(self) -> str:
        """Return the marks of each student, and the files that cannot be marked, as JSON."""
        unreadable = [{"file": entry.file, "reason": entry.reason} for entry in self.unreadable]
        return json_text({"students": [marks.to_dict() for marks in self.marks], "unreadable": unreadable})


def _step_to_dict(step: StepMarks) -> dict[str, Any]:
    return {
        "step": step.step,
        "head": None if step.head is None else step.head + 1,
        "points": round(step.points, 6),
        "possible": round(step.possible, 6),
        **{verdict: step.count(verdict) for verdict in VERDICTS},
        "causes": [cause.sentence for cause in step.causes],
        "notes": list(step.notes),
        "cells": [_cell_to_dict(cell) for cell in step.cells if cell.verdict != "right"],
    }


def _cell_to_dict(cell: CellMark) -> dict[str, Any]:
    return {
        "row": cell.row + 1,
        "column": cell.column + 1,
        "answer": cell.answer,
        "expected": cell.expected if math.isfinite(cell.expected) else None,
        "verdict": cell.verdict,
    }


def format_points(points: float) -> str:
    """Return points with at most two digits after the point: "4", "4.5", "3.33"."""
    return f"{points:.2f}".rstrip("0").rstrip(".")
