"""Tests of the calculation in JavaScript: every cell of randomly edited layers is compared with Python's."""

import json
import math
import re

import pytest
import torch

from clearhead._utils.modules import inline_modules
from clearhead.explain import Trace, parse
from clearhead.explain.render._arithmetic import cell_arithmetic
from clearhead.explain.render._json import as_json
from support.live_layers import STATIC, call, python_trace, start_layers
from support.paths import ROOT

RANDOM_STATES = 'import { randomStates } from "clearhead/random_states.js"; answer(randomStates(...given));'
DESCRIPTIONS = ("name", "head", "formula", "shapes", "multiply_adds", "how")


@pytest.fixture(scope="module", autouse=True)
def single_thread():
    """Use one thread, because a busy machine makes two threads wait for each other in every small operation."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def states():
    return call(RANDOM_STATES, start_layers(), 26, 1, 1)


def assert_same(steps: list[dict], expected: Trace) -> None:
    """Compare every cell, with tolerances far below the last shown digit."""
    assert [step["name"] for step in steps] == [step.name for step in expected]
    for step, exact in zip(steps, expected, strict=True):
        values = torch.tensor([[float(cell) for cell in row] for row in step["values"]], dtype=torch.float64)
        torch.testing.assert_close(values, exact.values, rtol=1e-9, atol=1e-9)


def assert_states_are_python_s(states: list[dict]) -> None:
    for state in states:
        assert not state["read"], f"the link of {state['layer']}: {state['read']}"
        assert_same(state["steps"], python_trace(state["layer"]))


def test_random_states_have_python_s_numbers(states):
    assert_states_are_python_s(states)
    assert {state["layer"]["softmax"] for state in states} == {"rows", "columns"}


def test_steps_have_python_s_formulas_and_operands(states):
    compared = 0
    for state in states:
        for step, exact in zip(state["steps"], python_trace(state["layer"]), strict=True):
            if exact.how == "given" or step["how"] == "copy":  # softmax over columns, and Y = C, are not Python's
                continue
            assert [step[name] for name in DESCRIPTIONS] == [getattr(exact, name) for name in DESCRIPTIONS]
            operands = [[operand.symbol, operand.marks, operand.shift] for operand in exact.operands]
            assert step["operands"] == operands
            compared += 1
    assert compared > 300


def assert_same_text(text: str, expected: str) -> None:
    """Compare two lines. A number may differ by one unit in its last digit, because rounding errors differ."""
    pattern = r"\d+(?:\.\d+)?"
    assert re.sub(pattern, "#", text) == re.sub(pattern, "#", expected)
    for shown, exact in zip(re.findall(pattern, text), re.findall(pattern, expected), strict=True):
        digits = len(exact.partition(".")[2])
        assert len(shown.partition(".")[2]) == digits
        assert abs(float(shown) - float(exact)) <= 1.001 * 10**-digits, (text, expected)


def test_arithmetic_is_python_s(states):
    for state in states[::5]:
        for step, exact in zip(state["steps"], python_trace(state["layer"]), strict=True):
            if exact.how in ("given", "input") or step["how"] == "copy":
                continue
            for row, lines in enumerate(step["arithmetic"]):
                for column, line in enumerate(lines):
                    assert_same_text(line, cell_arithmetic(exact, row, column, max_terms=None))


def test_the_toml_file_gives_the_same_numbers(states):
    for state in states:
        example = parse(state["toml"])
        assert example.tokens == tuple(state["layer"]["tokens"])
        assert_same(state["steps"], example.trace())


def assert_same_data(data: object, expected: object) -> None:
    """Compare JSON data, numbers with a tolerance, without the sources of numbers, which a page does not have."""
    assert type(data) is type(expected) or {type(data), type(expected)} == {int, float}
    if isinstance(expected, dict):
        assert data.keys() == expected.keys()
        for name in expected.keys() - {"origin", "arithmetic", "note"}:
            assert_same_data(data[name], expected[name])
    elif isinstance(expected, list):
        assert len(data) == len(expected)
        for entry, other in zip(data, expected, strict=True):
            assert_same_data(entry, other)
    elif isinstance(expected, float):
        assert math.isclose(data, expected, rel_tol=1e-9, abs_tol=1e-9)
    else:
        assert data == expected


def test_the_json_file_has_the_keys_and_numbers_of_python_s(states):
    for state in states[::3]:
        if state["layer"]["softmax"] == "columns" or not state["layer"]["use_output"]:
            continue
        document = dict(state["json"])
        assert document.pop("softmax") == "rows"
        expected = json.loads(as_json(python_trace(state["layer"]), "An edited calculation"))
        assert_same_data(document, expected)


@pytest.mark.parametrize("count", [13, pytest.param(130, marks=pytest.mark.slow)])
def test_only_ancestors_change_a_cell(count):
    code = 'import { ancestryErrors } from "clearhead/random_states.js"; answer(ancestryErrors(...given));'
    result = call(code, start_layers(), count, 5)
    assert result["errors"] == []
    assert result["checked"] > 40 * count


@pytest.mark.slow
def test_hundreds_of_random_states_have_python_s_numbers():
    assert_states_are_python_s(call(RANDOM_STATES, start_layers(), 520, 2, 1000))


def test_a_browser_computes_python_s_numbers(browser, tmp_path):
    modules = inline_modules(STATIC, ROOT / "tests" / "javascript")
    code = json.dumps(modules).replace("<", "\\u003c")
    page = tmp_path / "states.html"
    page.write_text(f'<!doctype html><meta charset="utf-8"><script type="importmap">{code}</script>', encoding="utf-8")
    browser.get(page.as_uri())
    browser.set_script_timeout(120)
    answer = browser.execute_async_script(
        """
        const [layers, done] = arguments;
        const states = (module) => JSON.stringify(module.randomStates(JSON.parse(layers), 65, 3, 1000));
        import("clearhead/random_states.js").then((module) => done(states(module)), (error) => done(String(error)));
        """,
        json.dumps(start_layers()),
    )
    assert_states_are_python_s(json.loads(answer))
