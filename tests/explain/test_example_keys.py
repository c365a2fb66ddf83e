"""Tests of the keys of an example file that describe a layer: scale, memory, kv_heads, positions, embedding, biases."""

import math
import random

import numpy as np
import pytest
import torch

from clearhead import check
from clearhead.explain import parse, render
from clearhead.explain._recompute import Recomputation
from support.parameters import slow_except

X = "x = [[0.1, 0.7, 0.2, 0.3], [0.5, -0.3, 1.0, 0.4], [0.4, 0.9, -0.6, 0.2]]\n"
TABLE = """
[embedding]
cat = [0.1, 0.2, 0.3, 0.4]
"a dog" = [1.0, 0.2, 0.0, 0.4]
mouse = [1, 2, 3, 4]
"""
TOKENS = "tokens = ['cat', 'a dog', 'cat']\n"
MEMORY = "memory = [[0.1, 0.7, 1.0, 2.0, 3.0, 4.0], [0.5, -0.3, 1.0, 0.5, 0.0, 0.1]]\nmemory_tokens = ['u', 'v']\n"
FILES = {
    "scale": X + "scale = 0.25",
    "no scaling": X + "scale = 'none'\nmask = 'causal'",
    "d_k": X + "d_k = 64",
    "memory": X + MEMORY,
    "memory, mask": X + MEMORY + "mask = [[true, false], [true, true], [false, true]]",
    "memory, slices": X + MEMORY + "heads = 2\nsplit = 'slice'",
    "kv_heads": X + "heads = 4\nkv_heads = 2",
    "one key head": X + "heads = 2\nkv_heads = 1\nsplit = 'slice'",
    "memory, kv_heads, slices": X + MEMORY + "heads = 4\nkv_heads = 2\nsplit = 'slice'\nd_k = 9",
    "sinusoidal": X + "positions = 'sinusoidal'",
    "rotary": X + "heads = 2\npositions = 'rotary'\nmask = 'causal'",
    "rotary, interleaved": X + "positions = 'rotary-interleaved'",
    "stated positions": X + "positions = [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]]",
    "no positions": X + "positions = 'none'",
    "embedding": TOKENS + TABLE,
    "embedding, sinusoidal": TOKENS + "positions = 'sinusoidal'\nheads = 2\nkv_heads = 1\n" + TABLE,
    "biases": X + "heads = 2\n[biases]\nquery = [[1, 2], [3, 4]]\noutput = [1, 2, 3, 4]",
    "biases, one key head": X + "heads = 2\nkv_heads = 1\nsplit = 'slice'\n[biases]\nkey = [1, 2]\nvalue = [3, 4]",
    "biases, one head": X + "[biases]\nquery = [1, 2, 3, 4]\nkey = [0, 1, 0, 1]\nvalue = [0.5, 0.5, 0, 0]",
}
every_file = pytest.mark.parametrize("text", FILES.values(), ids=FILES)


@every_file
def test_trace_layer_and_recomputation_are_equal(text):
    example = parse(text)
    traced = example.trace()
    inputs = [example.x] if example.memory is None else [example.x, example.memory]
    output = example.layer()(*(matrix[None] for matrix in inputs), mask=example.mask)[0]
    torch.testing.assert_close(traced.output, output, rtol=1e-12, atol=1e-13)
    recomputed = Recomputation(example, {})
    for step in traced:
        matrix = recomputed.matrix(step.name, step.head or 0)
        torch.testing.assert_close(step.values, matrix, rtol=1e-12, atol=1e-13)
        assert step.shapes.endswith(str(step.shape))


@every_file
def test_to_toml_preserves_the_calculation(text):
    example = parse(text)
    again = parse(example.to_toml())
    assert again.drawn == ()
    for step, same in zip(example.trace(), again.trace(), strict=True):
        assert (step.name, step.head, step.formula) == (same.name, same.head, same.formula)
        assert torch.equal(step.values, same.values)


@every_file
@pytest.mark.parametrize("style", render.FORMATS)
def test_every_format_is_written(text, style):
    assert render.render(parse(text).trace(), style, title="a title").count("a title")


