"""Tests of cells: numbers in the notations of Markdown, LaTeX and plain text."""

import tomllib

import pytest

from clearhead.explain.reading._cells import read_cell, read_vector

NUMBERS = {
    "0.50": "0.50",
    " 3 ": "3",
    "−0.5": "-0.5",
    "–1": "-1",
    "- 2.5": "-2.5",
    r"\-∞": "-inf",
    ".25": "0.25",
    "0.": "0",
    "+7": "7",
    "**0.5**": "0.5",
    "`0.125`": "0.125",
    "*1.0*": "1.0",
    "$-0.3$": "-0.3",
    r"\(0.4\)": "0.4",
    r"\mathbf{0.12}": "0.12",
    r"\textbf{-3}": "-3",
    r"{\color{red} 0.9}": "0.9",
    r"\textcolor{blue}{0.75}": "0.75",
    r"\cellcolor[gray]{0.9} 0.33": "0.33",
    r"\phantom{-}0.1": "0.1",
    "<b>0.2</b>": "0.2",
    "&minus;4": "-4",
    "1,024": "1024",
    "0,500": "0.500",
    "12,345.5": "12345.5",
    "0,25": "0.25",
    "25 %": "0.25",
    r"12.5\%": "0.125",
    "1e-3": "0.001",
    r"2.5 \times 10^{-2}": "0.025",
    r"$-\infty$": "-inf",
    "-inf": "-inf",
    "−∞": "-inf",
    "1/2": "0.500000000000",
    r"-\frac{1}{4}": "-0.250000000000",
    r"\frac15": "0.200000000000",
    r"\sqrt 2": "1.414213562373",
    r"\frac{2}{\sqrt 2}": "1.414213562373",
    r"-2\sqrt{2}": "-2.828427124746",
    "1/√2": "0.707106781187",
    r"$\dfrac{3}{8}$": "0.375000000000",
    "2·3 = 6.0": "6.0",
    "≈ 0.33": "0.33",
    "٣": "3",
}
BLANKS = ["", " ", "_", "__", "…", "...", r"\dots", "?", "-", "&nbsp;", "<!-- -->", r"\_"]
OTHERS = ["cat", "token 1", "1a", "x_1", r"\sqrt{a}", r"\frac{a}{2}", "1/0", "nan", "inf", "1 2", "--3", "1e", "0x10"]


@pytest.mark.parametrize("text", NUMBERS)
def test_numbers_keep_their_value_and_printed_digits(text):
    assert read_cell(text) == NUMBERS[text]
    assert isinstance(tomllib.loads(f"cell = {read_cell(text)}")["cell"], int | float)


@pytest.mark.parametrize("text", BLANKS)
def test_blank_cells_are_underscores(text):
    assert read_cell(text) == "_"


@pytest.mark.parametrize("text", OTHERS)
def test_other_texts_are_not_numbers(text):
    assert read_cell(text) is None


def test_vectors_are_lists_in_brackets():
    assert read_vector("[0.1, −2, **3**]") == ["0.1", "-2", "3"]
    assert read_vector("(1 2)") == ["1", "2"]
    assert read_vector("[cat, 1]") is None
    assert read_vector("0.1") is None
