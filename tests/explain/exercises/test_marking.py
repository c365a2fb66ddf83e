"""Tests of marking: credit for carried numbers, points, notes, changed givens and unreadable files."""

import csv
import io
import json
import random
import re

import pytest

from clearhead.explain import BUILT_IN, parse
from clearhead.explain.audit import Audit, Cause, CheckResult
from clearhead.explain.exercises import MARKS_FORMATS, exercise, mark, mark_folder, render_marks, render_sheet, to_toml
from clearhead.explain.exercises import marking as marking_module
from support.exercise_answers import answers_of, answers_with_swapped_heads, marked, verdicts

ALL_STEPS = "query,key,value,scores,scaled,weights,head_output,concat,output"


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("rounded", [True, False])
@pytest.mark.parametrize("blank", ["query,key,value,scores,weights,output", "weights,output", "scores,head_output"])
def test_correct_answers_get_all_points(tmp_path, name, rounded, blank):
    sheet = exercise(name, blank, seed=5)
    marks = marked(sheet, answers_of(sheet, rounded=rounded), tmp_path)
    assert marks.complete
    assert marks.points == marks.possible
    assert verdicts(marks)["right"] == marks.possible


@pytest.mark.parametrize("rounded", [True, False])
@pytest.mark.parametrize("step", ["query", "key", "value", "scores", "scaled", "weights", "head_output", "concat"])
def test_one_error_costs_one_cell(tmp_path, rounded, step):
    sheet = exercise("two-heads", ALL_STEPS, seed=5)
    error = {(step, None if step == "concat" else 0): {(2, 1): 0.7}}
    marks = marked(sheet, answers_of(sheet, error, rounded=rounded), tmp_path)
    counts = verdicts(marks)
    assert counts["wrong"] == 1
    assert counts["carried"] > 0
    assert marks.points == marks.possible - 1
    [wrong] = [cell for entry in marks.steps if entry.step == step for cell in entry.cells if cell.verdict == "wrong"]
    assert (wrong.row, wrong.column) == (2, 1)


@pytest.mark.parametrize("ignore_shown", [True, False])
def test_students_may_ignore_the_shown_steps(tmp_path, ignore_shown):
    sheet = exercise("two-heads", "weights,output", seed=7)
    error = {("weights", 0): {(2, 1): 0.3}}
    answers = answers_of(sheet, error, rounded=not ignore_shown, ignore_shown=ignore_shown)
    counts = verdicts(marked(sheet, answers, tmp_path))
    assert counts["wrong"] == 1
    assert (counts["carried"] > 0) == ignore_shown


def test_second_error_after_a_carried_one_is_wrong(tmp_path):
    sheet = exercise("two-heads", ALL_STEPS, seed=5)
    errors = {("query", 0): {(2, 1): 0.7}, ("scores", 0): {(2, 0): 1.0, (2, 3): -1.0}, ("output", None): {(0, 0): 0.5}}
    assert verdicts(marked(sheet, answers_of(sheet, errors), tmp_path))["wrong"] == 4


@pytest.mark.parametrize("seed", range(12))
def test_random_errors_cost_exactly_their_cells(tmp_path, seed):
    generator = random.Random(seed)
    name = generator.choice(["two-heads", "two-heads-projected", "song", "song-causal"])
    sheet = exercise(name, ALL_STEPS, seed=seed)
    errors = {}
    for key in generator.sample(sheet.blanks, 2):
        rows, columns = sheet.steps[key].shape
        errors[key] = {(generator.randrange(rows), generator.randrange(columns)): generator.choice([-2.0, 1.5])}
    marks = marked(sheet, answers_of(sheet, errors, rounded=seed % 2 == 0), tmp_path)
    assert marks.points == marks.possible - 2


def test_heads_in_another_order_are_wrong_and_named(tmp_path):
    sheet = exercise("causal-decoder", "query,weights,output", seed=7)
    answers = answers_with_swapped_heads(sheet)
    *earlier, output = marked(sheet, answers, tmp_path).steps
    assert all(step.count("right") == len(step.cells) for step in earlier)
    assert output.count("carried") == 0
    for cell in output.cells:  # one cell is right by chance
        assert (cell.verdict == "right") == (abs(float(cell.answer) - cell.expected) <= 0.01)
    assert output.count("wrong") == 15
    assert [cause.name for cause in output.causes] == ["heads in another order"]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("blank", [ALL_STEPS, "query,weights,output"])