def printed(values, digits=5):
    """Return the values of a claim."""
    rows = [["-inf" if cell == -math.inf else f"{cell:.{digits}f}" for cell in row] for row in values.tolist()]
    return f"[{', '.join('[' + ', '.join(row) + ']' for row in rows)}]"


def audit_of_all_steps(example, calculation):
    """Return the result for each matrix, by step and head, of an author who prints the matrices of a calculation."""
    lines = []
    for step in example.trace():
        lines += ["[[claims]]", f"step = '{step.name}'"]
        lines += [f"values = {printed(calculation.matrix(step.name, step.head or 0))}"]
        lines += [] if step.head is None else [f"head = {step.head + 1}"]
    audit = check(parse(example.to_toml() + "\n" + "\n".join(lines)))
    return {(result.step, result.head): result for result in audit.findings}


def audit_after_an_error(text, name, head=None, cell=(0, 0)):
    """Return the results for an author who continues with a wrong number in one matrix."""
    example = parse(text)
    step = example.trace().step(name, head)
    wrong = step.values.clone()
    wrong[cell] += 1
    return audit_of_all_steps(example, Recomputation(example, {(name, step.head): wrong}))


class TestChecks:
    @every_file
    def test_correct_claims_agree(self, text):
        example = parse(text)
        results = audit_of_all_steps(example, Recomputation(example, {}))
        assert [result.verdict for result in results.values()] == ["agrees"] * len(example.trace())

    @pytest.mark.parametrize(
        ("text", "seed"),
        slow_except(
            {f"{name}, {seed}": (FILES[name], seed) for name in FILES for seed in range(4)},
            *(f"{name}, 0" for name in FILES),
        ),
    )
    def test_error_is_reported_once_and_carried_from_there(self, text, seed):
        draw = random.Random(seed)
        step = draw.choice(parse(text).trace().steps)
        cell = draw.choice(torch.nonzero(step.values.isfinite()).tolist())
        results = audit_after_an_error(text, step.name, step.head, tuple(cell))
        new = [
            (*matrix, one.row, one.column)
            for matrix, result in results.items()
            for one in result.cells
            if one.carried_from is None
        ]
        assert new == [(step.name, step.head, *cell)]
        symbols = {one.carried_from for result in results.values() for one in result.cells} - {None}
        assert symbols <= {step.symbol}

    @pytest.mark.parametrize(
        ("name", "step", "head", "affected", "correct"),
        [
            ("memory", "memory", None, ("key", "value", "scores", "output"), ("input", "query")),
            ("sinusoidal", "positions", None, ("input", "query", "weights", "output"), ("embedding",)),
            ("embedding, sinusoidal", "embedding", None, ("input", "query", "output"), ("positions",)),
            ("rotary, interleaved", "query", 0, ("scores", "output"), ("key",)),
            ("biases, one head", "key", 0, ("scores", "weights", "output"), ("query", "value")),
            ("scale", "scores", 0, ("scaled", "weights", "output"), ("value",)),
        ],
    )
    def test_errors_are_carried_through_every_key(self, name, step, head, affected, correct):
        results = audit_after_an_error(FILES[name], step, head)
        for (other, index), result in results.items():
            if other == step and index in (None, head):
                assert result.verdict == "differs"
                assert [(cell.row, cell.column) for cell in result.cells] == [(0, 0)]
            elif other in affected and index in (None, head or 0):
                assert result.verdict == "carried", other
            elif other in correct:
                assert result.verdict == "agrees", other

    def test_shared_key_is_carried_to_the_heads_that_read_it(self):
        results = audit_after_an_error(FILES["kv_heads"], "key", 1)
        assert {key: result.verdict for key, result in results.items() if key[0] in ("key", "value", "scores")} == {
            ("key", 0): "agrees",
            ("key", 1): "differs",
            ("value", 0): "agrees",
            ("value", 1): "agrees",
            ("scores", 0): "agrees",
            ("scores", 1): "agrees",
            ("scores", 2): "carried",
            ("scores", 3): "carried",
        }
        assert {cell.carried_from for cell in results["scores", 3].cells} == {"K₂"}

    def test_forgotten_bias_differs(self):
        text = FILES["biases, one head"]
        without = parse(text.replace("query = [1, 2, 3, 4]\n", "")).trace().step("query").values
        claim = f"[[claims]]\nstep = 'query'\nvalues = {printed(without)}"
        [result] = check(parse(f"{text}\n{claim}")).findings
        assert result.message.startswith("12 of 12 cells differ")

    def test_bias_is_claimed_as_one_row(self):
        claim = "[[claims]]\nstep = 'key_bias'\nvalues = [[0, 1, 0, 2]]"
        [result] = check(parse(f"{FILES['biases, one head']}\n{claim}")).findings
        assert result.message.startswith("1 of 4 cells differ")

    @pytest.mark.parametrize(
        ("name", "step", "reason"),
        [
            ("no scaling", "scaled", "the scores are not scaled"),
            ("scale", "memory", "the keys and the values are computed from X"),
            ("embedding", "positions", "no positions are added to the input"),
            ("embedding", "embedding", "no positions are added, so the rows of the tokens are the input"),
        ],
    )
    def test_missing_step_has_a_reason(self, name, step, reason):
        text = FILES[name].replace("[embedding]", f"claims = [{{step = '{step}', shape = [3, 4]}}]\n[embedding]")
        text += "" if "claims" in text else f"\n[[claims]]\nstep = '{step}'\nshape = [3, 4]"
        [result] = check(parse(text)).findings
        assert (result.verdict, result.message) == ("differs", f"this calculation has no such step: {reason}")

    def test_given_keys_with_rotary_positions_are_not_fitted(self):
        given = "\n[given]\nkey = [[1, 2, 3, 4], [5, 6, 7, 8], [9, 8, 7, 6]]"
        assert len(check(parse(X + given)).findings) == 1
        assert check(parse(X + "positions = 'rotary'" + given)).findings == ()
        assert check(parse(X + given + "\n[biases]\nkey = [1, 1, 1, 1]")).findings == ()

    def test_given_matrices_of_key_heads(self):
        text = X + "heads = 2\nkv_heads = 1\n[given]\nkey = [[1, 2], [3, 4], [5, 6]]"
        traced = parse(text).trace()
        for head in (0, 1):
            expected = traced.step("query", head).values @ torch.tensor([[1.0, 3, 5], [2, 4, 6]]).double()
            torch.testing.assert_close(traced.step("scores", head).values, expected)


