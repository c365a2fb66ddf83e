"""Tests of notations that authors use: correct texts are read without questions, and agree."""

import re

import pytest

from clearhead import check
from clearhead.explain import parse_draft


def matrix(rows: str) -> str:
    """Return a LaTeX matrix of rows such as "1 0; 0 2"."""
    body = r" \\ ".join(" & ".join(row.split()) for row in rows.split(";"))
    return rf"\begin{{bmatrix}} {body} \end{{bmatrix}}"


def formula(text: str) -> str:
    """Return a formula whose matrices are written as "<1 0; 0 2>"."""
    return f"$${re.sub('<([^<>]*)>', lambda match: matrix(match[1]), text)}$$\n\n"


X, W_Q, W_K, W_V = map(formula, ("X = <1 0; 0 2>", "W_Q = <1 0; 1 1>", "W_K = <0 1; 1 0>", "W_V = <2 1; 0 1>"))
BASE = X + W_Q + W_K + W_V  # Q = [1 0; 2 2], K = [0 1; 2 0], V = [2 1; 0 2], scores = [0 2; 2 4]
HEAD_OUTPUT = "<0.39 1.80; 0.39 1.80>"


def claims(text, **options):
    """Check a text that has no questions, and return the steps and heads of its claims, counted from 0."""
    draft = parse_draft(text, **options)
    assert draft.questions == draft.notes == ()
    audit = check(draft.example())
    assert {result.verdict for result in audit.findings} <= {"agrees"}
    return [(claim.step, claim.head) for claim in draft.example().claims]


class TestFunctions:
    @pytest.mark.parametrize(
        "name",
        [
            r"\text{Attention}(Q,K,V)",
            r"\text{Attention}(Q, K, V)",
            r"\operatorname{Attention}(Q,K,V)",
            r"\mathrm{Attention}(Q, K, V) = \mathrm{softmax}(\frac{QK^T}{\sqrt{d_k}})V",
            r"\text{head}_1 = \text{Attention}(XW_Q, XW_K, XW_V)",
        ],
    )
    def test_attention_is_the_head_output(self, name):
        assert claims(BASE + formula(f"{name} = {HEAD_OUTPUT}")) == [("head_output", 0)]

    def test_multi_head_attention_is_the_output(self):
        text = BASE + formula("W_O = <1 0; 0 2>") + formula(r"\text{MultiHead}(Q, K, V) = <0.39 3.61; 0.39 3.61>")
        assert claims(text) == [("output", None)]

    def test_scores_after_softmax_are_weights(self):
        text = f"{BASE}Attention scores after softmax:\n\n{formula('<0.2 0.8; 0.2 0.8>')}"
        assert claims(text) == [("weights", 0)]


class TestScaling:
    @pytest.mark.parametrize(
        "sentence",
        [
            "We do not scale the scores in this example.",
            "We don't scale here.",
            "There is no scaling.",
            r"We work without dividing by $\sqrt{d_k}$.",
        ],
    )
    def test_unscaled_texts_are_recognized(self, sentence):
        text = f"{BASE}{sentence}\n\n{formula(r'A = softmax(QK^T) = <0.12 0.88; 0.12 0.88>')}"
        assert claims(text) == [("weights", 0)]
        assert 'scale = "none"' in parse_draft(text).toml


class TestBiases:
    def test_biases_are_added(self):
        text = BASE + formula("b_Q = <1 0.5>") + formula("b^{K} = <1; 0.5>")
        text += formula("Q = XW_Q + b_Q = <2 0.5; 3 2.5>") + formula("K = XW_K + b^K = <1 1.5; 3 0.5>")
        assert claims(text) == [("query", 0), ("key", 0)]
        assert parse_draft(text).example().biases["key"].tolist() == [[1, 0.5]]

    def test_output_bias(self):
        text = BASE + formula("W_O = <1 0; 0 2>") + formula("b_O = <1 1>")
        assert claims(text + formula("Y = CW_O + b_O = <1.39 4.61; 1.39 4.61>")) == [("output", None)]

    def test_biases_of_two_heads_are_a_list_each(self):
        text = X + "".join(
            formula(f"W_{{Q,{head}}} = <1; 1>") + formula(f"b_{{Q,{head}}} = <{head}>") for head in (1, 2)
        )
        assert parse_draft(text).example().biases["query"].tolist() == [[1], [2]]

    def test_bias_with_different_rows_is_left_out(self):
        draft = parse_draft(BASE + formula("b_Q = <1 0; 2 0>"))
        assert "the bias of the queries of head 1 cannot be checked: its rows differ" in draft.notes[0]
        assert draft.example().biases == {}


