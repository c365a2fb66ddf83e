"""Tests of exercises and sheets: new numbers, blanks, and no solutions in any format."""

import dataclasses
import re
import tomllib

import pytest
import torch

from clearhead.explain import BUILT_IN, check, load, parse
from clearhead.explain.exercises import SHEET_FORMATS, Exercise, exercise, render_sheet, to_toml
from clearhead.explain.exercises.answer_file import parse_answers

ALL_STEPS = "query,key,value,scores,scaled,weights,head_output,concat,output"
STYLES = [*((style, False) for style in SHEET_FORMATS), ("html", True)]


def without_solutions(sheet: Exercise) -> Exercise:
    """Return the exercise with other numbers in its blank and withheld steps, as if the solutions were different."""
    hidden = [*sheet.blanks, *sheet.withheld]
    symbols = {symbol for key in hidden for symbol in (sheet.steps[key].symbol, f"{sheet.steps[key].symbol}ᵀ")}

    def scrambled(values):
        return torch.full_like(values, 123.456)

    steps = []
    for step in sheet.trace:
        operands = tuple(
            dataclasses.replace(operand, values=scrambled(operand.values))
            if operand.symbol in symbols and not operand.new
            else operand
            for operand in step.operands
        )
        values = scrambled(step.values) if (step.name, step.head) in hidden else step.values
        steps.append(dataclasses.replace(step, values=values, operands=operands))
    other = dataclasses.replace(sheet)
    other.__dict__["withheld"] = sheet.withheld
    other.__dict__["trace"] = dataclasses.replace(sheet.trace, steps=tuple(steps))
    return other


@pytest.mark.parametrize(("style", "self_check"), STYLES)
@pytest.mark.parametrize("blank", ["weights,output", "head_output", "scaled:1", ALL_STEPS])
def test_sheets_do_not_depend_on_the_solutions(style, self_check, blank):
    sheet = exercise("two-heads", blank, seed=7)
    other = without_solutions(sheet)
    assert other.steps[sheet.blanks[0]].values[0, 0] == 123.456
    assert render_sheet(sheet, style, self_check=self_check) == render_sheet(other, style, self_check=self_check)


@pytest.mark.parametrize(("style", "self_check"), STYLES)
def test_sheets_contain_no_answer_at_any_rounding(style, self_check):
    # with all steps blank, the sheet contains given numbers only, which have one digit after the point
    sheet = exercise("song-causal", f"{ALL_STEPS},masked", seed=3, digits=4)
    text = render_sheet(sheet, style, self_check=self_check)
    if style == "html":
        assert text.count("<script") == 2
        text = re.sub(r"<style>.*?</style>|<script>.*?</script>|<meta[^>]*>", "", text, flags=re.DOTALL)
    printed = set(re.findall(r"\d+\.\d+", text))
    solutions = {
        f"{value:.{digits}f}"
        for key in sheet.blanks
        for value in sheet.steps[key].values.abs().flatten().tolist()
        if value not in (0, 1, float("inf"))
        for digits in range(2, 16)
    }
    assert len(printed) > 5
    assert not {number for number in printed & solutions if float(number) % 0.1 > 1e-9}
    long = {number for number in printed if len(number.partition(".")[2]) > 1}
    assert long == (set() if style == "toml" else {"0.0001"})  # the tolerance


@pytest.mark.parametrize("name", BUILT_IN)
def test_numbers_change_with_the_seed_and_keep_the_calculation(name):
    original = load(name)
    first, again, other = (exercise(name, "weights", seed=seed) for seed in (1, 1, 2))
    assert to_toml(first) == to_toml(again)
    assert not torch.equal(first.example.x, other.example.x)
    assert not torch.equal(first.example.weights["query"], other.example.weights["query"])
    for sheet in (first, other):
        new = sheet.example
        assert (new.heads, new.split, new.tokens) == (original.heads, original.split, original.tokens)
        assert (new.mask is None) == (original.mask is None)
        assert new.x.shape == original.x.shape
        assert {key: value.shape for key, value in new.weights.items()} == {
            key: value.shape for key, value in original.weights.items()
        }
        x = torch.tensor(tomllib.loads(new.source)["x"], dtype=torch.float64)  # without positions
        for given in (x, *new.weights.values()):
            assert torch.allclose(10 * given, (10 * given).round())
        for weights in sheet.trace.named("weights"):
            assert (weights.values.amax(dim=1) - weights.values.amin(dim=1)).mean() > 0.1


@pytest.mark.parametrize("seed", range(5))
def test_attention_is_neither_uniform_nor_one_hot(seed):
    for weights in exercise("two-heads", seed=seed).trace.named("weights"):
        spread = weights.values.amax(dim=1) - weights.values.amin(dim=1)
        assert 0.1 < spread.mean() < 0.95


def test_blanks_are_chosen_by_step_and_head():
    assert exercise("two-heads", "weights:2").blanks == (("weights", 1),)
    assert exercise("two-heads", ["output", "weights"]).blanks == (("weights", 0), ("weights", 1), ("output", None))
    assert exercise("two-heads", "query:1, query:2").blank_names() == ["query"]
    assert exercise("two-heads", "query:2,output").blank_names() == ["query:2", "output"]


