"""Tests of the causes that `check` names for wrong numbers."""

import json
from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from clearhead import check
from clearhead.explain import parse
from clearhead.explain.render import print_audit
from support.judged_causes import judged_causes
from support.mistaken_texts import claim_toml, written
from support.random_worked_texts import layer_toml
from support.simulated_authors import Layer
from support.usual_mistakes import formula_mistakes


def matrix(*rows):
    return np.array(rows, dtype=float)


LIFE = Layer(
    heads=1,
    split="project",
    mask=np.zeros((3, 3)),
    causal=False,
    stated={
        ("input", None): matrix([1, 0.5, -0.2, 1.1], [0.3, -1, 0.8, 0.4], [-0.6, 0.9, 1.2, 0.1]),
        ("query_weight", 0): matrix([0.5, 1.1], [-0.8, 0.3], [1.2, -0.4], [0.6, 0.9]),
        ("key_weight", 0): matrix([1.3, -0.2], [0.4, 0.7], [-0.9, 1.0], [0.1, -0.5]),
        ("value_weight", 0): matrix([0.7, -1.2], [0.2, 0.6], [1.1, 0.8], [-0.3, 0.4]),
        ("output_weight", None): matrix([0.9, -0.4], [0.3, 1.2]),
    },
)
DECODER = Layer(
    heads=2,
    split="project",
    mask=np.where(np.tri(4) == 1, 0.0, -np.inf),
    causal=True,
    stated={
        ("input", None): matrix(
            [1, 0.2, -0.5, 0.7], [0.4, -1.1, 0.9, 0.3], [-0.8, 0.6, 1.2, -0.4], [0.5, 1.3, 0.1, -0.9]
        ),
        ("query_weight", 0): matrix([1.2, -0.7], [0.4, 0.9], [-1.1, 0.5], [0.3, 1.4]),
        ("query_weight", 1): matrix([-0.6, 1.1], [0.8, 0.2], [0.7, -1.3], [1.0, 0.4]),
        ("key_weight", 0): matrix([0.9, 0.3], [-1.2, 0.6], [0.5, 1.1], [-0.4, 0.8]),
        ("key_weight", 1): matrix([0.2, -0.9], [1.3, 0.7], [-0.5, 0.4], [0.6, 1.0]),
        ("value_weight", 0): matrix([1.1, 0.2], [0.3, -0.8], [-0.6, 1.2], [0.9, 0.5]),
        ("value_weight", 1): matrix([-0.3, 0.7], [1.4, 0.1], [0.8, -1.0], [-0.2, 0.6]),
        ("output_weight", None): matrix(
            [0.8, -0.3, 1.1, 0.2], [0.5, 0.9, -0.7, 0.4], [-1.2, 0.6, 0.3, 1.0], [0.1, 1.3, 0.7, -0.5]
        ),
    },
)
SLICED = Layer(
    heads=2,
    split="slice",
    mask=DECODER.mask,
    causal=True,
    stated={key: values[:2] if key[1] is not None else values for key, values in DECODER.stated.items()},
)
LAYERS = {"life": LIFE, "decoder": DECODER, "sliced": SLICED}


def computes(layer, name, step):
    """Return the wrong formulas of this name for a step."""
    return [by_step[step] for other, by_step in formula_mistakes(layer) if other == name and step in by_step]


def source(layer, shown, digits=3):
    tokens = ("Life", "is", "short") if layer is LIFE else ("I", "like", "green", "tea")
    return (
        f"tokens = {list(tokens)}\n"
        + layer_toml(layer)
        + "".join(claim_toml(where, values, digits if where[0] != "mask" else 0) for where, values in shown.items())
    )


def text(layer, formulas=None, printing=None, digits=3, steps=None):
    """Return the printed matrices of an author with mistakes, who continues with all digits."""
    printed = {where: 0 if where[0] == "mask" else digits for where in layer.order()}
    shown = written(layer, printed, formulas or {}, printing or {}, rounds=False)
    return {where: values for where, values in shown.items() if steps is None or where[0] in steps}