class TestVectors:
    def test_vectors_of_one_token_are_rows(self):
        names = ("q_1 = <1 0>", "k_2 = <2; 0>", "z_1 = <0.39 1.80>", r"\mathbf{q}_{2} = x_2 W_Q = <2 2>")
        text = BASE + "".join(map(formula, names))
        assert claims(text) == [("query", 0), ("key", 0), ("head_output", 0), ("query", 0)]
        assert [claim.row for claim in parse_draft(text).example().claims] == [0, 1, 0, 1]

    def test_wrong_vector_differs(self):
        audit = check(parse_draft(BASE + formula("q_2 = <2 3>")).example())
        assert [result.verdict for result in audit.findings] == ["differs"]

    def test_vectors_are_asked_about_with_several_heads(self):
        text = X + formula("W^Q_1 = <1; 1>") + formula("W^Q_2 = <1; 0>") + formula("q_1 = <1 0>")
        [question] = parse_draft(text).questions
        assert question.choices == ("query 1", "query 2")
        assert question.assumed is None

    def test_vectors_of_all_tokens_are_the_matrix(self):
        text = "".join(map(formula, ("x_1 = <1 0>", "x_2 = <0 2>", "q_1 = <1 0>", "q_2 = <1 0.5>", "k_1 = <3 0>")))
        draft = parse_draft(text)
        assert draft.example().x.tolist() == [[1, 0], [0, 2]]
        assert draft.example().given_values["query", 0].tolist() == [[1, 0], [1, 0.5]]
        [note] = draft.notes
        assert "the keys of head 1 cannot be checked" in note

    def test_vectors_of_all_rows_of_x_are_the_queries(self):
        text = X + formula("q_1 = <1 0>") + formula("q_2 = <1 0.5>")
        assert parse_draft(text).example().given_values["query", 0].tolist() == [[1, 0], [1, 0.5]]

    def test_headings_are_stronger_than_labels_of_tokens(self):
        table = "| | a | b |\n|--|--|--|\n| x1 | {} | {} |\n| x2 | {} | {} |\n\n"
        text = f"{X}## W_Q\n\n{table.format(1, 0, 1, 1)}## Queries\n\n{table.format(1, 0, 2, 2)}"
        assert claims(text) == [("query", 0)]


class TestPositions:
    WEIGHTS = W_Q + W_K + W_V
    ENCODING = f"The positional encoding:\n\n{formula('P = <0 0; 0 1>')}"
    QUERIES = formula("Q = <1 0; 2 2>")

    @pytest.mark.parametrize("name", ["PE", "P", r"E_{\text{pos}}"])
    def test_sums_are_claims_about_the_input(self, name):
        text = formula("E = <1 0; 0 1>") + formula(f"{name} = <0 0; 0 1>") + self.WEIGHTS
        text += formula(f"X = E + {name} = <1 0; 0 2>") + self.QUERIES
        if name == "P":
            text = f"{text}We add a positional encoding.\n\n{formula('A = <0.2 0.8; 0.2 0.8>')}"
        assert claims(text)[:2] == [("input", None), ("query", 0)]
        example = parse_draft(text).example()
        assert example.trace().named("embedding")[0].values.tolist() == [[1, 0], [0, 1]]

    def test_encoding_under_its_name_is_not_the_weights(self):
        text = f"{formula('E = <1 0; 0 1>')}{self.ENCODING}{self.WEIGHTS}{formula('X = E + P = <1 0; 0 2>')}"
        assert claims(text + self.QUERIES) == [("input", None), ("query", 0)]

    def test_encoding_of_a_text_without_a_sum_is_left_out(self):
        draft = parse_draft(BASE + self.ENCODING + self.QUERIES)
        assert "the positional encoding is left out" in draft.notes[0]
        assert check(draft.example()).agrees

    def test_encoding_that_the_text_adds_is_added_to_x(self):
        text = f"{formula('X = <1 0; 0 1>')}We add positions.\n\n{self.ENCODING}{self.WEIGHTS}{self.QUERIES}"
        draft = parse_draft(text)
        assert "assumed that the positional encoding is added to the X of line 1" in draft.notes[0]
        assert check(draft.example()).agrees

    def test_p_is_the_probabilities_elsewhere(self):
        assert claims(BASE + formula("P = <0.2 0.8; 0.2 0.8>")) == [("weights", 0)]

    def test_headings_name_the_parts(self):
        parts = {
            "Embeddings": "<1 0; 0 1>",
            "Positional encoding": "<0 0; 0 1>",
            "Embeddings plus positions": "<1 0; 0 2>",
        }
        text = "".join(f"## {title}\n\n{formula(cells)}" for title, cells in parts.items())
        assert claims(text + self.WEIGHTS + self.QUERIES) == [("input", None), ("query", 0)]


