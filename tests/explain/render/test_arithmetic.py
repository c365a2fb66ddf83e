"""Tests of the arithmetic of single cells, the whole formula, the cost, and the shortening of large matrices."""

import json
import math
import re

import pytest
import torch
from latex2mathml.converter import convert

from clearhead import Causal, MultiHeadAttention, trace
from clearhead.explain import BUILT_IN, load, parse
from clearhead.explain.render import cell_arithmetic, render
from clearhead.explain.render._formula import whole_formula
from clearhead.explain.render._layout import Layout, new_matrices
from support.layers import OPTIONS, make
from support.parameters import slow_except

HIDDEN_ROW = "x = [[1, 0.5], [0.5, 2], [1, 1]]\nmask = [[false, false, false], [true, true, false], [true, true, true]]"


def evaluated(text: str) -> float:
    """Return the value of the middle of `Q[1,1] = … ≈ …`, computed from the numbers that it shows."""
    middle = re.split(" [=≈] ", text)[1]
    python = middle.replace("−", "-").replace("·", "*").replace("e^", "e**").replace("∞", "inf")
    return eval(re.sub(r"√(\d+)", r"(\1 ** 0.5)", python), {"e": math.e, "inf": math.inf})


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_computed_cell_evaluates_to_its_number(name):
    for step in load(name).trace():
        if step.how not in ("product", "scaled", "masked", "sum", "softmax"):
            continue
        rows, columns = step.shape
        for row in range(rows):
            for column in range(columns):
                text = cell_arithmetic(step, row, column, digits=9, max_terms=None)
                if "because" in text:
                    assert float(step.values[row, column]) == 0
                    continue
                assert evaluated(text) == pytest.approx(float(step.values[row, column]), abs=1e-6)


@pytest.mark.parametrize(
    ("name", "step", "cell", "expected"),
    [
        ("song", "query", (0, 0), "Q[1,1] = 0.1 · 3.4 + (−0.2) · (−1.2) + 0.1 · 2.9 + 0.2 · 0.7 = 1.01"),
        ("song", "scaled", (0, 1), "S[1,2] = 2.115 / √4 ≈ 1.058"),
        ("song-causal", "masked", (1, 4), "(S + M)[2,5] = 3.873 + (−∞) = −∞"),
        ("song-causal", "weights", (1, 0), "A[2,1] = e^0.679 / (e^0.679 + e^(−0.355)) ≈ 0.738"),
        ("song-causal", "weights", (1, 4), "A[2,5] = 0, because the mask hides this key"),
        ("song-causal", "head_output", (1, 0), "O[2,1] = 0.738 · (−0.33) + 0.262 · (−0.62) ≈ −0.406"),
        ("song", "key", (0, 0), "K[1,1] = 0.15, given by the text, not computed"),
        ("song", "input", (0, 1), "X[1,2] = −0.2, printed in the text"),
        ("two-heads", "slice", (3, 1), "X₂[4,2] = X[4,4] = 0.7"),
        ("embeddings", "input", (0, 1), "X[1,2] = 0.2 + 1.000 = 1.200"),
        ("embeddings", "embedding", (0, 1), "E[1,2] = 0.2, column 2 of the token's row of W_E"),
        ("two-heads", "concat", (0, 2), "C[1,3] = O₂[1,1] ≈ −0.614"),
    ],
)
def test_arithmetic_is_written_out(name, step, cell, expected):
    traced = load(name).trace()
    assert cell_arithmetic(traced.named(step)[-1], *cell) == expected


def test_a_row_without_keys_is_not_said_to_sum_to_1():
    traced = parse(HIDDEN_ROW).trace()
    weights, output = traced.step("weights"), traced.step("head_output")
    assert cell_arithmetic(weights, 0, 0) == "A[1,1] = 0, because the query attends to no key"
    assert cell_arithmetic(output, 0, 0) == "O[1,1] = 0, because the query attends to no key"
    text = render(traced, "text")
    assert "1 row may attend to no key: all weights are 0, and do not sum to 1." in text
    assert re.search(r"token 1 +· +· +· +0\n", text)
    assert "≈ −∞" not in text