def audit(layer, shown, digits=3, formulas=None):
    """Check a text, and judge every cause by a second implementation."""
    result = check(parse(source(layer, shown, digits)))
    units = {where: 0 if where[0] == "mask" else digits for where in shown}
    assert judged_causes(result, layer, shown, units, [shown, text(layer, formulas, digits=12)])["false causes"] == 0
    return {(finding.step, finding.head): finding for finding in result.findings}


def names(finding):
    return [cause.name for cause in finding.causes]


FORMULAS = [
    ("life", "not divided by √d_k", ("scaled", 0)),
    ("life", "not divided by √d_k", ("weights", 0)),
    ("decoder", "not divided by √d_k", ("masked", 1)),
    ("life", "divided by d_k", ("scaled", 0)),
    ("life", "divided by √d_model", ("scaled", 0)),
    ("life", "divided by √n", ("scaled", 0)),
    ("life", "scaled twice", ("scaled", 0)),
    ("life", "scaled twice", ("weights", 0)),
    ("life", "√d_k rounded too early", ("scaled", 0)),
    ("life", "softmax over columns", ("weights", 0)),
    ("decoder", "softmax over columns", ("weights", 1)),
    ("life", "softmax over the whole matrix", ("weights", 0)),
    ("decoder", "softmax over all heads", ("weights", 0)),
    ("life", "softmax without exp", ("weights", 0)),
    ("decoder", "softmax without exp", ("weights", 0)),
    ("life", "softmax with base 2", ("weights", 0)),
    ("life", "softmax not normalized", ("weights", 0)),
    ("decoder", "softmax not normalized", ("weights", 1)),
    ("life", "softmax forgotten", ("weights", 0)),
    ("decoder", "masked after the softmax", ("weights", 0)),
    ("decoder", "masked with 0 instead of −∞", ("weights", 1)),
    ("decoder", "masked with 0 instead of −∞", ("masked", 0)),
    ("decoder", "mask transposed", ("mask", None)),
    ("decoder", "mask transposed", ("masked", 0)),
    ("decoder", "mask transposed", ("weights", 0)),
    ("decoder", "mask off by one: own token hidden", ("weights", 1)),
    ("decoder", "mask off by one: next token visible", ("masked", 1)),
    ("decoder", "mask forgotten", ("masked", 0)),
    ("decoder", "mask forgotten", ("weights", 1)),
    ("life", "mask applied without reason", ("weights", 0)),
    ("life", "W_K used for Q", ("query", 0)),
    ("life", "W_K used for V", ("value", 0)),
    ("decoder", "W_V used for K", ("key", 1)),
    ("decoder", "W_Q of head 1", ("query", 1)),
    ("sliced", "X W_Qᵀ", ("query", 0)),
    ("sliced", "W_K forgotten", ("key", 1)),
    ("sliced", "columns of head 2", ("slice", 0)),
    ("sliced", "slices interleaved", ("slice", 1)),
    ("life", "scores Q Qᵀ", ("scores", 0)),
    ("life", "scores K Kᵀ", ("scores", 0)),
    ("decoder", "keys of head 2", ("scores", 0)),
    ("life", "scores Qᵀ K", ("scores", 0)),
    ("life", "Aᵀ V", ("head_output", 0)),
    ("life", "A K", ("head_output", 0)),
    ("decoder", "A V with V of head 2", ("head_output", 0)),
    ("decoder", "A V with A of head 1", ("head_output", 1)),
    ("life", "rows of V exchanged", ("head_output", 0)),
    ("decoder", "heads interleaved", ("concat", None)),
    ("decoder", "heads stacked by rows", ("concat", None)),
    ("decoder", "heads added", ("concat", None)),
    ("decoder", "heads averaged", ("concat", None)),
    ("decoder", "W_O forgotten", ("output", None)),
    ("decoder", "W_O transposed", ("output", None)),
    ("decoder", "W_O applied before concatenation", ("output", None)),
]  # fmt: skip
PRINTING = [
    ("life", "scores already divided by √d_k", ("scores", 0)),
    ("life", "transposed", ("scores", 0)),
    ("life", "transposed", ("key", 0)),
    ("life", "transposed", ("query_weight", 0)),
    ("decoder", "transposed", ("weights", 1)),
    ("decoder", "rows in reverse order", ("mask", None)),
    ("life", "columns in reverse order", ("query", 0)),
    ("decoder", "rows exchanged", ("input", None)),
    ("decoder", "rows exchanged", ("value", 1)),
    ("decoder", "columns exchanged", ("output", None)),
    ("decoder", "matrix of head 2", ("weights", 0)),
    ("life", "W_K printed", ("query_weight", 0)),
]


