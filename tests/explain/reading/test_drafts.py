"""Tests of drafts: matrices of whole texts, matched to steps, and the questions that a text leaves open."""

from pathlib import Path

import pytest
import torch

from clearhead import check
from clearhead.explain import load, load_draft, parse_draft
from clearhead.explain.render import render

FOLDER = Path(__file__).parent
X = "## Input\n\n| | 1 | 2 |\n|--|--|--|\n| go | 1.0 | 2.0 |\n| on | -1.0 | 0.5 |\n\n"


def latex(*rows: str) -> str:
    return r"\begin{bmatrix} " + r" \\ ".join(rows) + r" \end{bmatrix}"


Q_AND_K = f"$$Q = {latex('1 & 2', '3 & 4')}, K = {latex('1 & 0', '0 & 1')}$$\n\n"


def verdicts(draft):
    audit = check(draft.example())
    return {(result.step, result.head): result.verdict for result in audit.findings}


class TestThreeErrors:
    """A text with three errors: head 1 is not scaled, head 2 has softmax over columns, and W_O is transposed."""

    def test_all_three_are_reported_at_their_step(self):
        draft = load_draft(FOLDER / "three-errors.md")
        assert draft.questions == ()
        assert draft.notes == ()
        differing = [("scaled", 0), ("weights", 1), ("output", None)]
        carried = [("weights", 0), ("head_output", 0), ("head_output", 1), ("concat", None)]
        agreeing = [(step, head) for step in ("query", "key", "value", "scores") for head in (0, 1)] + [("scaled", 1)]
        assert verdicts(draft) == (
            dict.fromkeys(differing, "differs") | dict.fromkeys(carried, "carried") | dict.fromkeys(agreeing, "agrees")
        )

    def test_all_three_causes_are_named(self):
        audit = check(FOLDER / "three-errors.md")
        named = {(result.step, result.head): result.causes[0].name for result in audit.findings if result.causes}
        assert named == {
            ("scaled", 0): "not divided by √d_k",
            ("weights", 1): "softmax over columns",
            ("output", None): "W_O transposed",
        }

    def test_check_and_load_take_the_path(self):
        assert not check(FOLDER / "three-errors.md").agrees
        example = load(str(FOLDER / "three-errors.md"))
        assert example.title == "Two heads read three words"
        assert example.tokens == ("rain", "falls", "softly")
        assert (example.heads, example.split, example.mask) == (2, "project", None)

    def test_draft_names_the_line_of_each_matrix(self):
        text = (FOLDER / "three-errors.md").read_text().splitlines()
        toml = load_draft(FOLDER / "three-errors.md").toml
        line = text.index("### Attention weights") + 4  # of the first row, counted from 1
        assert f'[[claims]]\n# three-errors.md, line {line}: Attention weights\nstep = "weights"\nhead = 1\n' in toml
        assert text[line - 1].startswith("rain: [")


class TestRoundTrip:
    """The project's output formats are read back with the same numbers."""

    @pytest.mark.parametrize("style", ["markdown", "latex"])
    @pytest.mark.parametrize("name", ["two-heads", "two-heads-projected", "song", "song-causal"])
    def test_rendered_examples_are_read_back(self, name, style):
        example = load(name)
        document = render(example.trace(), style, title=example.title, digits=15)
        draft = parse_draft(document, name="page.tex" if style == "latex" else "page.md")
        assert draft.questions == ()
        again = draft.example()
        assert (again.heads, again.split, again.tokens) == (example.heads, example.split, example.tokens)
        torch.testing.assert_close(again.x, example.x, rtol=0, atol=0)
        assert (again.mask is None) == (example.mask is None)
        for step, expected in zip(again.trace(), example.trace(), strict=True):
            assert (step.name, step.head) == (expected.name, expected.head)
            torch.testing.assert_close(step.values, expected.values, rtol=0, atol=1e-12)
        # `clearhead check` tests whether a given K is X·W, which that of the song is not
        results = [result for result in check(again).findings if result.kind != "given"]
        assert len(results) >= (16 if again.heads == 2 else 6)
        assert {result.verdict for result in results} == {"agrees"}

    @pytest.mark.parametrize("style", ["markdown", "latex"])
    def test_printed_digits_set_the_tolerance(self, style):
        document = render(load("two-heads").trace(), style, title="Two heads")
        assert check(parse_draft(document, name="a.tex" if style == "latex" else "a.md").example()).agrees