def test_each_matrix_may_be_rounded_or_not(tmp_path, seed, blank):
    sheet = exercise(["causal-decoder", "two-heads", "song", "song-causal"][seed], blank, seed=seed)
    generator = random.Random(seed)
    rounded = {key: generator.random() < 0.5 for key in sheet.steps}
    marks = marked(sheet, answers_of(sheet, rounded=rounded, ignore_shown=seed % 2 == 0), tmp_path)
    assert verdicts(marks)["right"] == marks.possible


def test_answer_may_differ_by_one_unit_from_the_unrounded_number(tmp_path):
    sheet = exercise("song", "output", seed=2)
    answers = answers_of(sheet)
    exact = float(sheet.steps["output", None].values[0, 0])
    for difference, verdict in [(0.0099, "right"), (-0.0099, "right"), (0.03, "wrong"), (-0.03, "wrong")]:
        answers["output", None][0][0] = f"{exact + difference:.6f}"
        [step] = marked(sheet, answers, tmp_path).steps
        assert step.cells[0].verdict == verdict, difference
    text = render_marks(marked(sheet, answers, tmp_path))
    assert f"expected {exact:.3f}\n" in text


def test_queries_have_no_slack_beyond_one_unit(tmp_path):
    sheet = exercise("song", "query", seed=2)  # follows from given numbers, which are not rounded
    answers = answers_of(sheet)
    exact = float(sheet.steps["query", 0].values[0, 0])
    for difference, verdict in [(0.01, "right"), (-0.01, "right"), (0.0101, "wrong"), (-0.0101, "wrong")]:
        answers["query", 0][0][0] = f"{exact + difference:.6f}"
        [step] = marked(sheet, answers, tmp_path).steps
        assert step.cells[0].verdict == verdict, difference
    assert "An answer may differ from the exact number by 0.01." in render_sheet(sheet, "markdown")


def test_blank_cells_get_no_points_and_do_not_stop_the_rest(tmp_path):
    sheet = exercise("song", "query,scores,weights", seed=2)
    answers = answers_of(sheet, {("query", 0): {(1, 0): 1.0}})
    answers["scores", 0] = [["_"] * 6 for _ in range(6)]
    counts = verdicts(marked(sheet, answers, tmp_path))
    assert counts["blank"] == 36
    assert counts["wrong"] == 1


def test_answers_need_the_digits_that_are_asked_for(tmp_path):
    sheet = exercise("song", "weights", seed=2)
    exact = sheet.steps["weights", 0].values
    answers = [[f"{cell:.0f}" for cell in row] for row in exact.tolist()]
    [step] = marked(sheet, {("weights", 0): answers}, tmp_path).steps
    far = int(((exact - exact.round()).abs() > 0.01).sum())
    assert far > 10
    assert step.count("wrong") == far
    assert step.notes == (f"{far} answers with too few digits; expected 2 digits after the point",)
    [step] = marked(sheet, {("weights", 0): [[f"{cell:.2f}".rstrip("0") for cell in row] for row in exact.tolist()]},
                    tmp_path).steps  # fmt: skip
    assert step.points == 36


@pytest.mark.parametrize("written", ["0,{}", ".{}", "+0.{}", " 0.{} ", "00.{}", "0.{}e0"])
def test_usual_ways_to_write_a_number_are_read(tmp_path, written):
    sheet = exercise("song", "weights", seed=2)
    answers = answers_of(sheet)
    answers["weights", 0] = [
        [written.format(cell.partition(".")[2]) if cell.startswith("0.") else cell for cell in row]
        for row in answers["weights", 0]
    ]
    assert marked(sheet, answers, tmp_path).complete


