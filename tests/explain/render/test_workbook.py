"""Tests of workbooks: their formulas are evaluated, also after inputs were changed, and compared with the trace."""

import io
import shutil
import subprocess

import pytest
import torch
from openpyxl import load_workbook
from torch import nn
from typer.testing import CliRunner

from clearhead import MultiHeadAttention, trace
from clearhead.cli import app
from clearhead.explain import BUILT_IN, load
from clearhead.explain.render import render_workbook
from clearhead.nn import Rotary
from support.recordings import AWKWARD

SKIPPED = "soffice is not installed: apt-get install libreoffice-calc-nogui"
MINUS_INFINITY = "−∞"


def evaluated(content: bytes, path):
    """Return the cells of all sheets, computed by a library that evaluates spreadsheet formulas."""
    import formulas

    path.write_bytes(content)
    solution = formulas.ExcelModel().loads(str(path)).finish().calculate()
    cells = {}
    for address, ranges in solution.items():
        sheet, _, cell = str(address).rpartition("!")
        if ":" not in cell and hasattr(ranges, "value"):
            cells[sheet.rpartition("]")[2].rstrip("'").upper(), cell] = ranges.value[0, 0]
    return lambda sheet, cell: cells.get((sheet.upper(), cell))


def step_tops(book):
    """Return the sheet and the row of the heading of each step, by its position."""
    tops = {}
    for sheet in book:
        for row in range(1, sheet.max_row + 1):
            position, dot, rest = str(sheet.cell(row, 1).value).partition(". ")
            if dot and position.isdecimal() and ": " not in rest:
                tops[int(position)] = sheet.title, row
    return tops


def assert_agrees(content: bytes, value_of, steps) -> None:
    """Compare every cell of every step."""
    book = load_workbook(io.BytesIO(content))
    tops = step_tops(book)
    assert sorted(tops) == [position for position, _ in steps.numbered()]
    for position, step in steps.numbered():
        sheet, top = tops[position]
        for row, values in enumerate(step.values.tolist()):
            for column, expected in enumerate(values):
                cell = book[sheet].cell(top + 3 + row, 2 + column).coordinate
                value = value_of(sheet, cell)
                if expected == -torch.inf:
                    assert value == MINUS_INFINITY, (step.formula, cell)
                else:
                    assert float(value) == pytest.approx(expected, rel=1e-9, abs=1e-12), (step.formula, cell)


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILT_IN)
def test_formulas_of_built_in_examples_give_the_numbers_of_the_trace(name, tmp_path):
    steps = load(name).trace()
    content = render_workbook(steps)
    assert_agrees(content, evaluated(content, tmp_path / "book.xlsx"), steps)


def test_a_changed_input_changes_every_sheet(tmp_path):
    layer = MultiHeadAttention(4, 2, dtype=torch.float64)
    x = torch.randn(3, 4, dtype=torch.float64)
    hidden = torch.tensor([[True, False, False], [True, True, False], [False, False, False]])
    steps = trace(layer, x, mask=hidden)
    book = load_workbook(io.BytesIO(render_workbook(steps)))
    sheet, top = step_tops(book)[1]
    book[sheet].cell(top + 3, 2, -1.5)  # X, row 1, column 1
    [mask_top] = [row for row in range(1, book["Inputs"].max_row) if book["Inputs"].cell(row, 1).value == "M"]
    book["Inputs"].cell(mask_top + 3 + 2, 3, 0)  # M, row 3, column 2
    file = io.BytesIO()
    book.save(file)
    x[0, 0], hidden[2, 1] = -1.5, True
    assert_agrees(file.getvalue(), evaluated(file.getvalue(), tmp_path / "book.xlsx"), trace(layer, x, mask=hidden))


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_norms_rotation_softcap_and_sinks_are_formulas(layout, tmp_path):
    layer = MultiHeadAttention(
        24, 2, dtype=torch.float64, rope=Rotary(layout=layout, dims=4), qk_norm=True, softcap=2.0, sinks=True, bias=True
    )
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    steps = trace(layer, torch.randn(3, 24, dtype=torch.float64))
    content = render_workbook(steps)
    assert_agrees(content, evaluated(content, tmp_path / "book.xlsx"), steps)


@pytest.mark.slow
def test_libreoffice_computes_the_same_numbers(tmp_path):
    if shutil.which("soffice") is None:
        pytest.skip(SKIPPED)
    names = list(BUILT_IN)
    for name in names:
        (tmp_path / f"{name}.xlsx").write_bytes(render_workbook(load(name).trace()))
    profile = f"-env:UserInstallation={(tmp_path / 'profile').as_uri()}"
    command = ["soffice", profile, "--headless", "--convert-to", "xlsx", "--outdir", str(tmp_path / "out")]
    subprocess.run([*command, *(str(tmp_path / f"{name}.xlsx") for name in names)], check=True, capture_output=True)
    for name in names:
        computed = load_workbook(tmp_path / "out" / f"{name}.xlsx", data_only=True)
        content = (tmp_path / f"{name}.xlsx").read_bytes()
        assert_agrees(content, lambda sheet, cell, book=computed: book[sheet][cell].value, load(name).trace())


def test_tokens_are_never_formulas():
    tokens = [*AWKWARD, "=1+1", "+1", "@SUM(A1)"]
    layer = MultiHeadAttention(2, 1)
    content = render_workbook(trace(layer, torch.randn(len(tokens), 2), tokens=tokens), title="=1+1")
    book = load_workbook(io.BytesIO(content))
    labels = [cell for sheet in book for cell in sheet["A"] if cell.value is not None]
    assert all(cell.data_type == "s" for cell in labels)
    assert "=1+1" in [cell.value for cell in labels]


def test_workbook_needs_the_whole_calculation():
    steps = load("song").trace()
    with pytest.raises(ValueError, match="trace has only some of its steps"):
        render_workbook(steps.select(["weights"]))
    layer = MultiHeadAttention(512, 8)
    with pytest.raises(ValueError, match="expected at most 100,000 in a workbook"):
        render_workbook(trace(layer, torch.randn(4, 512)))


def test_command_writes_a_workbook(tmp_path):
    path = tmp_path / "song.xlsx"
    result = CliRunner().invoke(app, ["explain", "song", "--format", "xlsx", "--output", str(path)])
    assert (result.exit_code, result.output) == (0, f"wrote {path}\n")
    assert load_workbook(path).sheetnames == ["Inputs", "Head 1", "Output"]
    result = CliRunner().invoke(app, ["explain", "song", "--format", "xlsx", "--step", "weights"])
    assert result.exit_code == 2
    assert "--step, --head and --cell cannot be combined with --format xlsx" in result.output