class TestLatex:
    TEXT = r"""
\documentclass{article}
\title{Masked attention, number by number}
\begin{document}
\section{Inputs}
Two tokens. % not a matrix: \begin{bmatrix} 1 \end{bmatrix}
\begin{equation}
  \mathbf{X} = \begin{pmatrix} 1 & 2 \\ -1 & 0 \end{pmatrix}
\end{equation}
\begin{table}
\begin{tabular}{@{}l|*{2}{r}@{}}
 & $d_1$ & $d_2$ \\ \hline
row 1 & $1$ & $0$ \\
row 2 & $0$ & $1$
\end{tabular}
\caption{The query weights $W^Q$.}
\end{table}
\[ W^K = \underbrace{\begin{bmatrix} 1 & 0 \\ 0 & 1 \end{bmatrix}}_{2 \times 2}, \;
   W^V = \begin{bmatrix} 2 & 0 \\ 0 & 2 \end{bmatrix} \]
\section{Attention}
A causal mask hides later tokens.
\begin{align*}
  S &= \frac{QK^\top}{\sqrt{2}} = \begin{bmatrix} 3.54 & -0.71 \\ -0.71 & 0.71 \end{bmatrix} \\
  S + M &= \begin{bmatrix} 3.54 & -\infty \\ -0.71 & 0.71 \end{bmatrix} \\
  A &= \operatorname{softmax}(S + M) = \left(\begin{smallmatrix} 1 & 0 \\ 0.195 & 0.805 \end{smallmatrix}\right) \\
  Z &= AV = \begin{bmatrix} 2 & 4 \\ -1.22 & 0.78 \end{bmatrix}
\end{align*}
\end{document}
"""

    def test_document_is_read_without_questions(self):
        draft = parse_draft(self.TEXT, name="notes.tex")
        assert draft.questions == draft.notes == ()
        assert draft.example().title == "Masked attention, number by number"
        assert 'mask = "causal"' in draft.toml
        assert set(draft.example().stated) == {"query", "key", "value"}
        assert verdicts(draft) == dict.fromkeys(
            [("scaled", 0), ("masked", 0), ("weights", 0), ("head_output", 0)], "agrees"
        )

    def test_products_name_their_factors(self):
        text = f"$$Q = X W_Q = {latex('1 & 2')} {latex('3', '4')} = {latex('11')}$$"
        example = parse_draft(text).example()
        assert example.x.tolist() == [[1, 2]]
        assert example.weights["query"].tolist() == [[[3], [4]]]
        assert check(example).agrees

    def test_transposes_are_turned_back(self):
        text = f"{X}$$K^\\top = {latex('1 & 2', '3 & 4', '5 & 6')}, V = {latex('1 & 2')}^T$$"
        given = parse_draft(text).example().given_values
        assert given["key", 0].tolist() == [[1, 3, 5], [2, 4, 6]]
        assert given["value", 0].tolist() == [[1], [2]]