@pytest.mark.parametrize("name", BUILT_IN)
def test_latex_of_every_sample_is_valid_math(name):
    text = render(load(name).trace(), "markdown")
    lines = [line for line in text.splitlines() if re.match(r"\$.* (=|\\approx) .*\$$", line)]
    assert len(lines) >= 7
    for line in lines:
        assert "merror" not in convert(line.strip("$"))
        assert not re.search("[·−∞√≈…₁₂]", line)


@pytest.mark.parametrize("options", slow_except(OPTIONS, "slices, grouped", "all"))
def test_every_layer_has_arithmetic_in_every_format(options):
    layer = make(options)
    memory = torch.randn(7, layer.kv_input_dim) if layer.kv_input_dim != 30 else None
    traced = trace(layer, torch.randn(5, 30), memory)
    assert [cell_arithmetic(step, 0, 0) for step in traced]
    for style in ("text", "markdown", "latex"):
        assert "[1,1]" in render(traced, style)


def test_rejects_cells_outside_of_the_matrix():
    step = load("song").trace().step("weights")
    with pytest.raises(ValueError, match="row is 6; expected a whole number of at least 0 and at most 5"):
        cell_arithmetic(step, 6, 0)


class TestWholeFormula:
    @pytest.mark.parametrize(
        ("name", "lines"),
        [
            ("song-causal", ["Y = O W_O", "O = softmax(Q Kᵀ / √4 + M) V", "Q = X W_Q,  K = given,  V = X W_V"]),
            (
                "two-heads",
                [
                    "Y = Concat(O₁, O₂) W_O",
                    "Oᵢ = softmax(Qᵢ Kᵢᵀ / √2) Vᵢ",
                    "Qᵢ = Xᵢ W_Qᵢ,  Kᵢ = Xᵢ W_Kᵢ,  Vᵢ = Xᵢ W_Vᵢ",
                ],
            ),
        ],
    )
    def test_text_starts_with_the_whole_formula(self, name, lines):
        text = render(load(name).trace(), "text").splitlines()
        assert [line.strip() for line in text[1:4]] == lines
        assert text[4] == "Heads, rows and columns are counted from 1."

    def test_unscaled_scores_keep_the_softmax(self):
        assert "\n  O = softmax(Q Kᵀ) V\n" in render(load("three-by-four").trace(), "text")
        masked = trace(MultiHeadAttention(4, 2, scale=1.0), torch.randn(3, 4), mask=Causal())
        assert "\n  Oᵢ = softmax(Qᵢ Kᵢᵀ + M) Vᵢ\n" in render(masked, "text")

    def test_shared_keys_have_another_index(self):
        traced = load("grouped-heads").trace()
        text = render(traced, "text").splitlines()
        assert [line.strip() for line in text[2:5]] == [
            "Oᵢ = softmax(Qᵢ Kⱼᵀ / √2) Vⱼ",
            "Qᵢ = X W_Qᵢ,  Kⱼ = X W_Kⱼ,  Vⱼ = X W_Vⱼ",
            "j = ⌈i / 2⌉, the key head of head i",
        ]
        latex = render(traced, "latex")
        assert "\\[ O_{i} = \\text{softmax}\\left(\\frac{Q_{i} K_{j}^{\\top}}{\\sqrt{2}}\\right) V_{j} \\]" in latex
        assert "Q_{i} = X W_{Q_{i}},\\quad K_{j} = X W_{K_{j}},\\quad V_{j} = X W_{V_{j}}" in latex
        assert "\\[ j = \\lceil i / 2 \\rceil\\text{, the key head of head }i \\]" in latex
        assert "j = " not in render(trace(MultiHeadAttention(8, 4, kv_heads=1), torch.randn(3, 8)), "text")

    def test_columns_of_the_first_head_are_not_those_of_all(self):
        grouped = trace(MultiHeadAttention(8, 4, kv_heads=2, split="slice", bias=False), torch.randn(3, 8))
        [_, _, (text, latex), _] = whole_formula(grouped)
        assert text.endswith(",  Vⱼ = X[columns of key head j] W_Vⱼ")
        assert latex.endswith(",\\quad V_{j} = X_{\\text{columns of key head }j} W_{V_{j}}")
        cross = MultiHeadAttention(8, 4, kv_input_dim=4, split="slice", bias=False)
        [_, _, (text, latex)] = whole_formula(trace(cross, torch.randn(3, 8), torch.randn(2, 4)))
        assert text.endswith(",  Vᵢ = Z[columns of head i] W_Vᵢ")
        assert latex.endswith(",\\quad V_{i} = Z_{\\text{columns of head }i} W_{V_{i}}")

    def test_markdown_latex_and_html_have_it_too(self):
        traced = load("song-causal").trace()
        formula = "O = \\text{softmax}\\left(\\frac{Q K^{\\top}}{\\sqrt{4}} + M\\right) V"
        assert f"$$\n{formula}\n$$" in render(traced, "markdown")
        assert f"\\[ {formula} \\]" in render(traced, "latex")
        assert 'aria-label="O = softmax(Q Kᵀ / √4 + M) V"' in render(traced, "html")