@pytest.mark.parametrize("written", ["-inf", "-∞", "−∞", "-1e9", "-Infinity"])
def test_masked_scores_may_be_infinite(tmp_path, written):
    sheet = exercise("song-causal", "masked", seed=2)
    answers = answers_of(sheet)
    answers["masked", 0] = [[written if cell == "-inf" else cell for cell in row] for row in answers["masked", 0]]
    assert marked(sheet, answers, tmp_path).complete


def test_texts_and_huge_numbers_are_wrong_and_named(tmp_path):
    sheet = exercise("song", "query,scores,weights", seed=2)
    answers = answers_of(sheet)
    answers["query", 0][0][:3] = ["abc", "1e300", "nan"]
    query, scores, weights = marked(sheet, answers, tmp_path).steps
    assert query.count("wrong") == 3
    assert query.notes[0] == "row 1, column 1: 'abc' is not a number, or is too large"
    assert scores.points == weights.points == 36


def test_matrix_of_another_shape_gets_no_points_and_a_note(tmp_path):
    sheet = exercise("song", "query,weights", seed=2)
    text = to_toml(sheet, answers=answers_of(sheet))
    path = tmp_path / "answers.toml"
    before, _, after = text.rpartition('step = "query"')
    path.write_text(before + 'step = "query"' + after.replace("],\n]", "],\n  [1, 2, 3, 4],\n]", 1))
    query, weights = mark(path).steps
    assert query.points == 0
    assert query.notes == ("the answer has 7 rows; expected 6 rows of 4 cells",)
    assert weights.points == 36


def test_decimal_commas_without_quotes_get_a_hint(tmp_path):
    sheet = exercise("song", "weights", seed=2)
    path = tmp_path / "answers.toml"
    path.write_text(to_toml(sheet).replace('"_"', "0,12"))
    [step] = mark(path).steps
    assert "row 1 has 12 cells; expected 6 rows of 6 cells; write 0.5, not 0,5" in step.notes


def test_points_are_shared_among_heads_and_cells(tmp_path):
    sheet = exercise("two-heads", "weights,output", seed=7, points={"weights": 6})
    marks = marked(sheet, answers_of(sheet, {("weights", 1): {(0, 0): 0.5, (1, 0): 0.5, (2, 0): 0.5, (3, 0): 0.5}},
                                     ignore_shown=True), tmp_path)  # fmt: skip
    assert [step.possible for step in marks.steps] == [3, 3, 32]
    assert marks.steps[1].points == 3 * 60 / 64
    assert marks.possible == 38


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "x = [\n  [{}",
            "x = [\n  [0.05",
            "x, row 1, column 1 is 0.05; expected {}, as in the exercise; the given numbers",
        ),
        ("heads = 2", "heads = 2\nmask = 'causal'", "mask is not in the exercise"),
        ('split = "slice"\n', "", "weights.query is (2, 2)"),
        (
            "output = [\n  [{}",
            "output = [\n  [0.05",
            "weights.output, row 1, column 1 is 0.05; expected {}, as in the exercise",
        ),
    ],
)
def test_changed_givens_are_refused(tmp_path, old, new, message):
    sheet = exercise("two-heads", "weights", seed=7)
    teacher, student = tmp_path / "exercise.toml", tmp_path / "student.toml"
    teacher.write_text(to_toml(sheet))
    first = sheet.example.x if old.startswith("x") else sheet.example.weights["output"]
    text = teacher.read_text()
    old = old.format(f"{first[0, 0]:.1f}")
    assert text.count(old) == 1
    student.write_text(text.replace(old, new))
    with pytest.raises(ValueError, match=re.escape(message.format(f"{first[0, 0]:.1f}"))):
        mark(student, teacher)


