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