class TestEveryMistake:
    @pytest.mark.parametrize(("layer", "name", "where"), FORMULAS)
    def test_wrong_formula_is_named_and_carried(self, layer, name, where):
        layer = LAYERS[layer]
        for compute in computes(layer, name, where[0]):
            findings = audit(layer, text(layer, {where: compute}))
            assert findings[where].verdict == "differs"
            assert name in names(findings[where])
            assert {key for key, finding in findings.items() if finding.verdict == "differs"} == {where}
            [cause] = [cause for cause in findings[where].causes if cause.name == name]
            assert cause.cells
            assert not cause.exceptions

    @pytest.mark.parametrize(("layer", "name", "where"), PRINTING)
    def test_misprint_is_named(self, layer, name, where):
        layer = LAYERS[layer]
        for compute in computes(layer, name, where[0]):
            findings = audit(layer, text(layer, printing={where: compute}))
            assert name in names(findings[where])
            assert {key for key, finding in findings.items() if finding.verdict != "agrees"} == {where}

    def test_other_order_of_heads_is_named(self):
        exchanged = computes(DECODER, "heads in another order", "concat")[1]
        cause, *_ = audit(DECODER, text(DECODER, {("concat", None): exchanged}))["concat", None].causes
        assert cause.sentence.startswith("The heads were joined in the order 2, 1; join them column by column")

    def test_exchanged_projections_are_named_if_both_are_exchanged(self):
        [exchange] = [by_step for name, by_step in formula_mistakes(LIFE) if name == "W_Q and W_K exchanged"]
        findings = audit(LIFE, text(LIFE, {(step, 0): compute for step, compute in exchange.items()}))
        assert names(findings["query", 0]) == ["W_K used for Q", "W_Q and W_K exchanged"]
        assert names(findings["key", 0]) == ["W_Q used for K", "W_Q and W_K exchanged"]
        findings = audit(LIFE, text(LIFE, {("query", 0): exchange["query"]}))
        assert names(findings["query", 0]) == ["W_K used for Q"]

    @pytest.mark.parametrize("steps", [("weights",), ("head_output",), ("output",)])
    def test_mistake_in_an_unprinted_step_is_named_at_the_next_printed_one(self, steps):
        [compute] = computes(LIFE, "not divided by √d_k", "scaled")
        [finding] = audit(LIFE, text(LIFE, {("scaled", 0): compute}, steps=steps)).values()
        assert names(finding) == ["not divided by √d_k"]

    def test_mistake_in_one_head_is_named_in_the_output(self):
        [compute] = computes(DECODER, "mask forgotten", "weights")
        [finding] = audit(DECODER, text(DECODER, {("weights", 1): compute}, steps=("output",))).values()
        assert finding.causes[0].sentence.startswith("In head 2: The mask was left out; add the mask")