class TestMemory:
    @pytest.mark.parametrize(
        "name",
        ["The encoder output (memory):\n\n$$M", "$$X_{enc}", r"$$\text{memory}", "The encoder output $H$:\n\n$$H"],
    )
    def test_keys_come_from_the_encoder(self, name):
        text = f"{BASE}{name} = {matrix('1 0; 0 1; 1 1')}$$\n\n"
        text += formula("K = <0 1; 1 0; 1 1>") + formula("QK^T = <0 1 1; 2 2 4>")
        assert claims(text) == [("key", 0), ("scores", 0)]
        assert parse_draft(text).example().memory.shape == (3, 2)


class TestExactNumbers:
    def test_roots_and_fractions_are_evaluated(self):
        scores = r"\frac{QK^T}{\sqrt{2}} = \begin{bmatrix} 0 & \frac{2}{\sqrt 2} \\ \sqrt 2 & 2\sqrt{2} \end{bmatrix}"
        assert claims(f"{BASE}$${scores}$$") == [("scaled", 0)]

    def test_results_of_fractions_agree(self):
        text = (
            r"$$X = \begin{bmatrix} \frac{1}{3} & \frac{1}{7} \end{bmatrix}$$" + "\n\n" + formula("W_Q = <2 0; 0 0.3>")
        )
        text += r"$$Q = \begin{bmatrix} \frac{2}{3} & \frac{3}{70} \end{bmatrix}$$"
        assert claims(text) == [("query", 0)]

    @pytest.mark.parametrize("cell", [r"\sqrt[3]{5}", r"\frac{a}{2}"])
    def test_other_formulas_leave_the_matrix_out(self, cell):
        for cells in (f"{cell} & 1", f"1 & {cell}", f"{cell} & {cell}"):
            draft = parse_draft(rf"{BASE}$$Q = \begin{{bmatrix}} {cells} \\ 1 & 2 \end{{bmatrix}}$$")
            assert f"cell {cell!r} is not a number" in draft.notes[0]
            assert draft.example().claims == ()


class TestAmbiguousScores:
    @pytest.mark.parametrize(
        ("cells", "step"), [("<0 2; 2 4>", "scores"), ("<0 1.41; 1.41 2.83>", "scaled"), ("<0 1.4; 1.4 2.8>", "scaled")]
    )
    @pytest.mark.parametrize("name", ["S", "S'", r"\tilde{S}"])
    def test_reading_that_agrees_is_taken(self, name, cells, step):
        assert claims(BASE + formula(f"{name} = {cells}")) == [(step, 0)]

    def test_numbers_that_agree_with_neither_are_asked_about(self):
        [question] = parse_draft(BASE + formula("S = <0 3; 2 4>")).questions
        assert question.assumed == "scores 1"

    def test_numbers_that_agree_with_both_are_asked_about(self):
        zeros = formula("X = <0 0>") + W_Q + W_K + formula("S = <0>")
        [question] = parse_draft(zeros).questions
        assert question.choices == ("scores 1", "scaled 1")