@pytest.mark.parametrize(
    ("blank", "message"),
    [
        ("weight", "blank has 'weight'; did you mean 'weights'?"),
        ("input", "blank has 'input'; expected one of slice, query,"),
        ("masked", "blank has 'masked', but this calculation has no such step: there is no mask"),
        ("weights:3", "blank has 'weights:3'; expected a head from 1 to 2, counted from 1"),
        ("weights:0", "expected a head from 1 to 2"),
        ("weights:", "expected a head from 1 to 2"),
        ("output:1", "blank has 'output:1', but there is one output for all heads; leave the head out"),
        ((), "blank is empty; expected at least one step, such as weights"),
    ],
)
def test_wrong_blanks_are_refused(blank, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        exercise("two-heads", blank)


def test_slices_are_refused_where_heads_read_everything():
    with pytest.raises(ValueError, match="no such step: every head reads all of X"):
        exercise("song", "slice")


def test_large_exercises_are_refused():
    rows = ", ".join(["[0.1, 0.2]"] * 50)
    with pytest.raises(ValueError, match=r"2,500 cells would be blank; expected at most 2,000"):
        exercise(parse(f"x = [{rows}]"), "weights")


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ({"scores": 1}, "points has 'scores', which is not a blank step"),
        ({"weights": 0}, "points for weights is 0; expected a number above 0"),
        ({"weights": float("inf")}, "points for weights is inf"),
    ],
)
def test_wrong_points_are_refused(points, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        exercise("two-heads", "weights", points=points)


@pytest.mark.parametrize(
    ("name", "blank", "withheld"),
    [
        ("two-heads", "head_output:1", {("concat", None)}),
        ("song-causal", "scaled", {("masked", 0)}),
        ("song", "head_output,concat", set()),
        ("two-heads", "weights", set()),
    ],
)
def test_steps_that_repeat_a_blank_one_are_withheld(name, blank, withheld):
    sheet = exercise(name, blank)
    assert sheet.withheld == withheld
    for style in ("html", "markdown", "latex"):
        assert render_sheet(sheet, style).count("repeats numbers that you compute") == len(withheld)


@pytest.mark.parametrize("name", BUILT_IN)
def test_answer_files_are_read_back_and_agree(name):
    sheet = exercise(name, "query,weights,output", seed=4, points={"weights": 2.5})
    text = to_toml(sheet, student='Ada "\\\x7f\n')
    read = parse_answers(text)
    assert to_toml(read.exercise, student='Ada "\\\x7f\n') == text
    assert read.student == 'Ada "\\\x7f'
    assert read.exercise.points == {"weights": 2.5}
    assert check(parse(text)).agrees


def test_markdown_and_latex_have_a_box_for_each_blank():
    sheet = exercise("two-heads", "weights:1,output", seed=7)
    assert len(re.findall(r"\| ___(?= )", render_sheet(sheet, "markdown"))) == 64 + 32
    latex = render_sheet(sheet, "latex")
    assert latex.count(r"& \answer") == 64 + 32
    assert latex.count(r"\begin{tabular}") == latex.count(r"\end{tabular}")
    assert r"\newcommand{\answer}" in latex


def test_hostile_tokens_are_escaped_in_every_format():
    token = "</script><b>&|$\\end{document}"
    example = parse(f"x = [[1, 0], [0, 1]]\ntokens = ['{token}', 'b']")
    sheet = exercise(example, "weights")
    for style, self_check in STYLES:
        text = render_sheet(sheet, style, self_check=self_check)
        if style != "toml":
            assert token not in text
    assert render_sheet(sheet, "html").count("</script>") == 2
    assert parse_answers(to_toml(sheet)).exercise.example.tokens[0] == token


@pytest.mark.parametrize("name", ["embeddings", "cross-attention", "grouped-heads"])
def test_sections_are_named_after_their_steps(name):
    ids = re.findall(r'<section id="([^"]+)"', render_sheet(exercise(name), "html"))
    steps = load(name).trace()
    assert ids == [step.name if step.head is None else f"{step.name}-{step.head + 1}" for step in steps]


@pytest.mark.parametrize("example", ["song", load("song")])
def test_exercise_is_named_after_the_example(example):
    assert exercise(example).name == "song"


def test_only_pages_check_themselves():
    sheet = exercise("song")
    with pytest.raises(ValueError, match="a sheet in latex cannot mark answers"):
        render_sheet(sheet, "latex", self_check=True)
    with pytest.raises(ValueError, match="style is 'pdf'; expected 'html', 'markdown', 'latex' or 'toml'"):
        render_sheet(sheet, "pdf")
    assert "softmax" not in re.sub(r"aria-label=\S+", "", render_sheet(sheet, "html").rpartition("<script>")[2])
    assert "function softmax" in render_sheet(sheet, "html", self_check=True)