def test_answers_to_another_exercise_are_refused_with_both_names(tmp_path):
    teacher, student = tmp_path / "exercise.toml", tmp_path / "student.toml"
    for name, seed in [("song", 7), ("causal-decoder", 8)]:
        teacher.write_text(to_toml(exercise(name, "weights", seed=seed)))
        student.write_text(to_toml(exercise("causal-decoder", "weights", seed=7)))
        with pytest.raises(ValueError, match="these are answers to") as error:
            mark(student, teacher)
        title = "List new ideas for a song" if name == "song" else "A decoder with two heads"
        assert str(error.value) == (
            f"{student}: these are answers to 'A decoder with two heads' (seed 7),"
            f" but the exercise is '{title}' (seed {seed})"
        )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            r"query = \[\n  \[\n    \[[^,]+,",
            "query = [\n  [\n    [0.05,",
            "weights.query, head 1, row 1, column 1 is 0.05",
        ),
        (r"x = \[\n  \[[^,]+,", "x = [\n  [0.1, 0.2,", "{student}: "),
        (r"x = \[\n  \[.*\],\n", "x = [\n", "{student}: "),
        (r'tokens = \["[^"]*"', 'tokens = ["zzz"', "tokens, item 1 is 'zzz'; expected '"),
    ],
)
def test_changed_given_is_named_without_python_types(tmp_path, old, new, message):
    teacher, student = tmp_path / "exercise.toml", tmp_path / "student.toml"
    text = to_toml(exercise("two-heads", "weights", seed=7))
    teacher.write_text(text)
    changed, count = re.subn(old, new, text, count=1)
    assert count == 1
    student.write_text(changed)
    with pytest.raises(ValueError, match=re.escape(message.format(student=student))) as error:
        mark(student, teacher)
    assert "Decimal" not in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_blanks_and_digits_are_those_of_the_teacher(tmp_path):
    sheet = exercise("song", "weights,output", seed=7)
    teacher, student = tmp_path / "exercise.toml", tmp_path / "student.toml"
    teacher.write_text(to_toml(sheet))
    text = to_toml(sheet, answers={("output", None): answers_of(sheet)["output", None]})
    student.write_text(text.replace('blank = ["weights", "output"]', 'blank = ["output"]').replace(
        "digits = 2", "digits = 1"))  # fmt: skip
    assert mark(student).complete
    marks = mark(student, teacher)
    assert (marks.points, marks.possible, marks.digits, marks.verified) == (24, 60, 2, True)


def test_folder_of_exercises_is_matched_by_seed(tmp_path):
    exercises, answers = tmp_path / "exercises", tmp_path / "answers"
    exercises.mkdir()
    answers.mkdir()
    for seed in (1, 2, 3):
        sheet = exercise("song", "weights", seed=seed)
        if seed < 3:
            (exercises / f"{seed}.toml").write_text(to_toml(sheet))
        (answers / f"{seed}.toml").write_text(to_toml(sheet, student=f"S{seed}", answers=answers_of(sheet)))
    group = mark_folder(answers, exercises)
    assert [(marks.student, marks.points) for marks in group.marks] == [("S1", 36), ("S2", 36)]
    [missing] = group.unreadable
    assert missing.file == "3.toml"
    assert missing.reason == f"exercise.seed is 3; {exercises.name} has no exercise with that seed"


@pytest.fixture
def class_folder(tmp_path):
    sheet = exercise("song", "weights,output", seed=7)
    for name, student, error in [("b", "=HYPERLINK(1)", 0.5), ("a", "Zoë | <b>", 0.0), ("d", "", 0.0)]:
        answers = answers_of(sheet, {("weights", 0): {(0, 0): error}}, rounded=False)
        (tmp_path / f"{name}.toml").write_text(to_toml(sheet, student=student, answers=answers), encoding="utf-8")
    (tmp_path / "c.toml").write_bytes(b"\xff\xfe")
    (tmp_path / "notes.txt").write_text("not an answer file")
    return tmp_path


def test_class_is_marked_without_stopping_at_an_unreadable_file(class_folder):
    calls = []
    group = mark_folder(class_folder, progress=lambda done, total: calls.append((done, total)))
    assert [(marks.file, marks.student, marks.points) for marks in group.marks] == [
        ("a.toml", "Zoë | <b>", 60),
        ("b.toml", "=HYPERLINK(1)", 59),
        ("d.toml", "d", 60),
    ]
    assert [(entry.file, entry.reason) for entry in group.unreadable] == [
        ("c.toml", "not a text file (it is not UTF-8)")
    ]
    assert calls == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert not group.complete


