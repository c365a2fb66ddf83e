"""Tests of `clearhead explain` and `clearhead check`."""

import json
import re
import shlex
import subprocess
import sys
from io import StringIO

import pytest
from rich.console import Console
from typer.testing import CliRunner

from clearhead import check
from clearhead.cli import app
from clearhead.explain import BUILT_IN, load, parse
from clearhead.explain.render import print_audit, print_trace
from support.paths import ROOT
from support.recordings import translation
from support.refused_examples import REFUSED, X


def run_cli(*arguments: str, code: int = 0):
    result = CliRunner().invoke(app, [*arguments])
    assert result.exit_code == code, result.output
    return result


class TestExplain:
    @pytest.mark.parametrize("name", BUILT_IN)
    @pytest.mark.parametrize("style", ["text", "html", "markdown", "latex", "json", "toml"])
    def test_every_example_renders_in_every_format(self, name, style):
        result = run_cli("explain", name, "--format", style)
        assert result.stderr == ""
        assert load(name).title in result.stdout

    def test_json_counts_heads_from_1(self):
        document = json.loads(run_cli("explain", "two-heads", "--format", "json").stdout)
        assert [step["name"] for step in document["steps"]].count("weights") == 2
        assert {step["head"] for step in document["steps"]} == {None, 1, 2}
        assert document["steps"][0]["values"][0] == [0.2, 0.5, 0.1, 0.8]

    def test_step_and_head_options_select_steps(self):
        both = json.loads(run_cli("explain", "two-heads", "--format", "json", "--head", "1", "--head", "2").stdout)
        assert {step["head"] for step in both["steps"]} == {1, 2}
        options = ("--format", "json", "--step", "query", "--step", "scores", "--head", "2")
        document = json.loads(run_cli("explain", "two-heads", *options).stdout)
        assert [(step["name"], step["head"]) for step in document["steps"]] == [("query", 2), ("scores", 2)]
        only = json.loads(run_cli("explain", "two-heads", "--format", "json", "--head", "1").stdout)
        assert {step["head"] for step in only["steps"]} == {1}
        assert "Queries, head 1: Q₁" in run_cli("explain", "two-heads", "--head", "1").stdout

    def test_list_option_shows_every_example(self):
        lines = run_cli("explain", "--list").stdout.splitlines()
        for name, description in BUILT_IN.items():
            [line] = [line for line in lines if line.startswith(f"│ {name} ")]
            assert description in line
        [line] = [line for line in lines if "cross-attention" in line]
        assert [cell.strip() for cell in line.split("│")[3:-1]] == ["3 → 4", "1", "10"]

    def test_example_is_required_without_list(self):
        assert "NAME is missing; expected a built-in example" in run_cli("explain", code=2).stderr

    def test_digits_option_rounds_numbers(self):
        assert "7.3 " in run_cli("explain", "song", "--digits", "1").stdout
        rounded = json.loads(run_cli("explain", "song", "--format", "json", "--digits", "1").stdout)
        assert rounded["steps"][1]["values"][1][2] == 7.3

    def test_output_file_is_replaced_and_named_on_stderr(self, tmp_path):
        path = tmp_path / "page.html"
        path.write_text("old")
        result = run_cli("explain", "two-heads", "--format", "html", "--output", str(path))
        assert result.stdout == ""
        assert result.stderr == f"wrote {path}\n"
        assert path.read_text().startswith("<!doctype html>")
        assert [file.name for file in tmp_path.iterdir()] == ["page.html"]
        run_cli("explain", "song", "--output", str(tmp_path / "page"))
        assert (tmp_path / "page").read_text().startswith("List new ideas for a song\n")

    def test_toml_output_can_be_read_again(self, tmp_path):
        path = tmp_path / "mine.toml"
        run_cli("explain", "two-heads", "--format", "toml", "--output", str(path))
        assert run_cli("explain", str(path)).stdout == run_cli("explain", "two-heads").stdout
        assert parse(path.read_text()).drawn == ()

    def test_piped_tables_never_wrap(self):
        piped = subprocess.run(
            [sys.executable, "-m", "clearhead", "explain", "song", "--step", "scores"],
            capture_output=True, text=True, check=True, env={"COLUMNS": "20", "PATH": "/usr/bin"},
        ).stdout  # fmt: skip
        assert "Q Kᵀ     List     new    ideas     for       a     song\n" in piped
        assert "new     1.359  -0.711    9.808  15.380   7.746   22.540\n" in piped

    def test_narrow_terminal_splits_a_table(self):
        console = Console(file=StringIO(), width=40, force_terminal=True, color_system="truecolor")
        print_trace(console, load("song").trace().select(["scores"]), "song")
        shown = console.file.getvalue()
        assert "\x1b[" in shown
        plain = Console(file=StringIO(), width=40)
        print_trace(plain, load("song").trace().select(["scores"]), "song")
        lines = plain.file.getvalue().splitlines()
        assert max(len(line) for line in lines) <= 40
        assert "Q Kᵀ     List     new    ideas     for" in lines
        assert "Q Kᵀ        a     song" in lines
        assert "song    1.051    3.308" in lines

    def test_selected_steps_keep_their_positions(self):
        shown = run_cli("explain", "two-heads", "--step", "weights").stdout
        assert re.findall(r"^\d+\.", shown, re.MULTILINE) == ["8.", "16."]

    def test_mask_can_be_shown(self):
        shown = run_cli("explain", "song-causal", "--step", "mask").stdout
        assert "7. Mask: M" in shown
        assert re.search(r"new +0 +0 +-∞ +-∞ +-∞ +-∞\n", shown)

    @pytest.mark.parametrize("style", ["text", "html", "markdown", "latex", "json"])
    def test_cell_option_shows_arithmetic_in_every_format(self, style):
        shown = run_cli("explain", "two-heads", "--cell", "weights.2:1,2", "--format", style).stdout
        assert ("≈ 0.039" in shown) or ("\\approx 0.039" in shown)

    def test_cell_option_takes_the_head_option(self):
        shown = run_cli(
            "explain", "two-heads", "--cell", "head_output:3,1", "--cell", "output:1,1", "--head", "1"
        ).stdout
        assert "O₁[3,1] = 0.172 · 0.30" in shown
        assert "Y[1,1] = 0.385" in shown
        assert re.findall(r"^\d+\.", shown, re.MULTILINE) == ["9.", "19."]

    def test_head_of_a_model_is_explained_in_every_format(self, tmp_path):
        arguments = ("explain", "--model", "en-ja", "The cat ate the fish.", "--head", "cross.2.5")
        shown = run_cli(*arguments).stdout
        assert shown.startswith("Head cross.2.5 of en-ja\n  O = softmax(Q Kᵀ / √32) V\n")
        for style in ("html", "markdown", "latex", "json"):
            path = tmp_path / f"head.{style}"
            run_cli(*arguments, "--format", style, "--output", str(path))
            assert "cross.2.5" in path.read_text()
        assert "A[3,3] = e^8.763" in run_cli(*arguments, "--cell", "weights:3,3").stdout
        assert "6. Attention weights" in run_cli(*arguments, "--step", "weights").stdout

    def test_model_of_a_function_is_explained(self, tmp_path, monkeypatch):
        lines = ["import torch", "from clearhead import MultiHeadAttention", "def example():"]
        lines += ["    return MultiHeadAttention(8, 2), torch.ones(1, 3, 8), ['a', 'b', 'c']"]
        (tmp_path / "explained_model.py").write_text("\n".join(lines))
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path))
        shown = run_cli("explain", "--model", "explained_model:example", "--head", "0.1").stdout
        assert "O = softmax(Q Kᵀ / √4) V" in shown
        assert re.search(r"a +0\.333 +0\.333 +0\.333 +1\n", shown)

    def test_recording_is_explained(self, tmp_path):
        path = tmp_path / "recording.safetensors"
        translation(["a", "b"], ["x", "y", "z"]).save(path)
        assert "Head cross.0.1 of a translator" in run_cli("explain", str(path), "--head", "cross.0.1").stdout

    @pytest.mark.slow
    def test_unencodable_characters_are_escaped(self):
        done = subprocess.run(
            [sys.executable, "-m", "clearhead", "explain", "song", "--step", "scores"],
            capture_output=True, env={"PYTHONIOENCODING": "ascii", "PATH": "/usr/bin"},
        )  # fmt: skip
        assert done.returncode == 0
        assert b"Q K\\u1d40" in done.stdout


