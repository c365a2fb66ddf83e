"""Tests of causes in calculations with biases, memory, rotary positions, shared keys and several heads."""

import numpy as np
import pytest

from clearhead import check
from clearhead.explain import parse

X = np.array([[1.0, 0.5, -0.5, 2.0], [0.0, 2.0, 1.0, -1.0], [1.5, -1.0, 0.5, 0.25]])
MEMORY = np.array([[2.0, 1.0, 0.5, 0.0], [1.0, 3.0, -1.0, 0.5]])
GENERATOR = np.random.default_rng(5)
WEIGHTS = {name: GENERATOR.integers(-9, 10, (2, 4, 2)) / 5 for name in ("query", "key", "value")}
OUTPUT = GENERATOR.integers(-9, 10, (4, 4)) / 5
BIASES = {name: GENERATOR.integers(-9, 10, (2, 2)) / 5 for name in ("query", "key", "value")}
BIAS_OF_OUTPUT = np.array([0.3, -0.7, 1.1, 0.2])


def softmax(scores):
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def head_outputs():
    outputs = []
    for head in range(2):
        query, key, value = (X @ WEIGHTS[name][head] for name in ("query", "key", "value"))
        outputs.append(softmax(query @ key.T / np.sqrt(2)) @ value)
    return outputs


def causes(claims, top=""):
    """Return the names of the causes of each claim, (step, head or None, matrix)."""
    weights = "".join(f"{name} = {values.tolist()}\n" for name, values in (*WEIGHTS.items(), ("output", OUTPUT)))
    text = f"x = {X.tolist()}\nheads = 2\n{top}\n[weights]\n{weights}"
    for step, head, values in claims:
        rows = ", ".join(f"[{', '.join(f'{cell:.3f}' for cell in row)}]" for row in values)
        text += f"[[claims]]\nstep = '{step}'\n" + (f"head = {head}\n" if head else "") + f"values = [{rows}]\n"
    return [[cause.name for cause in result.causes] for result in check(parse(text)).findings]


ORDERS = {
    "heads in another order": lambda heads: np.concatenate(heads[::-1], axis=1) @ OUTPUT,
    "heads interleaved": lambda heads: np.stack(heads, axis=-1).reshape(3, 4) @ OUTPUT,
    "heads reshaped without transposing": lambda heads: np.stack(heads).reshape(3, 4) @ OUTPUT,
    "heads added": lambda heads: sum(heads) @ OUTPUT[:2],
    "heads averaged": lambda heads: sum(heads) / 2 @ OUTPUT[:2],
}


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("prints_concat", [False, True])
def test_wrongly_joined_heads_are_named_in_the_output(name, prints_concat):
    heads = head_outputs()
    claims = [("concat", None, np.concatenate(heads, axis=1))] if prints_concat else []
    *_, named = causes([*claims, ("output", None, ORDERS[name](heads))])
    assert named == [name]


class TestBiases:
    TOP = "".join(f"biases.{name} = {values.tolist()}\n" for name, values in BIASES.items())
    TOP += f"biases.output = {BIAS_OF_OUTPUT.tolist()}\n"

    @pytest.mark.parametrize(
        ("name", "values"),
        {
            "b_Q forgotten": X @ WEIGHTS["query"][1],
            "b_Q added twice": X @ WEIGHTS["query"][1] + 2 * BIASES["query"][1],
            "b_Q subtracted": X @ WEIGHTS["query"][1] - BIASES["query"][1],
            "W_K used for Q": X @ WEIGHTS["key"][1] + BIASES["query"][1],
            "W_K and its bias used for Q": X @ WEIGHTS["key"][1] + BIASES["key"][1],
        }.items(),
    )
    def test_mistakes_in_the_bias_are_named(self, name, values):
        assert causes([("query", 2, values)], self.TOP) == [[name]]

    def test_forgotten_bias_of_the_output_is_named(self):
        outputs = []
        for head in range(2):
            query, key, value = (X @ WEIGHTS[name][head] + BIASES[name][head] for name in ("query", "key", "value"))
            outputs.append(softmax(query @ key.T / np.sqrt(2)) @ value)
        assert causes([("output", None, np.concatenate(outputs, axis=1) @ OUTPUT)], self.TOP) == [["b_O forgotten"]]


class TestMemory:
    TOP = f"memory = {MEMORY.tolist()}"

    @pytest.mark.parametrize(
        ("step", "name", "source"),
        [
            ("key", "K computed from X", X),
            ("value", "V computed from X", X),
            ("query", "Q computed from Z", MEMORY),
        ],
    )
    def test_projection_of_the_other_text_is_named(self, step, name, source):
        assert causes([(step, 2, source @ WEIGHTS[step][1])], self.TOP) == [[name]]


class TestScale:
    @pytest.mark.parametrize(
        ("top", "factor", "name"),
        [
            ("scale = 'none'", 1 / np.sqrt(2), "divided by √d_k"),
            ("scale = 0.3", 1, "not scaled"),
            ("d_k = 7", 1, "not divided by √d_k"),
            ("d_k = 7", 1 / 2, "divided by √d_model"),
            ("scale = 0.3", 0.09, "scaled twice"),
        ],
    )
    def test_wrong_scale_is_named(self, top, factor, name):
        query, key = (X @ WEIGHTS[step][0] for step in ("query", "key"))
        assert causes([("weights", 1, softmax(query @ key.T * factor))], top) == [[name]]


def test_forgotten_rotation_is_named():
    assert causes([("query", 1, X @ WEIGHTS["query"][0])], "positions = 'rotary'") == [["Q not rotated"]]


def test_keys_of_another_key_head_are_named_once():
    weights = {name: values.tolist() for name, values in WEIGHTS.items()}
    weights["query"] = (GENERATOR.integers(-9, 10, (4, 4, 2)) / 5).tolist()
    table = "".join(f"{name} = {values}\n" for name, values in weights.items())
    scores = X @ np.array(weights["query"][0]) @ (X @ WEIGHTS["key"][1]).T
    rows = [[round(float(cell), 3) for cell in row] for row in scores]
    text = f"x = {X.tolist()}\nheads = 4\nkv_heads = 2\n[weights]\n{table}[[claims]]\nstep = 'scores'\nhead = 1\n"
    [result] = check(parse(f"{text}values = {rows}")).findings
    assert [cause.name for cause in result.causes] == ["W_K of key head 2", "keys of key head 2"]


def test_one_wrong_sign_does_not_explain_a_matrix_that_is_wrong_everywhere():
    text = "x = [[1, 2], [3, 4]]\n[weights]\nquery = [[1, 0], [1, 1]]\n[[claims]]\nstep = 'query'\n"
    [result] = check(parse(f"{text}values = [[-3, 7], [9, 8]]")).findings
    assert (result.message, result.causes) == ("4 of 4 cells differ", ())


def test_weights_rounded_before_the_product_are_named():
    query, key, value = (X @ WEIGHTS[name][0] for name in ("query", "key", "value"))
    weights = softmax(query @ key.T / np.sqrt(2)).round(1)
    assert causes([("head_output", 1, weights @ value)]) == [["rounded too early"]]