def test_table_of_a_class_is_csv_without_formulas(class_folder):
    rows = list(csv.reader(io.StringIO(render_marks(mark_folder(class_folder), "csv"))))
    assert rows == [
        ["file", "student", "seed", "weights 1", "output", "points", "possible", "percent", "problem"],
        ["a.toml", "Zoë | <b>", "7", "36", "24", "60", "60", "100", ""],
        ["b.toml", "'=HYPERLINK(1)", "7", "35", "24", "59", "60", "98.3", ""],
        ["d.toml", "d", "7", "36", "24", "60", "60", "100", ""],
        ["c.toml", "", "", "", "", "", "", "", "not a text file (it is not UTF-8)"],
    ]


@pytest.mark.parametrize("style", MARKS_FORMATS)
def test_reports_name_students_and_escape_them(class_folder, style):
    group = mark_folder(class_folder)
    text = render_marks(group, style)
    single = render_marks(group.marks[1], style)
    assert "Zoë" in text
    assert "HYPERLINK" in single
    assert "Zoë" not in single
    if style in ("html", "markdown"):
        assert "<b>" not in text
    if style == "json":
        assert [entry["student"] for entry in json.loads(text)["students"]] == ["Zoë | <b>", "=HYPERLINK(1)", "d"]
        assert json.loads(single)["steps"][0]["head"] == 1


def test_causes_of_wrong_answers_are_reported(tmp_path, monkeypatch):
    sheet = exercise("song", "weights", seed=2)
    causes = (Cause("a", "Fits.", ((0, 0),)), Cause("b", "Explains a cell that is right.", ((5, 5),)))
    finding = CheckResult(1, "weights", 0, "values", "differs", "", (), causes)
    monkeypatch.setattr(marking_module, "check", lambda example: Audit("", (finding,)))
    marks = marked(sheet, answers_of(sheet, {("weights", 0): {(0, 0): 0.5}}), tmp_path)
    assert [cause.sentence for cause in marks.steps[0].causes] == ["Fits."]
    assert "cause: Fits." in render_marks(marks)
    assert "Fits." in render_marks(marks, "html")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("[exercise]", "[other]"), "there is no [exercise] table; expected a file from `clearhead exercise`"),
        (("seed = 2", "seed = 'x'"), "exercise.seed is 'x'; expected a whole number"),
        (("digits = 2", "digits = 99"), "exercise.digits is 99; expected 1 to 6"),
        (('blank = ["weights"]', "blank = []"), "blank is empty"),
        (('student = ""', "student = 1"), "exercise.student is 1; expected a name in quotes"),
        (('student = ""', 'pupil = ""'), "exercise has an unknown key 'pupil'"),
        (("x = [", "y = ["), "x is missing; expected the given numbers"),
        (("query = [", "unknown = ["), "unknown key 'unknown'"),
        (('step = "output"', 'step = "concat"'), "answers this step again"),
    ],
)
def test_damaged_answer_files_are_refused_with_the_reason(tmp_path, change, message):
    path = tmp_path / "answers.toml"
    text = to_toml(exercise("song", "weights", seed=2))
    assert change[0] in text
    path.write_text(text.replace(*change, 1))
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        mark(path)
    assert str(error.value).startswith(f"{path}: ")


def test_missing_files_and_empty_folders_are_refused(tmp_path):
    with pytest.raises(ValueError, match="there is no such file"):
        mark(tmp_path / "nothing")
    with pytest.raises(ValueError, match="there is no TOML file in this folder"):
        mark_folder(tmp_path)
    with pytest.raises(ValueError, match="there is no such folder"):
        mark_folder(tmp_path / "nothing")


def test_single_head_may_be_left_out(tmp_path):
    sheet = exercise(parse("x = [[1, 0], [0, 1], [1, 1]]"), "weights", seed=1)
    text = to_toml(sheet, answers=answers_of(sheet))
    before, _, after = text.rpartition('step = "weights"')
    path = tmp_path / "answers.toml"
    path.write_text(before + 'step = "weights"' + after.replace("head = 1\n", "", 1))
    assert mark(path).complete