class TestCheck:
    @pytest.mark.parametrize("name", BUILT_IN)
    def test_texts_with_errors_exit_with_1_and_the_gallery_with_0(self, name):
        code = 1 if name.startswith(("two-heads", "song")) else 0
        assert run_cli("check", name, code=code).stdout.startswith(f"{load(name).title}\n")

    def test_errors_of_song_are_printed(self):
        shown = run_cli("check", "song", code=1).stdout
        for line in (
            "✗ key, head 1: given K is not X·W for any W: the best fit has an error of 0.58 in some cell",
            "✗ claim 5, query, head 1: 18 of 24 cells differ",
            "  new         3     4.49     7.310      -2.820",
            "✗ claim 6, key: claimed 4, computed 6: one row for each token",
            "✗ claim 9, weights: columns sum to 0.67, 1.66, 0.33, 1.37, 0.35, 1.63, not to 1; rows do",
            "✗ claim 10, weights: claimed 36, computed 1: one matrix for each head, with a row for each token",
            "13 checked: 8 agree, 5 differ, 0 carried",
        ):
            assert f"{line}\n" in shown

    def test_agreement_exits_with_0(self, tmp_path):
        path = tmp_path / "right.toml"
        path.write_text(X + "[[claims]]\nstep = 'weights'\nsum = 'rows'")
        assert "1 checked: 1 agree, 0 differ, 0 carried" in run_cli("check", str(path)).stdout
        path.write_text(X)
        assert (
            "0 checked: there is nothing to check, because the file has no claims" in run_cli("check", str(path)).stdout
        )

    def test_carried_cells_name_their_cause(self, tmp_path):
        path = tmp_path / "carried.toml"
        claims = "[[claims]]\nstep = 'query'\nvalues = [[9.0], [0.5]]\n[[claims]]\nstep = 'scores'\nvalues = "
        text = "x = [[1.0], [0.5]]\n[weights]\nquery = [[1]]\nkey = [[2]]\n" + claims + "[[18.0, 9.0], [1.0, 0.5]]"
        path.write_text(text)
        shown = run_cli("check", str(path), code=1).stdout
        assert "→ claim 2, scores, head 1: 2 of 4 cells differ, carried from Q as printed\n" in shown
        assert "  token 1  token 1     18.0     2.000      16.000             Q\n" in shown
        assert "2 checked: 0 agree, 1 differ, 1 carried\n" in shown

    def test_example_in_the_docs_prints_the_documented_output(self, tmp_path):
        docs = (ROOT / "docs" / "learn" / "worked-examples.md").read_text()
        [text], [printed] = (re.findall(rf"```{kind}\n(.*?)```", docs, re.DOTALL) for kind in ("markdown", "text"))
        path = tmp_path / "post.md"
        path.write_text(text)
        assert run_cli("check", str(path), code=1).stdout == printed

    def test_example_file_in_the_docs_has_the_errors_that_it_should_have(self, tmp_path):
        docs = (ROOT / "docs" / "reference" / "example-files.md").read_text()
        [text] = re.findall(r"```toml\n(.*?)```", docs, re.DOTALL)
        path = tmp_path / "post.toml"
        path.write_text(text)
        assert "3 checked: 0 agree, 3 differ, 0 carried" in run_cli("check", str(path), code=1).stdout

    def test_json_contains_verdicts_and_cells(self):
        document = json.loads(run_cli("check", "song-causal", "--json", code=1).stdout)
        assert set(document) == {"title", "counting", "agrees", "findings"}
        assert document["agrees"] is False
        [mask] = [entry for entry in document["findings"] if entry["step"] == "mask"]
        assert (mask["claim"], mask["head"], mask["kind"], mask["verdict"]) == (8, None, "values", "differs")
        assert mask["cells"][0] == {
            "row": 1, "column": 2, "claimed": 0.0, "computed": None, "difference": None, "carried_from": None,
        }  # fmt: skip

    @pytest.mark.parametrize("style", ["text", "html", "markdown", "json", "toml"])
    def test_every_format_is_written_to_a_file_with_the_same_exit_code(self, style, tmp_path):
        path, right = tmp_path / "audit", tmp_path / "right.toml"
        right.write_text(X + "[[claims]]\nstep = 'weights'\nsum = 'rows'")
        path.write_text("old")
        shown = run_cli("check", "song", "--format", style, code=1)
        result = run_cli("check", "song", "--format", style, "--output", str(path), code=1)
        assert (result.stdout, result.stderr) == ("", f"wrote {path}\n")
        assert path.read_text() == shown.stdout
        assert load("song").title in shown.stdout
        run_cli("check", str(right), "--format", style, code=0)
        assert sorted(file.name for file in tmp_path.iterdir()) == ["audit", "right.toml"]

    def test_json_option_equals_the_json_format(self):
        plain = run_cli("check", "song", "--json", code=1).stdout
        assert plain == run_cli("check", "song", "--format", "json", code=1).stdout
        assert plain == run_cli("check", "song", "--json", "--format", "json", code=1).stdout

    def test_corrected_text_agrees(self, tmp_path):
        path = tmp_path / "right.toml"
        run_cli("check", "two-heads", "--format", "toml", "--output", str(path), code=1)
        assert "18 checked: 18 agree, 0 differ, 0 carried" in run_cli("check", str(path)).stdout

    def test_digits_option_rounds_computed_numbers(self):
        assert (
            "| new | 3 | 4.49 | 7.3 |"
            in run_cli("check", "song", "--format", "markdown", "--digits", "1", code=1).stdout
        )
        document = json.loads(run_cli("check", "song", "--json", "--digits", "1", code=1).stdout)
        assert document["findings"][5]["cells"][0]["computed"] == 7.3

    def test_file_without_claims_has_nothing_to_check(self, tmp_path):
        path = tmp_path / "none.toml"
        path.write_text(X)
        assert (
            "0 checked: there is nothing to check, because the file has no claims\n"
            in run_cli("check", str(path)).stdout
        )

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("--json", "--format", "html"), "--json cannot be combined with --format html"),
            (("--format", "toml", "--digits", "2"), "--digits cannot be combined with --format toml"),
            (("--output", "/nowhere/at/all"), "/nowhere/at/all: there is no folder /nowhere/at"),
        ],
    )
    def test_rejects_invalid_arguments(self, arguments, message):
        result = run_cli("check", "song", *arguments, code=2)
        assert result.stdout == ""
        assert message in result.stderr
        assert result.stderr.count("\n") == 1

    def test_narrow_terminal_does_not_truncate_numbers(self):
        console = Console(file=StringIO(), width=30)
        print_audit(console, check("song"))
        assert "  new         3     4.49     7.310      -2.820" in console.file.getvalue().splitlines()