class TestSlips:
    def test_wrong_sign(self):
        shown = text(LIFE)
        shown["scores", 0][1, 2] *= -1
        [cause] = audit(LIFE, shown)["scores", 0].causes
        assert (cause.name, cause.cells, cause.exceptions) == ("sign", ((1, 2),), ())
        assert cause.sentence.startswith(
            'The sign is wrong in 1 cell; change it. First seen in row "is", column "short"'
        )

    def test_exchanged_digits(self):
        shown = text(LIFE)
        assert round(shown["weights", 0][2, 0], 3) == 0.704
        shown["weights", 0][2, 0] = 0.740
        finding = audit(LIFE, shown)["weights", 0]
        assert names(finding) == ["digits exchanged"]
        shown["weights", 0][2, 0] = 0.470  # three digits in another order
        assert names(audit(LIFE, shown)["weights", 0]) == ["row does not sum to 1"]

    def test_numbers_that_are_cut_off(self):
        exact = text(LIFE, digits=12)
        shown = text(LIFE, steps=("scores",), digits=2)
        shown["scores", 0] = np.trunc(exact["scores", 0] * 100) / 100
        assert names(audit(LIFE, shown, 2)["scores", 0]) == ["cut off instead of rounded"]
        shown["scores", 0][0, 0] += 0.5  # not all wrong cells are cut off
        assert "cut off instead of rounded" not in names(audit(LIFE, shown, 2)["scores", 0])

    def test_numbers_rounded_too_early(self):
        exact = text(LIFE, digits=12)
        shown = text(LIFE, steps=("scores",))
        shown["scores", 0] = np.round(exact["query", 0], 1) @ np.round(exact["key", 0], 1).T
        [cause] = audit(LIFE, shown)["scores", 0].causes
        assert cause.name == "rounded too early"
        assert cause.sentence.startswith("Earlier numbers were rounded to 1 digit after the point; continue with more")

    def test_powers_rounded_too_early(self):
        powers = np.round(np.exp(text(LIFE, digits=12)["scaled", 0]), 1)
        shown = text(LIFE, steps=("weights",))
        shown["weights", 0] = powers / powers.sum(axis=1, keepdims=True)
        [cause] = audit(LIFE, shown)["weights", 0].causes
        assert cause.sentence.startswith("The powers e^score were rounded to 1 digit")

    def test_row_that_does_not_sum_to_1(self):
        shown = text(LIFE)
        shown["weights", 0][1] += (0.11, 0.03, 0.06)
        [cause] = audit(LIFE, shown)["weights", 0].causes
        assert (cause.name, cause.cells) == ("row does not sum to 1", ((1, 0), (1, 1), (1, 2)))
        assert cause.sentence.startswith('Row "is" sums to 1.2; the weights of each row sum to 1.')
        shown["weights", 0][1] += (-0.3, 0.05, 0.05)
        assert not audit(LIFE, shown)["weights", 0].causes


