"""Tests of commands on texts in Markdown and LaTeX: questions, drafts and exit codes."""

import pytest
from typer.testing import CliRunner

from clearhead.cli import app, texts
from clearhead.explain import load
from support.paths import ROOT

THREE_ERRORS = ROOT / "tests" / "explain" / "reading" / "three-errors.md"
PROJECTIONS = "W_Q = [[1, 0], [0, 1]]\n\nW_K = [[1, 0], [0, 1]]\n\n"
AGREEING = f"X = [[1, 2], [3, 4]]\n\n{PROJECTIONS}Q = [[1, 2], [3, 4]]\n\n"
AMBIGUOUS = f"{AGREEING}Scores:\n\n| 5 | 11 |\n|--|--|\n| 11 | 26.0 |\n"  # neither the scores nor the scaled scores


def run_cli(*arguments: str, code: int = 0, answers: str | None = None):
    result = CliRunner().invoke(app, [*arguments], input=answers)
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def notes(tmp_path):
    path = tmp_path / "notes.md"
    path.write_text(AMBIGUOUS)
    return path


@pytest.fixture
def terminal(monkeypatch):
    """Make standard input and stderr look like terminals."""
    monkeypatch.setattr(texts, "_is_interactive", lambda: True)


def test_three_errors_in_different_heads_are_reported():
    result = run_cli("check", str(THREE_ERRORS), code=1)
    assert result.stderr == ""
    assert result.stdout.endswith("16 checked: 9 agree, 3 differ, 4 carried\n")
    assert not THREE_ERRORS.with_suffix(".toml").exists()


def test_text_without_questions_writes_no_file(tmp_path):
    path = tmp_path / "notes.markdown"
    path.write_text(AGREEING)
    assert run_cli("check", str(path)).stderr == ""
    assert [file.name for file in tmp_path.iterdir()] == ["notes.markdown"]


def test_draft_option_writes_the_draft(tmp_path, notes):
    target = tmp_path / "mine.toml"
    result = run_cli("check", str(notes), "--draft", str(target), code=1)
    assert f"wrote {target}\n" in result.stderr
    assert sorted(file.name for file in tmp_path.iterdir()) == ["mine.toml", "notes.md"]
    assert run_cli("check", str(target), code=1).stdout == result.stdout


def test_questions_are_printed_and_the_draft_is_written_next_to_the_text(tmp_path, notes):
    result = run_cli("check", str(notes), code=1)
    question, wrote = result.stderr.splitlines()
    assert question.startswith('notes.md, line 11: the 2 × 2 matrix under "Scores:" could be the scores of head 1')
    assert wrote == f"wrote {tmp_path / 'notes.toml'}; edit it where the assumptions are wrong, then check it"
    assert load(tmp_path / "notes.toml").claims[-1].step == "scores"


@pytest.mark.parametrize("command", ["explain", "exercise"])
def test_explain_and_exercise_ask_the_same_questions(tmp_path, notes, command, monkeypatch):
    checked = run_cli("check", str(notes), code=1).stderr
    (tmp_path / "notes.toml").unlink()
    result = run_cli(command, str(notes))
    assert result.stderr == checked
    assert (tmp_path / "notes.toml").exists()
    monkeypatch.setattr(texts, "_is_interactive", lambda: True)
    assert "[scores 1]:" in run_cli(command, str(notes), answers="scaled 1\n").stderr
    assert load(tmp_path / "notes-1.toml").claims[-1].step == "scaled"


def test_explanation_names_the_text_to_check(tmp_path):
    path = tmp_path / "wrong.md"
    path.write_text(AGREEING.replace("Q = [[1, 2]", "Q = [[1, 9]"))
    assert "other numbers in 1 of 4 cells; see `clearhead check wrong.md`." in run_cli("explain", str(path)).stdout


def test_drafts_do_not_replace_other_files(tmp_path, notes):
    (tmp_path / "notes.toml").write_text("mine")
    run_cli("check", str(notes), code=1)
    assert "notes-1.toml is the draft" in run_cli("check", str(notes), code=1).stderr
    assert (tmp_path / "notes.toml").read_text() == "mine"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["notes-1.toml", "notes.md", "notes.toml"]


@pytest.mark.usefixtures("terminal")
def test_answers_on_a_terminal_are_used(tmp_path, notes):
    result = run_cli("check", str(notes), code=1, answers="nonsense\nscaled 1\n")
    assert "Step (1: scores 1, 2: scaled 1, 3: leave out) [scores 1]:" in result.stderr
    assert "'nonsense' is not a choice" in result.stderr
    assert "claim 2, scaled, head 1: 4 of 4 cells differ" in result.stdout
    assert load(tmp_path / "notes.toml").claims[-1].step == "scaled"


@pytest.mark.usefixtures("terminal")
def test_choices_are_answered_by_their_position(notes):
    assert "claim 2, scaled" in run_cli("check", str(notes), code=1, answers="7\n2\n").stdout


def test_folder_is_refused_with_the_kinds_of_files(tmp_path):
    result = run_cli("check", str(tmp_path), code=2)
    assert "a folder; expected a TOML, Markdown or LaTeX file" in result.stderr


@pytest.mark.usefixtures("terminal")
def test_empty_answer_takes_the_assumption(notes):
    assert "claim 2, scores" in run_cli("check", str(notes), code=1, answers="\n").stdout


def test_text_without_input_is_refused_in_one_line(tmp_path):
    path = tmp_path / "notes.md"
    path.write_text(PROJECTIONS)
    assert run_cli("check", str(path), code=2).stderr == (
        "clearhead: notes.md: 2 matrices: W_Q of head 1 (line 1), W_K of head 1 (line 3), but no input X; "
        'expected a matrix named X, or one under a heading such as "Input"\n'
    )


def test_draft_of_a_toml_file_is_refused(tmp_path):
    result = run_cli("check", "song", "--draft", str(tmp_path / "a.toml"), code=2)
    assert "--draft: song is not a text to read; expected a .md, .markdown, .tex file" in result.stderr


def test_explain_writes_out_a_text(notes):
    result = run_cli("explain", str(notes), "--step", "query")
    assert "Queries" in result.stdout
    assert "could be the scores" in result.stderr