class TestCost:
    def test_one_wide_head_costs_the_same(self):
        for style in ("text", "markdown", "latex", "html"):
            text = render(load("two-heads-projected").trace(), style)
            assert "1,024 multiply-adds in all, 448 for each head and 128 for W" in text
            assert "One wide head (keys of width 4) would cost 1,024 multiply-adds: the same." in text

    def test_cost_of_a_wide_head_is_that_of_a_layer_with_one_head(self):
        wide = trace(MultiHeadAttention(6, 1, key_dim=10, value_dim=4), torch.randn(5, 6), mask=Causal())
        narrow = trace(MultiHeadAttention(6, 2, key_dim=5, value_dim=2), torch.randn(5, 6), mask=Causal())
        total = sum(step.multiply_adds for step in wide)
        assert f"would cost {total:,} multiply-adds: the same." in render(narrow, "text")

    def test_slices_cost_less_than_a_wide_head(self):
        text = render(load("two-heads").trace(), "text")
        assert "1,024 multiply-adds: more, because each head here reads only its own columns of the input." in text

    def test_shared_keys_count_once(self):
        traced = trace(MultiHeadAttention(8, 4, kv_heads=2), torch.randn(3, 8))
        projection = 3 * 8 * 2
        assert f"({4 * projection} multiply-adds of shared keys and values counted once)" in render(traced, "text")

    def test_a_selection_has_no_total(self):
        assert "Cost:" not in render(load("song").trace().select(["weights"]), "text")


class TestOrigins:
    @pytest.mark.parametrize("style", ["text", "html", "markdown", "latex", "json"])
    def test_every_format_states_the_origin(self, style):
        text = render(load("song").trace(), style)
        for origin in (
            "printed in the text",
            "given by the text, not computed",
            "drawn at random (seed 5)",
            "computed",
        ):
            assert origin in text
        assert "The text prints other numbers in 18 of 24 cells; see `clearhead check song`." in text

    def test_operands_keep_the_origin_of_their_step(self):
        traced = load("song").trace()
        assert [operand.origin for operand in traced.step("query").operands] == ["printed in the text"] * 2
        assert traced.step("scores").operands[1].origin == "given by the text, not computed"
        assert traced.step("output").operands[1].origin == "identity: leaves C unchanged"

    def test_columns_of_a_computed_input_are_not_printed(self):
        text = 'x = [[1, 0.5, 2, 1], [0.5, 2, 0, 1]]\nheads = 4\nkv_heads = 2\nsplit = "slice"\n'
        columns = parse(text).trace().step("key", 1).operands[0]
        assert (columns.symbol, columns.origin) == ("X[columns 3 to 4]", "printed in the text")
        columns = parse(text + 'positions = "sinusoidal"').trace().step("key", 1).operands[0]
        assert (columns.symbol, columns.origin) == ("X[columns 3 to 4]", "computed")

    def test_weights_of_an_exported_file_are_still_drawn(self):
        traced = parse(load("two-heads").to_toml()).trace()
        assert traced.step("query", 0).operands[1].origin == "drawn at random (seed 4)"

    def test_layers_without_an_example_have_origins(self):
        traced = trace(MultiHeadAttention(4, 2), torch.randn(3, 4), given={("key", 0): torch.zeros(3, 2)})
        text = render(traced, "text")
        assert "X (3, 4): input" in text
        assert "W_Q₁ (4, 2): from the layer's parameters" in text
        assert "K₁ (3, 2): given" in text