class TestScale:
    def test_scale_multiplies_and_d_k_divides_by_its_root(self):
        scores = parse(X).trace().step("scores").values
        for text, factor, formula in (
            ("scale = 0.125", 0.125, "S = Q Kᵀ · 0.125"),
            ("scale = 2", 2, "S = Q Kᵀ · 2"),
            ("d_k = 64", 1 / 8, "S = Q Kᵀ / √64"),
            ("d_k = 1", 1, "S = Q Kᵀ / √1"),  # a stated d_k is always shown
            ("", 1 / 2, "S = Q Kᵀ / √4"),
        ):
            scaled = parse(X + text).trace().step("scaled")
            torch.testing.assert_close(scaled.values, scores * factor, rtol=1e-14, atol=0)
            assert scaled.formula == formula

    def test_unscaled_scores_have_no_scaled_step(self):
        traced = parse(X + "scale = 'none'").trace()
        assert not traced.named("scaled")
        assert traced.step("weights").formula == "A = softmax(Q Kᵀ)"
        torch.testing.assert_close(traced.step("weights").values, torch.softmax(traced.step("scores").values, 1))
        assert parse(FILES["no scaling"]).trace().step("weights").formula == "A = softmax(Q Kᵀ + M)"


class TestInputs:
    def test_sinusoidal_positions_are_added_in_float64(self):
        traced = parse(X + "positions = 'sinusoidal'").trace()
        angles = np.outer(range(3), [1.0, 1.0, 0.01, 0.01])
        expected = np.where([True, False, True, False], np.sin(angles), np.cos(angles))
        np.testing.assert_allclose(traced.step("positions").values.numpy(), expected, rtol=0, atol=1e-15)
        rows = parse(X).x
        assert torch.equal(traced.step("embedding").values, rows)
        np.testing.assert_allclose(traced.step("input").values.numpy(), rows.numpy() + expected, rtol=0, atol=1e-15)
        assert [step.formula for step in traced][:3] == ["E", "P = sinusoidal", "X = E + P"]

    @pytest.mark.parametrize(
        ("layout", "pairs"), [("rotary", [(0, 2), (1, 3)]), ("rotary-interleaved", [(0, 1), (2, 3)])]
    )
    def test_rotary_positions_rotate_pairs_of_columns(self, layout, pairs):
        plain, rotated = parse(X).trace(), parse(f"{X}positions = '{layout}'").trace()
        for name in ("query", "key"):
            expected = plain.step(name).values.numpy().copy()
            for (left, right), frequency in zip(pairs, (1.0, 0.01), strict=True):
                for row in range(3):
                    turn = complex(math.cos(row * frequency), math.sin(row * frequency))
                    point = complex(expected[row, left], expected[row, right]) * turn
                    expected[row, left], expected[row, right] = point.real, point.imag
            np.testing.assert_allclose(rotated.step(name).values.numpy(), expected, rtol=1e-13, atol=1e-13)
        assert torch.equal(rotated.step("value").values, plain.step("value").values)

    def test_embedding_looks_up_each_token(self):
        traced = parse(TOKENS + TABLE).trace()
        assert traced.tokens == ("cat", "a dog", "cat")
        assert traced.vocabulary == ("cat", "a dog", "mouse")
        step = traced.step("input")
        assert (step.formula, step.shapes) == ("X = W_E[tokens]", "3 rows of (3, 4) = (3, 4)")
        assert step.values.tolist() == [[0.1, 0.2, 0.3, 0.4], [1.0, 0.2, 0.0, 0.4], [0.1, 0.2, 0.3, 0.4]]
        assert "mouse" in render.render(traced, "markdown")

    def test_memory_has_its_own_tokens_and_width(self):
        traced = parse(X + MEMORY).trace()
        assert traced.memory_tokens == ("u", "v")
        assert traced.step("memory").formula == "Z"
        assert traced.step("key").formula == "K = Z W_K"
        assert traced.step("weights").shape == (3, 2)
        assert parse(X + MEMORY.splitlines()[0]).memory_tokens == ("token 1", "token 2")


