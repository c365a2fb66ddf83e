"""Tests of the layer that a live page starts with."""

import json

import pytest
import torch

from clearhead.explain import BUILT_IN, load, parse, trace
from clearhead.explain.live import _layer_json
from clearhead.explain.live._layer_json import live_layer
from clearhead.nn import MultiHeadAttention, Rotary
from clearhead.ops.masks import Causal, Dense
from support.live_layers import call


def layer(**options):
    return MultiHeadAttention(4, 2, dtype=torch.float64, **options)


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_built_in_example_is_live(name):
    example = load(name)
    live = json.loads(json.dumps(live_layer(example.trace()), allow_nan=False))
    assert live["tokens"] == list(example.tokens)
    for weight, values in live["weights"].items():
        if weight not in {step for step, _ in example.given}:
            assert values == example.weights[weight].tolist()


def test_a_given_matrix_is_kept_and_its_weights_fit_it():
    example = load("song")
    live = live_layer(example.trace())
    assert live["given"] == {"key-1": example.given["key", 0].values.tolist()}
    fitted = torch.tensor(live["weights"]["key"][0], dtype=torch.float64)
    distance = (example.x @ fitted - example.given["key", 0].values).square().sum()
    for change in (0.05, -0.05):  # no other W_K with two digits is nearer in any cell
        for row in range(4):
            for column in range(4):
                other = fitted.clone()
                other[row, column] += change
                assert (example.x @ other - example.given["key", 0].values).square().sum() > distance


def test_limits_are_those_of_the_page():
    limits = call('import * as limits from "clearhead/layer_limits.js"; answer(limits)')
    assert {name: getattr(_layer_json, name) for name in limits if name.startswith("MAX_")} == limits


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (None, ("none", 0)),
        (Causal(), ("causal", 0)),
        (Dense(torch.tensor([[True, True, False]]).expand(3, 3)), ("padding", 1)),
        (Dense(torch.tensor([[True, False, True], [True, True, True], [True, True, False]])), ("custom", 0)),
    ],
)
def test_masks_have_kinds(mask, expected):
    live = live_layer(trace(layer(), torch.randn(3, 4).double(), mask=mask))
    assert (live["mask"]["kind"], live["mask"]["padding"]) == expected
    hidden = None if mask is None or expected[0] != "custom" else (~mask.dense(3, 3)[0, 0]).tolist()
    assert live["mask"]["hidden"] == hidden


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("", {"on": True, "scale": None, "d_k": None}),
        ("d_k = 64", {"on": True, "scale": None, "d_k": 64}),
        ("scale = 0.3", {"on": True, "scale": 0.3, "d_k": None}),
        ('scale = "none"', {"on": False, "scale": None, "d_k": None}),
    ],
)
def test_scaling_is_read_from_the_steps(source, expected):
    assert live_layer(parse(f"x = [[1, 0], [0, 1]]\n{source}").trace())["scaling"] == expected


@pytest.mark.parametrize(
    ("calculation", "reason"),
    [
        (lambda: trace(layer(rope=Rotary()), torch.randn(3, 4).double()), "RoPE"),
        (lambda: trace(layer(softcap=5.0), torch.randn(3, 4).double()), "softcap"),
        (lambda: trace(layer(), torch.randn(13, 4).double()), "it has 13 tokens; expected at most 12"),
        (lambda: trace(MultiHeadAttention(18, 2), torch.randn(3, 18)), "X has 18 columns; expected at most 16"),
        (lambda: trace(MultiHeadAttention(9, 9), torch.randn(3, 9)), "it has 9 heads; expected at most 8"),
        (lambda: trace(layer(), torch.full((3, 4), 2e6).double()), "X has numbers above 1,000,000"),
        (lambda: trace(layer(), torch.randn(1, 4).double(), tokens=["a" * 41]), "a token is empty or has more than 40"),
        (
            lambda: parse(
                'tokens = ["a1"]\n[embedding]\n' + "\n".join(f"a{index} = [1, 0]" for index in range(41))
            ).trace(),
            "its embedding table has 41 rows; expected at most 40",
        ),
        (
            lambda: trace(layer(), torch.randn(3, 4).double(), mask=torch.rand(1, 2, 3, 3) > 0.5),
            "the heads have different masks",
        ),
        (
            lambda: parse("x = [[1, 0], [0, 1]]\n[given]\nscores = [[1, 2], [3, 4]]").trace(),
            "the text gives numbers of the step 'scores'",
        ),
        (
            lambda: parse('x = [[1, 0], [0, 1]]\n[given]\nkey = [["_", 2], [3, 4]]').trace(),
            "the text gives numbers of the step 'key'",
        ),
    ],
)
def test_other_calculations_have_a_reason(calculation, reason):
    torch.manual_seed(0)
    assert reason in live_layer(calculation())