class TestShortening:
    def test_large_matrices_are_shortened_with_a_mark(self):
        traced = trace(MultiHeadAttention(64, 2), torch.randn(300, 64)).select(["concat"])
        for style in ("text", "html", "markdown", "latex"):
            text = render(traced, style)
            assert "260 rows and 24 columns are not shown" in text
            assert "… 260 more" in text or "\\dots{} 260 more" in text

    def test_many_heads_are_refused_with_the_way_out(self):
        traced = trace(MultiHeadAttention(256, 64), torch.randn(20, 256))
        message = "numbers to show, even with shortened matrices; expected at most 40,000: choose steps or heads"
        with pytest.raises(ValueError, match=message):
            render(traced, "html")
        assert render(traced.select(heads=[3]), "html")

    def test_single_rows_are_not_left_out(self):
        layout = Layout(trace(MultiHeadAttention(4, 1), torch.randn(41, 4)), new_matrices)
        assert layout.entries("token", 41).shown == tuple(range(41))
        entries = layout.entries("token", 42)
        assert (entries.left_out, len(entries.indices)) == (2, 40)

    def test_too_many_scores_are_refused_at_once(self):
        with pytest.raises(ValueError, match=r"x is 2,001 × 1, which gives [\d,]+ cells in all matrices"):
            parse(f"x = {[[0]] * 2001}")


class TestNotebook:
    def test_trace_is_shown_as_a_page_and_has_a_short_repr(self):
        traced = load("two-heads").trace()
        assert repr(traced).startswith("Trace(19 steps, 8 tokens, 2 heads: input, slice, query")
        assert len(repr(traced)) < 200
        assert traced._repr_html_().startswith('<iframe srcdoc="&lt;!doctype html&gt;')

    def test_text_is_shown_without_the_html_packages(self, monkeypatch):
        monkeypatch.setattr("clearhead.explain.render.notebooks.missing_packages", lambda extra: ["jinja2"])
        shown = load("song").trace()._repr_html_()
        assert shown.startswith("<pre>A worked example")
        assert "1. Input: X" in shown

    def test_too_large_pages_become_a_message(self):
        shown = trace(MultiHeadAttention(256, 64), torch.randn(20, 256))._repr_html_()
        assert shown.startswith("<pre>Trace(")
        assert "choose steps or heads" in shown


def test_memory_is_not_called_input():
    traced = trace(MultiHeadAttention(4, 2, kv_input_dim=3), torch.randn(2, 4), torch.randn(5, 3))
    text = render(traced, "text")
    assert "1. Input: X" in text
    assert "2. Memory: Z" in text


def test_one_head_says_that_there_is_nothing_to_join():
    text = render(load("song").trace(), "text")
    assert "With one head there is nothing to join: C = O." in text
    assert "W_O is the identity here, which leaves C unchanged." in text


def test_masked_weights_differ_from_small_ones():
    traced = load("song-causal").trace()
    assert re.search(r"for +0\.001 +0\.903 +0\.000 +0\.096 +· +· +1\n", render(traced, "text"))
    assert "| for | 0.001 | 0.903 | 0.000 | 0.096 | · | · | 1 |" in render(traced, "markdown")
    assert "$0.096$ & $\\cdot$ & $\\cdot$ & $1$" in render(traced, "latex")
    assert render(traced, "html").count('<td class="hidden">·</td>') == 2 * 15  # in A, and in A V
    assert json.loads(render(traced, "json"))["steps"][6]["values"][0][1] == "-inf"
