"""Tests of the meaning of symbols, formulas and words."""

import pytest

from clearhead.explain.reading._symbols import Meaning, read_formula, read_row_labels
from clearhead.explain.reading._wording import describe, read_name

FORMULAS = {
    "Q": ("query", None),
    "Q_1": ("query", 1),
    "Q^{(2)}": ("query", 2),
    "Q₂": ("query", 2),
    r"\mathbf{K}_{\text{head1}}": ("key", 1),
    "V1": ("value", 1),
    "X": ("input", None),
    "X_{1}": ("slice", 1),
    "X[:, 0:2]": ("slice", None),
    "X[columns 3 to 4]": ("slice", None),
    r"X_{\text{columns }3\text{ to }4}": ("slice", None),
    r"X_{\text{column }3}": ("slice", None),
    "W_Q": ("query_weight", None),
    "W^K_1": ("key_weight", 1),
    "W_{V2}": ("value_weight", 2),
    "W^{(1)}_Q": ("query_weight", 1),
    "W<sup>Q</sup>": ("query_weight", None),
    "WQ": ("query_weight", None),
    "W_O": ("output_weight", None),
    "W^O": ("output_weight", None),
    r"Q K^\top": ("scores", None),
    "Q_2 K_2^T": ("scores", 2),
    "QKᵀ": ("scores", None),
    r"\frac{QK^T}{\sqrt{d_k}}": ("scaled", None),
    r"Q_1K_1^T / \sqrt{2}": ("scaled", 1),
    r"\frac{QK^\top}{\sqrt{d_k}} + M": ("masked", None),
    "S + M": ("masked", None),
    r"\operatorname{softmax}(S_1)": ("weights", 1),
    r"\text{softmax}\left(\frac{QK^T}{\sqrt{d_k}}\right)": ("weights", None),
    r"softmax(\frac{QK^T}{\sqrt{d_k}}) V": ("head_output", None),
    "A": ("weights", None),
    "A_1 V_1": ("head_output", 1),
    "Z_1": ("head_output", 1),
    "head_2": ("head_output", 2),
    r"\text{Output}_1": ("head_output", 1),
    "Concat(head_1, head_2)": ("concat", None),
    r"\text{Concat}(O_1, O_2) W^O": ("output", None),
    "C W_O": ("output", None),
    "X W_Q": ("query", None),
    r"X_1 W^{V}_{1}": ("value", 1),
    "Y": ("output", None),
    "M": ("mask", None),
}
NAMES = {
    "w_query": ("query_weight", None),
    "Wk": ("key_weight", None),
    "W_v1": ("value_weight", 1),
    "attn_weights": ("weights", None),
    "scaled_scores_2": ("scaled", 2),
    "queries": ("query", None),
    "q": ("query", None),
    "x": ("input", None),
}
DESCRIPTIONS = {
    "Table 2: attention weights of head 1": ("weights", 1),
    "Queries, head 2": ("query", 2),
    "### Scaled scores": ("scaled", None),
    "The output of the second head": ("head_output", 2),
    "Key projection matrix for head 1": ("key_weight", 1),
    "Concatenated heads": ("concat", None),
    "Final output": ("output", None),
    "Input embeddings": ("input", None),
    "After the softmax:": ("weights", None),
    "Sample matrix **K<sup>T</sup>** above.": ("key", None),
    "Values $V_1$": ("value", 1),
    "Masked scores": ("masked", None),
    "The causal mask": ("mask", None),
    "Raw scores, not yet scaled": ("scores", None),
    "Slice, head 1": ("slice", 1),
}


@pytest.mark.parametrize("text", FORMULAS)
def test_formulas_name_one_step_and_head(text):
    meaning = read_formula(text)
    assert (meaning.steps, meaning.head) == ((FORMULAS[text][0],), FORMULAS[text][1])


@pytest.mark.parametrize("text", NAMES)
def test_names_in_code(text):
    meaning = read_name(text)
    assert (meaning.steps, meaning.head) == ((NAMES[text][0],), NAMES[text][1])


@pytest.mark.parametrize("text", DESCRIPTIONS)
def test_captions_and_headings_name_one_step_and_head(text):
    meaning = describe(text)
    assert (meaning.steps, meaning.head) == ((DESCRIPTIONS[text][0],), DESCRIPTIONS[text][1])


def test_transposes_are_marked():
    assert read_formula(r"K^\top").transposed
    assert read_formula("K_1ᵀ").transposed
    assert describe("Sample matrix **K<sup>T</sup>** above.").transposed
    assert not read_formula("K_1").transposed
    assert not read_formula(r"QK^\top").transposed


def test_ambiguous_names_list_their_steps():
    assert read_formula("S").steps == ("scores", "scaled")
    assert read_formula("Z").steps == ("head_output", "output")
    assert describe("Attention scores").steps == ("scores", "scaled")
    assert describe("Queries, keys and values").steps == ("query", "key", "value")


@pytest.mark.parametrize(
    "text", ["", "hello", "Multi-head attention", "Key insight", "Scaled dot-product attention", "Step 3"]
)
def test_other_texts_name_no_matrix(text):
    assert describe(text) is None


def test_row_labels_name_the_matrix():
    assert read_row_labels(("q_1", "q_2"), ()) == Meaning(("query",))
    assert read_row_labels((r"\(x_{1}\)", r"\(x_{2}\)"), ()) == Meaning(("input",))
    assert "weights" in read_row_labels(("q_1", "q_2"), ("k_1", "k_2")).steps
    assert read_row_labels((), ("k_1", "k_2")) == Meaning(("key",), transposed=True)
    assert read_row_labels(("the", "cat"), ()) is None
