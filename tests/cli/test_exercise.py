"""Tests of `clearhead exercise` and `clearhead mark`."""

import csv
import io
import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from clearhead.cli import app
from clearhead.explain.exercises import exercise, to_toml
from support.exercise_answers import answers_of


def run_cli(*arguments: object, code: int = 0):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def sheet():
    return exercise("two-heads", "weights,output", seed=7)


class TestExercise:
    @pytest.mark.parametrize(
        ("name", "start"),
        [
            ("sheet.html", "<!doctype html>"),
            ("sheet.md", "# Two heads"),
            ("sheet.tex", r"\documentclass"),
            ("sheet.TOML", "# Replace each"),
        ],
    )
    def test_format_follows_the_suffix(self, tmp_path, name, start):
        result = run_cli("exercise", "two-heads", "--blank", "weights,output", "--seed", 7, "--output", tmp_path / name)
        assert (tmp_path / name).read_text().startswith(start)
        assert result.stderr == f"wrote {tmp_path / name}\n"
        assert result.stdout == ""

    def test_sheet_is_that_of_the_library(self, sheet):
        arguments = ("--blank", "weights,output", "--seed", 7, "--format", "toml")
        assert run_cli("exercise", "two-heads", *arguments).stdout == to_toml(sheet)

    def test_seed_digits_and_points_are_used(self):
        arguments = ("--seed", 3, "--digits", 3, "--points", "weights=2.5", "--format", "toml")
        shown = run_cli("exercise", "song", *arguments).stdout
        assert "seed = 3\ndigits = 3\n" in shown
        assert 'points = { "weights" = 2.5 }' in shown

    def test_own_file_is_redrawn(self, tmp_path):
        path = tmp_path / "mine.toml"
        path.write_text("x = [[1, 0], [0, 1]]\nmask = 'causal'")
        shown = run_cli("exercise", path, "--format", "toml").stdout
        assert 'example = "mine"' in shown
        assert 'mask = "causal"' in shown
        assert str(tmp_path) not in shown

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("--blank", "weight"), "blank has 'weight'; did you mean 'weights'?"),
            (("--points", "weights"), "--points has 'weights'; expected a step and its points, such as weights=6"),
            (("--points", "output=1"), "points has 'output', which is not a blank step; expected one of weights"),
            (("--output", "sheet.doc"), "--output is sheet.doc; expected a name that ends in .html, .md, .tex, .toml"),
            (("--self-check",), "a sheet in markdown cannot mark answers; expected style html"),
        ],
    )
    def test_wrong_options_are_one_line(self, arguments, message):
        stderr = run_cli("exercise", "song", *arguments, code=2).stderr
        assert message in stderr
        assert len(stderr.splitlines()) == 1


class TestMark:
    def test_exit_code_is_0_for_full_credit_and_1_otherwise(self, tmp_path, sheet):
        teacher, student = tmp_path / "exercise.toml", tmp_path / "ada.toml"
        teacher.write_text(to_toml(sheet))
        student.write_text(to_toml(sheet, student="Ada", answers=answers_of(sheet)))
        shown = run_cli("mark", student, "--exercise", teacher).stdout
        assert shown.startswith("Ada: Two heads")
        assert shown.endswith("160 of 160 points (100 %)\n")
        wrong = answers_of(sheet, {("weights", 0): {(2, 1): 0.3}}, rounded=False)
        student.write_text(to_toml(sheet, student="Ada", answers=wrong))
        shown = run_cli("mark", student, "--exercise", teacher, code=1).stdout
        assert "Attention weights, head 1: 63 of 64 (63 right, 1 wrong)" in shown
        assert "4 carried" in shown
        assert "159 of 160 points (99.4 %)" in shown
        assert "not compared with the teacher's exercise" in run_cli("mark", student, code=1).stdout

    def test_changed_given_is_one_line_with_exit_code_2(self, tmp_path, sheet):
        teacher, student = tmp_path / "exercise.toml", tmp_path / "ada.toml"
        teacher.write_text(to_toml(sheet))
        student.write_text(to_toml(sheet).replace(f"x = [\n  [{sheet.example.x[0, 0]:.1f}", "x = [\n  [0.05"))
        stderr = run_cli("mark", student, "--exercise", teacher, code=2).stderr
        assert "x, row 1, column 1 is 0.05; expected" in stderr
        assert stderr.endswith("the given numbers must not be changed\n")

    def test_folder_is_marked_completely_and_exit_code_2_tells_of_unreadable_files(self, tmp_path, sheet):
        folder = tmp_path / "class"
        folder.mkdir()
        for name in ("b", "a"):
            (folder / f"{name}.toml").write_text(to_toml(sheet, student=name.upper(), answers=answers_of(sheet)))
        output = tmp_path / "marks.csv"
        assert run_cli("mark", folder, "--output", output).stderr == f"wrote {output}\n"
        assert [row[1] for row in csv.reader(io.StringIO(output.read_text()))] == ["student", "A", "B"]
        (folder / "c.toml").write_text("x =")
        result = run_cli("mark", folder, "--format", "json", code=2)
        document = json.loads(result.stdout)
        assert [entry["points"] for entry in document["students"]] == [160, 160]
        assert [entry["file"] for entry in document["unreadable"]] == ["c.toml"]
        assert result.stderr.startswith("clearhead: c.toml: not a TOML file")
        (folder / "c.toml").write_text(to_toml(sheet))
        assert "0 " in run_cli("mark", folder, code=1).stdout

    def test_missing_and_empty_inputs_are_one_line(self, tmp_path):
        assert "there is no such file" in run_cli("mark", tmp_path / "x.toml", code=2).stderr
        assert "there is no TOML file in this folder" in run_cli("mark", tmp_path, code=2).stderr


def test_help_does_not_import_torch():
    show_help = "app(['mark', '--help'], standalone_mode=False)"
    script = f"import sys; from clearhead.cli import app; {show_help}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