class TestErrors:
    def test_failed_output_exits_with_2(self):
        with open("/dev/full", "w") as full:
            command = [sys.executable, "-m", "clearhead", "explain", "song"]
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
        assert done.returncode == 2
        assert re.fullmatch("clearhead: (input or|standard) output: no space left on device\n", done.stderr)

    def test_closed_pipe_prints_no_error(self):
        command = f"{shlex.quote(sys.executable)} -m clearhead explain song | head -1; exit ${{PIPESTATUS[0]}}"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
        assert (done.stdout, done.stderr) == ("List new ideas for a song\n", "")
        assert done.returncode in (0, 141)

    @pytest.mark.parametrize("command", ["explain", "check"])
    @pytest.mark.parametrize("text", REFUSED, ids=lambda text: text.removeprefix(X)[:40])
    def test_rejects_invalid_examples_in_one_line(self, command, text, tmp_path):
        path = tmp_path / "mine.toml"
        path.write_text(text)
        result = run_cli(command, str(path), code=2)
        assert result.stdout == ""
        assert result.stderr.startswith(f"clearhead: {path}: ")
        assert REFUSED[text] in result.stderr
        assert result.stderr.count("\n") == 1

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("nowhere.toml",), "nowhere.toml: there is no such file"),
            (("song", "--step", "softmax"), "step is 'softmax'; expected one of embedding, positions, input"),
            (("song", "--step", "slice"), "step 'slice' does not occur in this calculation"),
            (("song", "--head", "2"), "head 2 does not occur; expected 1 to 1, counted from 1"),
            (("song", "--head", "0"), "head 0 does not occur"),
            (("song", "--head", "1", "--step", "concat"), "step concat is shared by all heads; leave the head out"),
            (
                ("song", "--format", "toml", "--head", "1"),
                "--step, --head, --cell and --digits cannot be combined with --format toml",
            ),
            (("song", "--head", "cross.2.5"), "--head is 'cross.2.5'; expected a whole number, counted from 1"),
            (("song", "--step", "mask"), "step 'mask' does not occur in this calculation, which has no mask"),
            (("song", "--cell", "weights"), "cell is 'weights'; expected step:row,column or step.head:row,column"),
            (("song", "--cell", "weights:7,1"), "but A is (6, 6); expected a row from 1 to 6 and a column from 1 to 6"),
            (("song", "--cell", "weights:0,1"), "expected a row from 1 to 6"),
            (("two-heads", "--cell", "weights:1,1"), "expected weights.1 or weights.2 in front of the colon"),
            (("song", "--cell", "weights:1,1", "--step", "query"), "--step and --cell are both given"),
            (("song", "--device", "cpu"), "--device is given without --model"),
            ((), "NAME is missing; expected a built-in example (--list shows them), a file, or a text with --model"),
            (("--model", "en-ja", "--head", "cross.0.0"), "TEXT is missing; expected a text to run en-ja on"),
            (("Hi.", "--model", "en-ja"), "--head is missing; expected one head of the model, counted from 0"),
            (("Hi.", "--model", "en-ja", "--head", "cross.9.9"), "head is 'cross.9.9', which en-ja does not have"),
            (("Hi.", "--model", "en-ja", "--head", "cross.0.0", "--format", "toml"), "--format is toml"),
            (("Hi.", "--model", "en-ja", "--head", "cross.0.0", "--step", "query", "--cell", "key:1,1"), "both given"),
            (("Hi.", "--model", "nowhere", "--head", "0.0"), "nowhere"),
            (("song", "--output", "/nowhere/at/all"), "/nowhere/at/all: there is no folder /nowhere/at"),
            (("song", "--output", "/"), "/: a folder; expected the name of a file"),
        ],
    )
    def test_rejects_invalid_arguments(self, arguments, message):
        result = run_cli("explain", *arguments, code=2)
        assert result.stdout == ""
        assert message in result.stderr
        assert result.stderr.count("\n") == 1

    def test_rejects_binary_file_without_traceback(self, tmp_path):
        (tmp_path / "junk").write_bytes(bytes(range(256)))
        for command in ("explain", "check"):
            result = run_cli(command, str(tmp_path / "junk"), code=2)
            assert result.stderr == f"clearhead: {tmp_path / 'junk'}: not a text file (it is not UTF-8)\n"