class TestRunningText:
    @pytest.mark.parametrize(
        "text",
        [
            "Q = X Wq = [[1, 0], [2, 2]]",
            "- Q = X Wq = [[1, 0], [2, 2]]",
            "So we get Q = [[1, 0], [2, 2]].",
            "Thus $Q = X W_Q = [[1, 0], [2, 2]]$, as above.",
            "## Queries\n\n<table>\n<tr><th></th><th>a</th><th>b</th></tr>\n"
            "<tr><td>go</td><td>1</td><td>0</td></tr>\n<tr><td>on</td><td>2</td><td>2</td></tr>\n</table>",
        ],
    )
    def test_matrices_are_read(self, text):
        assert claims(BASE + text) == [("query", 0)]

    @pytest.mark.parametrize("text", ["q_2 = (2, 2)", "Then $q_2 = (2, 2)$.", "- q_2 = x_2 W_Q = (2, 2)"])
    def test_vectors_are_read(self, text):
        assert claims(BASE + text) == [("query", 0)]
        assert parse_draft(BASE + text).example().claims[0].row == 1

    def test_several_matrices_of_a_sentence_are_read(self):
        text = f"{BASE}We get Q = [[1, 0], [2, 2]] and K = [[0, 1], [2, 0]]."
        assert claims(text) == [("query", 0), ("key", 0)]

    def test_matrix_without_a_symbol_is_noted(self):
        [note] = parse_draft(f"{X}Then it is [[1, 0], [2, 2]] as before.", name="a.md").notes
        assert note.startswith("a.md, line 3: [[1, 0], [2, 2]] stands in a sentence")

    @pytest.mark.parametrize("text", ["Q.shape = (2, 2)", "Its shape = (2, 2) is small.", "See f = (a, b) in [12]."])
    def test_shapes_are_no_matrices(self, text):
        assert claims(BASE + text) == []


class TestSharedKeys:
    QUERIES = formula("W_{Q1} = <1 0; 1 1>") + formula("W_{Q2} = <1 1; 0 1>")

    @pytest.mark.parametrize(
        "sentence",
        ["We use GQA.", "Grouped-query attention.", "Here kv_heads = 1.", "Multi-query.", "Both heads share K and V."],
    )
    def test_one_pair_of_weights_serves_all_heads(self, sentence):
        text = f"{X}{sentence}\n\n{self.QUERIES}{W_K}{W_V}{formula('K = <0 1; 2 0>')}"
        text += formula("Q_1 K^T = <0 2; 2 4>") + formula("Q_2 K^T = <1 2; 2 0>")
        assert claims(text) == [("key", 0), ("scores", 0), ("scores", 1)]
        assert parse_draft(text).example().kv_heads == 1

    def test_given_keys_are_shared(self):
        text = (
            f"{X}Multi-query attention.\n\n{self.QUERIES}{formula('K = <0 1; 2 0>')}{formula('Q_2 K^T = <1 2; 2 0>')}"
        )
        assert claims(text) == [("scores", 1)]

    def test_other_texts_share_nothing(self):
        assert "kv_heads" not in parse_draft(X + self.QUERIES + W_K).toml


def test_rows_of_scores_are_read_by_their_numbers():
    text = BASE + formula("s_1 = <0 2>") + formula("s_2 = <2 4>") + formula(r"\alpha_1 = <0.2 0.8>")
    assert claims(text) == [("scores", 0), ("scores", 0), ("weights", 0)]


def test_unexplained_m_that_fits_the_keys_is_asked_about_as_memory():
    draft = parse_draft(BASE + formula("M = <1 0; 0 1; 1 1>") + formula("K = <0 1; 1 0; 1 1>"))
    [question] = draft.questions
    assert question.text.endswith("could be the memory or the mask; assumed memory")
    assert check(draft.example()).agrees


def test_m_of_the_width_of_the_keys_is_the_memory():
    text = X + W_Q + formula("W_K = <0 1; 1 0; 1 1>") + formula("M = <1 0 0>") + formula("K = <0 1>")
    assert claims(text) == [("key", 0)]