class TestPlainText:
    @pytest.mark.parametrize(
        "block",
        [
            "```\ngo: [1, 2]\non: [3, 4]\n```",
            "```\n1 2\n3 4\n```",
            "    [1 2]\n    [3 4]",
            "```python\nX = np.array([[1, 2], [3, 4]])\n```",
            "```python\nX = torch.tensor([\n    [1, 2],\n    [3, 4],\n])\n```",
            "```\ntensor([[1., 2.],\n        [3., 4.]], dtype=torch.float64)\n```",
            "```\n        a   b\ngo      1   2\non      3   4\n```",
            "X = [[1, 2], [3, 4]]",
            "- go: [1, 2]\n- on: [3, 4]",
            "```math\nX = \\begin{bmatrix} 1 & 2 \\\\ 3 & 4 \\end{bmatrix}\n```",
            "Here $X = \\begin{bmatrix} 1 & 2 \\\\ 3 & 4 \\end{bmatrix}$ is the input.",
            "| 1 | 2 |\n|--|--|\n| 3 | 4 |",
            "| | a | b |\n|--|--|--|\n| go | 1 | 2 |\n| on | 3 | 4 |",
            "| token | vector |\n|--|--|\n| go | [1, 2] |\n| on | [3, 4] |",
        ],
    )
    def test_input_is_read(self, block):
        assert parse_draft(f"### Input X\n\n{block}\n").example().x.tolist() == [[1, 2], [3, 4]]

    def test_sums_of_rows_are_not_part_of_the_matrix(self):
        table = "| | go | on | sum |\n|--|--|--|--|\n| go | 0.3 | 0.7 | 1 |\n| on | 0.5 | 0.5 | 1 |\n"
        assert "values" not in parse_draft(f"{X}### Attention weights\n\n{table}").toml  # given, without Q and K
        assert parse_draft(f"{X}### Attention weights\n\n{table}").example().given["weights", 0].shape == (2, 2)

    def test_tables_of_other_data_are_ignored(self):
        draft = parse_draft(
            f"{X}People:\n\n| name | age |\n|--|--|\n| Bob | 3 |\n\n| a | b |\n|--|--|\n| see | this |\n"
        )
        assert draft.questions == draft.notes == ()


class TestStatements:
    def test_matrices_without_their_weights_are_given(self):
        example = parse_draft(X + Q_AND_K).example()
        assert sorted(example.given) == [("key", 0), ("query", 0)]
        assert example.claims == ()

    @pytest.mark.parametrize(
        "sentence", ["A causal mask is used.", "No token sees later tokens.", "Masked self-attention."]
    )
    def test_causal_masks_are_recognized(self, sentence):
        assert 'mask = "causal"' in parse_draft(X + sentence).toml

    @pytest.mark.parametrize("sentence", ["There is no mask.", "Nothing is hidden.", "Attention without any mask."])
    def test_no_mask_is_added(self, sentence):
        assert "mask" not in parse_draft(X + sentence).toml

    def test_printed_mask_is_used(self):
        text = X + "Mask $M$:\n\n| 0 | 0 |\n|--|--|\n| $-\\infty$ | 0 |\n"
        assert parse_draft(text).example().additive_mask().tolist() == [[0, 0], [-torch.inf, 0]]

    def test_mask_of_ones_and_zeros_allows_ones(self):
        text = X + "$$M = \\begin{bmatrix} 1 & 1 \\\\ 0 & 1 \\end{bmatrix}$$"
        assert parse_draft(text).example().additive_mask().tolist() == [[0, 0], [-torch.inf, 0]]

    def test_remarks_about_scaling_do_not_leave_it_out(self):
        assert "scaling" not in parse_draft(X + "Without scaling, the scores would grow.").toml
        draft = parse_draft(X + "We leave out the scaling here.")
        assert draft.example().scale == 1
        assert draft.notes == ()

    def test_heads_counted_from_0_are_shifted(self):
        weights = "$$Q_0 = \\begin{bmatrix} 1 \\\\ 2 \\end{bmatrix}, Q_1 = \\begin{bmatrix} 3 \\\\ 4 \\end{bmatrix}$$"
        given = parse_draft(X + weights).example().given_values
        assert given["query", 0].tolist() == [[1], [2]]
        assert given["query", 1].tolist() == [[3], [4]]

    def test_matrices_of_all_heads_are_split_by_columns(self):
        blanks = "### Concatenated heads\n\n| _ | _ |\n|--|--|\n| _ | _ |\n"
        text = f"{X}Two heads, h = 2. The queries $Q$:\n\n| 1.5 | 2 |\n|--|--|\n| 3 | 4 |\n\n{blanks}"
        example = parse_draft(text).example()
        assert example.heads == 2
        assert example.given_values["query", 1].tolist() == [[2], [4]]

    def test_tokens_come_from_a_quoted_sentence(self):
        text = 'We read "press go".\n\n$$X = \\begin{bmatrix} 1 \\\\ 2 \\end{bmatrix}$$'
        assert parse_draft(text).example().tokens == ("press", "go")

    def test_zeros_that_stand_for_blanks_are_not_claims(self):
        zeros = "### Scores $QK^T$\n\n| 0. | 0. |\n|--|--|\n| 0. | 0. |\n"
        draft = parse_draft(X + Q_AND_K + zeros)
        assert "every cell of the scores of head 1 is 0; read as blanks" in draft.notes[0]
        assert verdicts(draft)["scores", 0] == "agrees"