class TestReport:
    def test_all_causes_that_coincide_are_named(self):
        """d_k = 2, √d_model = 2 and √n = 2."""
        [compute] = computes(DECODER, "divided by d_k", "scaled")
        finding = audit(DECODER, text(DECODER, {("scaled", 0): compute}))["scaled", 0]
        assert names(finding) == ["divided by d_k", "divided by √d_model", "divided by √n", "scaled twice"]

    def test_cells_that_do_not_fit_are_listed(self):
        [compute] = computes(LIFE, "not divided by √d_k", "scaled")
        shown = text(LIFE, {("scaled", 0): compute})
        shown["scaled", 0][1, 1] += 5
        [cause] = [cause for cause in audit(LIFE, shown)["scaled", 0].causes if cause.exceptions]
        assert (cause.name, cause.exceptions) == ("not divided by √d_k", ((1, 1),))
        assert len(cause.cells) == 8
        assert cause.sentence.endswith('1 cell not explained: row "is", column "is".')
        shown["scaled", 0][1:, 1] += 5
        shown["scaled", 0][0, 0] += 5  # 6 of 9 cells fit, fewer than three quarters
        assert not audit(LIFE, shown)["scaled", 0].causes

    def test_mistake_in_one_row_is_named(self):
        [compute] = computes(LIFE, "softmax with base 2", "weights")
        shown = text(LIFE)
        shown["weights", 0][2] = text(LIFE, {("weights", 0): compute})["weights", 0][2]
        [cause] = audit(LIFE, shown)["weights", 0].causes
        assert cause.sentence.startswith(
            'The softmax was computed with powers of 2, only in row "short"; use powers of e.'
        )
        assert not cause.exceptions

    def test_sentence_says_what_was_done_and_what_to_do_and_where_it_shows(self):
        [compute] = computes(LIFE, "not divided by √d_k", "weights")
        [cause] = audit(LIFE, text(LIFE, {("weights", 0): compute}, digits=2), 2)["weights", 0].causes
        right, wrong = (text(LIFE, some, digits=2)["weights", 0][0, 0] for some in ({}, {("weights", 0): compute}))
        assert cause.sentence == (
            "The scores were not divided by √d_k = √2; divide them before the softmax. "
            f'First seen in row "Life", column "Life": {wrong:.2f} instead of {right:.2f}.'
        )

    def test_matrix_of_another_shape_gets_a_cause(self):
        [compute] = computes(DECODER, "heads added", "concat")
        finding = audit(DECODER, text(DECODER, {("concat", None): compute}))["concat", None]
        assert finding.message == "claimed (4, 2), computed (4, 4)"
        assert finding.causes[0].sentence == (
            "The outputs of the heads were added; join them column by column, head 1 first. "
            "The matrix is (4, 2) instead of (4, 4)."
        )

    def test_number_that_follows_from_the_text_is_given(self):
        shown = text(LIFE, {("query", 0): lambda layer, w, h: w["input", None] @ w["query_weight", 0] + 1})
        correct = shown["scores", 0][0, 0]
        shown["scores", 0][0, 0] *= -1
        [cause] = audit(LIFE, shown)["scores", 0].causes
        assert cause.sentence.endswith(
            f"{-correct:.3f} instead of {correct:.3f}, which follows from the text's earlier numbers."
        )

    def test_given_matrix_gets_a_cause(self):
        right = text(LIFE)
        given = f"[given]\nkey = {(right['input', None] @ LIFE.stated['query_weight', 0]).round(3).tolist()}\n"
        [finding] = check(parse(layer_toml(LIFE) + given)).findings
        assert names(finding) == ["W_Q used for K"]

    def test_three_errors_in_different_heads_get_three_causes(self):
        formulas = {
            ("weights", 0): computes(DECODER, "softmax over columns", "weights")[0],
            ("scaled", 1): computes(DECODER, "not divided by √d_k", "scaled")[0],
            ("output", None): computes(DECODER, "W_O transposed", "output")[0],
        }
        findings = audit(DECODER, text(DECODER, formulas, digits=2), 2, formulas)
        assert {where for where, finding in findings.items() if finding.verdict == "differs"} == {*formulas}
        assert "softmax over columns" in names(findings["weights", 0])
        assert "not divided by √d_k" in names(findings["scaled", 1])
        assert "W_O transposed" in names(findings["output", None])

    def test_first_error_and_its_followers_come_first(self):
        formulas = {
            ("output", None): computes(DECODER, "W_O transposed", "output")[0],
            ("query", 1): computes(DECODER, "W_K used for Q", "query")[0],
        }
        shown = text(DECODER, formulas)
        result = check(parse(source(DECODER, dict(reversed(shown.items())))))
        first = result.first_error
        assert first is not None
        assert (first.step, first.head) == ("query", 1)
        followers = {(finding.step, finding.head) for finding in result.following(first)}
        assert followers == {
            ("scores", 1), ("scaled", 1), ("masked", 1), ("weights", 1), ("head_output", 1), ("concat", None),
        }  # fmt: skip
        console = Console(file=StringIO(), width=200)
        print_audit(console, result)
        lines = console.file.getvalue().splitlines()
        assert lines[1].startswith(
            f"First error: claim {first.claim}, query, head 2: 8 of 8 cells differ (W_K used for Q)"
        )
        assert lines[1].endswith("; 6 later claims follow from it")
        assert (
            '  Q was computed with W_K; compute Q = X W_Q. First seen in row "I", column 1' in console.file.getvalue()
        )

    def test_agreeing_text_has_no_first_error(self):
        result = check(parse(source(LIFE, text(LIFE))))
        assert result.first_error is None
        assert all(not finding.causes for finding in result.findings)

    def test_json_contains_the_causes(self):
        shown = text(LIFE)
        shown["scores", 0][1, 2] *= -1
        document = json.loads(check(parse(source(LIFE, shown))).to_json())
        [finding] = [entry for entry in document["findings"] if entry["verdict"] == "differs"]
        [cause] = finding["causes"]
        assert (cause["name"], cause["cells"], cause["exceptions"]) == ("sign", [[2, 3]], [])

    def test_sources_of_carried_numbers_are_listed_once(self):
        formulas = {
            ("query", 1): computes(DECODER, "W_K used for Q", "query")[0],
            ("masked", 1): computes(DECODER, "mask forgotten", "masked")[0],
            ("value", 1): computes(DECODER, "W_K used for V", "value")[0],
        }
        finding = audit(DECODER, text(DECODER, formulas))["head_output", 1]
        assert finding.message == "8 of 8 cells differ, carried from Q₂, V₂ and (S₂ + M) as printed"
