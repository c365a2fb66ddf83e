"""Parts of a course page that are written as TOML in a fence: live calculations, widgets and questions."""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

_NAME = re.compile(r"[a-z][a-z0-9-]*")
_LIVE_OPTIONS = ("steps", "heads", "controls", "digits", "title")
CONTROLS = ("tokens", "mask", "scale", "softmax", "heads", "split", "cross", "positions", "output", "history", "export")
BOUNDS = ("at_least", "at_most", "equals")


@dataclass(frozen=True)
class LivePart:
    """A calculation that the reader can change."""

    name: str
    example: str  # a built-in example, or the name of a file in layers/
    options: Mapping[str, Any]  # of mountLive


@dataclass(frozen=True)
class Widget:
    """A script that draws into an element of the page."""

    name: str
    module: str  # name of a file in static/, without .js
    options: Mapping[str, Any]
    example: str = ""  # whose layer the widget gets as the option `layer`


@dataclass(frozen=True)
class Goal:
    """A state that a live part or a widget should reach."""

    part: str
    matrix: str = ""  # of a live part
    row: int = 0  # counted from 1
    column: int = 0
    key: str = ""  # of the value of a widget; empty if the value is a number
    bounds: Mapping[str, float] = field(default_factory=dict)  # at_least, at_most, equals
    tolerance: float = 1e-9  # of equals


@dataclass(frozen=True)
class Question:
    """A question with an answer that the page checks: a choice, a number, or a goal in a part of the page."""

    id: str  # under which the browser keeps the answer
    ask: str
    choices: tuple[str, ...] = ()
    right: int = 0  # counted from 1
    answer: float | None = None
    tolerance: float = 0.0
    goal: Goal | None = None
    also: tuple[Goal, ...] = ()  # further goals, to be reached at the same time
    hint: str = ""
    why: str = ""
    check: str = ""  # expression that recomputes the answer, as in _answers.py
    live: str = ""  # live part that `check` reads (default: the first one)
    example: str = ""  # example that `check` reads instead

    @property
    def kind(self) -> str:
        return "goal" if self.goal else "choice" if self.choices else "number"

    @property
    def texts(self) -> tuple[str, ...]:
        """Texts that the page renders as Markdown."""
        return (self.ask, *self.choices, self.hint, self.why)


Part = LivePart | Widget | Question


def read_part(kind: str, source: str) -> Part:
    """Read the TOML of a fence.

    Raises:
        ValueError: the TOML is not a valid part of this kind.
    """
    try:
        raw = tomllib.loads(source)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{kind}: not TOML ({error})") from None
    return READERS[kind](raw)


def _live(raw: dict[str, Any]) -> LivePart:
    _check_keys("live", raw, ("name", "example", *_LIVE_OPTIONS))
    options = {key: raw[key] for key in _LIVE_OPTIONS if key in raw}
    for key in ("steps", "heads", "controls"):
        if key in options and not isinstance(options[key], list):
            raise ValueError(f"live: {key} is {options[key]!r}; expected a list")
    for control in options.get("controls", ()):
        if control not in CONTROLS:
            raise ValueError(f"live: controls has {control!r}; expected some of {', '.join(CONTROLS)}")
    return LivePart(_name("live", raw), _text("live", raw, "example"), options)


def _widget(raw: dict[str, Any]) -> Widget:
    module = _text("widget", raw, "module")
    options = {key: value for key, value in raw.items() if key not in ("name", "module", "example")}
    return Widget(_name("widget", raw), module, options, _text("widget", raw, "example") if "example" in raw else "")