class TestQuestions:
    SCORES = X + Q_AND_K + "Scores:\n\n| 1 | 3 |\n|--|--|\n| 2 | 4.0 |\n"

    def test_ambiguous_matrix_is_assumed_and_asked_about(self):
        [question] = parse_draft(self.SCORES, name="notes.md").questions
        assert question.choices == ("scores 1", "scaled 1")
        assert question.assumed == "scores 1"
        assert question.line == self.SCORES.splitlines().index("| 1 | 3 |") + 1
        assert question.text == (
            'the 2 × 2 matrix under "Scores:" could be the scores of head 1 or the scaled scores of head 1; '
            "assumed scores of head 1"
        )

    def test_answers_replace_assumptions(self):
        draft = parse_draft(self.SCORES, answers={4: "scaled 1"})
        assert draft.questions == ()
        assert ("scaled", 0) in verdicts(draft)
        left_out = parse_draft(self.SCORES, answers={4: "leave out"})
        assert left_out.example().claims == ()
        assert "#   [1, 3],\n" in left_out.toml

    @pytest.mark.parametrize(
        "answers", [{4: "nothing"}, {4: "query 9"}, {9: "query 1"}, {4: "input 1"}, {"a": "b"}, {4: 5}]
    )
    def test_wrong_answers_are_refused(self, answers):
        with pytest.raises(ValueError, match="answers"):
            parse_draft(self.SCORES, answers=answers)

    def test_unnamed_matrix_is_left_out_in_comments(self):
        draft = parse_draft(f"{X}Look at this.\n\n| 0.5 | 0.25 |\n|--|--|\n| 7 | 8 |\n")
        [question] = draft.questions
        assert question.assumed is None
        assert "left out of the check" in question.text
        assert "#   [0.5, 0.25],\n" in draft.toml
        assert draft.example().claims == ()

    def test_unreadable_cell_is_named_with_its_line(self):
        draft = parse_draft(f"{X}$$Q = \\begin{{bmatrix}} 1 & 2 \\\\ oops & 4 \\end{{bmatrix}}$$", name="a.md")
        assert draft.notes == ("a.md, line 8: cell 'oops' is not a number; the table is left out",)

    def test_output_that_does_not_follow_from_the_text_is_left_out(self):
        text = f"{X}$$Q_1 = {latex('1', '2')}$$\n\n$$Q_2 = {latex('1', '2')}$$\n\n$$Y = {latex('1 & 2', '3 & 4')}$$"
        draft = parse_draft(text)
        assert "the output cannot be checked" in draft.notes[0]

    def test_text_without_input_is_refused(self):
        with pytest.raises(ValueError, match=r"a.md: no matrices; expected Markdown tables"):
            parse_draft("Nothing here.", name="a.md")
        with pytest.raises(ValueError, match=r"2 matrices: queries of head 1 \(line 1\), .* but no input X"):
            parse_draft(Q_AND_K)

    def test_loading_warns_about_questions(self, tmp_path):
        path = tmp_path / "notes.md"
        path.write_text(self.SCORES)
        with pytest.warns(UserWarning, match="notes.md, line 12: the 2 × 2 matrix"):
            assert load(path).heads == 1