class TestKeyHeads:
    def test_keys_and_values_are_computed_once_for_each_key_head(self):
        traced = parse(FILES["kv_heads"]).trace()
        assert [step.formula for step in traced.named("key")] == ["K₁ = X W_K₁", "K₂ = X W_K₂"]
        assert [step.formula for step in traced.named("scores")] == ["Q₁ K₁ᵀ", "Q₂ K₁ᵀ", "Q₃ K₂ᵀ", "Q₄ K₂ᵀ"]
        assert "Keys, shared by heads 3 and 4" in render.render(traced, "markdown")
        assert sum(step.weights for step in traced) == 4 * 4 + 2 * 4 + 2 * 4 + 4 * 4

    def test_select_includes_the_shared_keys_of_a_head(self):
        chosen = parse(FILES["kv_heads"]).trace().select(heads=[3])
        assert [(step.name, step.head) for step in chosen][:3] == [("key", 1), ("value", 1), ("query", 3)]

    def test_number_of_drawn_matrices(self):
        weights = parse(FILES["kv_heads"]).weights
        assert [tuple(weights[name].shape) for name in ("query", "key", "value")] == [(4, 4, 1), (2, 4, 1), (2, 4, 1)]


def test_new_keys_do_not_change_drawn_weights():
    plain = parse(X)
    for name in ("scale", "no scaling", "d_k", "sinusoidal", "biases, one head"):
        for matrix, same in zip(plain.weights.values(), parse(FILES[name]).weights.values(), strict=True):
            assert torch.equal(matrix, same)


@pytest.mark.parametrize(("rows", "columns"), [(200, 4), (3, 400)])
def test_large_examples_are_refused(rows, columns):
    with pytest.raises(ValueError, match=rf"x is {rows} × {columns}, which gives .* cells .* expected at most 100,000"):
        parse(f"x = {[[1] * columns] * rows}")
    assert len(parse(f"x = {[[1] * 16] * 100}").x) == 100