def _question(raw: dict[str, Any]) -> Question:
    texts = ("ask", "hint", "why", "check", "live", "example")
    _check_keys("question", raw, (*texts, "choices", "right", "answer", "tolerance", "goal"))
    kinds = [key for key in ("choices", "answer", "goal") if key in raw]
    if len(kinds) != 1:
        raise ValueError(f"question: has {' and '.join(kinds) or 'no answer'}; expected choices, answer or goal")
    ask = _text("question", raw, "ask")
    given: dict[str, Any] = {key: _text("question", raw, key) for key in texts if key in raw}
    given["id"] = hashlib.sha256(ask.encode()).hexdigest()[:8]
    if kinds == ["choices"]:
        given |= _choices(raw)
    elif kinds == ["answer"]:
        given["answer"] = _number("question: answer", raw["answer"])
        given["tolerance"] = _number("question: tolerance", raw.get("tolerance"))
        if given["tolerance"] < 0:
            raise ValueError(f"question: tolerance is {given['tolerance']}; expected at least 0")
    else:
        given |= _goals(raw["goal"])
    return Question(**given)


def _choices(raw: dict[str, Any]) -> dict[str, Any]:
    choices, right = raw["choices"], raw.get("right")
    if not isinstance(choices, list) or len(choices) < 2 or not all(isinstance(each, str) for each in choices):
        raise ValueError(f"question: choices is {choices!r}; expected at least two texts")
    if len(set(choices)) != len(choices):
        raise ValueError(f"question: choices is {choices!r}; expected different texts")
    if type(right) is not int or not 1 <= right <= len(choices):
        raise ValueError(f"question: right is {right!r}; expected a whole number from 1 to {len(choices)}")
    return {"choices": tuple(choices), "right": right}


def _goals(raw: object) -> dict[str, Any]:
    """Read a goal, or a list of goals in the same part."""
    goals = [_goal(each) for each in (raw if isinstance(raw, list) and raw else [raw])]
    if len({goal.part for goal in goals}) > 1:
        raise ValueError(f"question: goal names {', '.join(goal.part for goal in goals)}; expected one part")
    return {"goal": goals[0], "also": tuple(goals[1:])}


def _goal(raw: object) -> Goal:
    if not isinstance(raw, dict):
        raise ValueError(f"question: goal is {raw!r}; expected a table")
    bounds = {key: _number(f"question: goal.{key}", raw[key]) for key in BOUNDS if key in raw}
    if not bounds:
        raise ValueError(f"question: goal has no bound; expected {', '.join(BOUNDS)}")
    tolerance = _number("question: goal.tolerance", raw.get("tolerance", Goal.tolerance))
    if "widget" in raw:
        _check_keys("question: goal", raw, ("widget", "key", "tolerance", *BOUNDS))
        key = _text("question: goal", raw, "key") if "key" in raw else ""
        return Goal(_text("question: goal", raw, "widget"), key=key, bounds=bounds, tolerance=tolerance)
    _check_keys("question: goal", raw, ("live", "matrix", "row", "column", "tolerance", *BOUNDS))
    cell = {}
    for key in ("row", "column"):
        if type(raw.get(key)) is not int or raw[key] < 1:
            raise ValueError(f"question: goal.{key} is {raw.get(key)!r}; expected a whole number, counted from 1")
        cell[key] = raw[key]
    part, matrix = (_text("question: goal", raw, key) for key in ("live", "matrix"))
    return Goal(part, matrix, **cell, bounds=bounds, tolerance=tolerance)


def _name(label: str, raw: dict[str, Any]) -> str:
    name = _text(label, raw, "name")
    if not _NAME.fullmatch(name):
        raise ValueError(f"{label}: name is {name!r}; expected lower-case letters, digits and hyphens")
    return name


def _text(label: str, raw: Mapping[str, Any], key: str) -> str:
    value = raw.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{label}: {key} is {value!r}; expected a text")
    return value.strip()


def _number(label: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{label} is {value!r}; expected a number")
    return float(value)


def _check_keys(label: str, raw: Mapping[str, Any], keys: Collection[str]) -> None:
    for key in raw:
        if key not in keys:
            raise ValueError(f"{label}: unknown key {key!r}; expected some of {', '.join(keys)}")


READERS: dict[str, Callable[[dict[str, Any]], Part]] = {"live": _live, "widget": _widget, "question": _question}
