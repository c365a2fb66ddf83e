"""Tests of `trace`: names, shapes, costs and operands of the steps, and given matrices."""

import pytest
import torch

from clearhead import Causal, Dense, MultiHeadAttention, Padding, trace
from clearhead.explain.steps import STEP_NAMES
from support.layers import every_option, make


@every_option
@pytest.mark.parametrize("masked", [False, True])
def test_steps_equal_those_of_the_layer(options, masked):
    layer = make(options, torch.float64)
    x = torch.randn(5, 30, dtype=torch.float64)
    memory = torch.randn(7, layer.kv_input_dim, dtype=torch.float64) if layer.kv_input_dim != 30 else None
    mask = Causal() if masked else None
    traced = trace(layer, x, memory, mask=mask)
    batch = (x[None],) if memory is None else (x[None], memory[None])
    output, weights = layer(*batch, mask=mask, return_weights=True)
    torch.testing.assert_close(traced.output, output[0], rtol=1e-10, atol=1e-12)
    for head in range(layer.heads):
        for name, expected in (
            ("weights", weights[0, head]),
            ("masked" if masked else "scaled", weights.scores[0, head]),
        ):
            torch.testing.assert_close(traced.step(name, head).values, expected, rtol=1e-10, atol=1e-12)
    for step in traced:
        assert step.shapes.endswith(str(step.shape))
        assert (step.head is None) == (step.name in ("input", "memory", "concat", "output"))


@every_option
def test_steps_are_ordered_and_count_all_parameters(options):
    layer = make(options)
    x, memory = torch.randn(5, 30), torch.randn(7, layer.kv_input_dim)
    cross = layer.kv_input_dim != 30
    traced = trace(layer, x, memory if cross else None, mask=Dense(torch.ones(1, 1, dtype=torch.bool)))
    occurs = {"embedding": False, "positions": False, "memory": cross, "slice": layer.split == "slice"}
    expected = [name for name in STEP_NAMES if occurs.get(name, True)]
    for head in range(layer.heads):
        names = [step.name for step in traced if step.head is None or step in traced.select(heads=[head]).steps]
        first = head * layer.kv_heads % layer.heads == 0  # the first head that reads a key head computes its keys
        assert names == expected if first else sorted(names) == sorted(expected)
    learned = sum(step.weights for step in traced)
    parameters = {name: p.numel() for name, p in layer.named_parameters()}
    times = {"query_norm": layer.heads, "key_norm": layer.kv_heads}  # each head counts the gains of its norm
    assert learned == sum(count * times.get(name.split(".")[0], 1) for name, count in parameters.items())


def test_formulas_shapes_and_costs_of_two_heads():
    sliced = trace(MultiHeadAttention(4, 2, split="slice", bias=False), torch.randn(8, 4))
    sentences = {step.name: (step.formula, step.shapes) for step in sliced if step.head in (None, 0)}
    assert sentences == {
        "input": ("X", "(8, 4)"),
        "slice": ("X₁ = X[columns 1 to 2]", "(8, 4) → (8, 2)"),
        "query": ("Q₁ = X₁ W_Q₁", "(8, 2) × (2, 2) = (8, 2)"),
        "key": ("K₁ = X₁ W_K₁", "(8, 2) × (2, 2) = (8, 2)"),
        "value": ("V₁ = X₁ W_V₁", "(8, 2) × (2, 2) = (8, 2)"),
        "scores": ("Q₁ K₁ᵀ", "(8, 2) × (2, 8) = (8, 8)"),
        "scaled": ("S₁ = Q₁ K₁ᵀ / √2", "(8, 2) × (2, 8) / √2 = (8, 8)"),
        "weights": ("A₁ = softmax(S₁)", "softmax over each row of (8, 8) = (8, 8)"),
        "head_output": ("O₁ = A₁ V₁", "(8, 8) × (8, 2) = (8, 2)"),
        "concat": ("C = Concat(O₁, O₂)", "Concat[(8, 2), (8, 2)] = (8, 4)"),
        "output": ("Y = C W_O", "(8, 4) × (4, 4) = (8, 4)"),
    }
    costs = {step.name: (step.multiply_adds, step.weights) for step in sliced if step.head in (None, 0)}
    assert costs["query"] == (8 * 2 * 2, 2 * 2)
    assert costs["scores"] == (8 * 8 * 2, 0)
    assert costs["output"] == (8 * 4 * 4, 4 * 4)
    assert sum(step.weights for step in sliced if step.name in ("query", "key", "value")) == 24
    projected = trace(MultiHeadAttention(4, 2, bias=False), torch.randn(8, 4))
    assert projected.step("query", 1).shapes == "(8, 4) × (4, 2) = (8, 2)"
    assert sum(step.weights for step in projected if step.name in ("query", "key", "value")) == 48


def test_formulas_contain_the_options_of_the_layer():
    layer = MultiHeadAttention(
        8, 1, kv_input_dim=6, qk_norm=True, softcap=3, scale=0.5, sinks=True, split="slice", key_dim=4
    )
    traced = trace(layer, torch.randn(3, 8), torch.randn(5, 6), mask=Padding([4]))
    assert traced.step("query").formula == "Q = RMSNorm(X W_Q + b_Q)"
    assert traced.step("key").formula == "K = RMSNorm(Z W_K + b_K)"
    assert traced.step("scaled").formula == "S = 3 tanh(Q Kᵀ · 0.5 / 3)"
    assert traced.step("weights").formula == "A = softmax(S + M; sink)"
    assert traced.step("masked").latex == "S + M"
    rotated = trace(MultiHeadAttention(8, 2, rope=True), torch.randn(3, 8))
    assert rotated.step("key", 1).formula == "K₂ = RoPE(X W_K₂ + b_K₂)"
    assert rotated.step("key", 1).latex == "K_{2} = \\text{RoPE}(X W_{K_{2}} + b_{K_{2}})"
    assert rotated.step("scaled", 0).latex == "S_{1} = \\frac{Q_{1} K_{1}^{\\top}}{\\sqrt{4}}"


def test_columns_of_the_input_are_counted_from_1():
    narrow = trace(MultiHeadAttention(2, 2, split="slice", bias=False), torch.randn(3, 2))
    assert narrow.step("slice", 1).formula == "X₂ = X[column 2]"
    assert narrow.step("slice", 1).latex == "X_{2} = X_{\\text{column }2}"
    layer = MultiHeadAttention(8, 4, kv_heads=2, split="slice", bias=False)
    traced = trace(layer, torch.randn(3, 8))
    assert traced.step("key", 1).formula == "K₂ = X[columns 5 to 8] W_K₂"
    assert traced.step("key", 1).latex == "K_{2} = X_{\\text{columns }5\\text{ to }8} W_{K_{2}}"
    columns = traced.step("key", 1).operands[0]
    assert (columns.origin, columns.values.tolist()) == ("input", traced.step("input").values[:, 4:].tolist())


def test_token_labels_and_rows_without_keys():
    traced = trace(MultiHeadAttention(4, 2), torch.randn(1, 2, 4), mask=torch.tensor([[True, False], [False, False]]))
    assert traced.tokens == traced.memory_tokens == ("token 1", "token 2")
    assert (traced.step("weights", 0).values[1] == 0).all()
    assert (traced.step("head_output", 1).values[1] == 0).all()
    named = trace(
        MultiHeadAttention(4, 2), torch.randn(2, 4), torch.randn(1, 4), tokens=["a", "b"], memory_tokens=["c"]
    )
    assert (named.tokens, named.memory_tokens) == (("a", "b"), ("c",))
    assert len(named) == len(list(named))


@every_option
def test_operands_reproduce_the_step(options):
    """Recompute each step from its operands by products, sums and copies."""
    layer = make(options, torch.float64)
    memory = torch.randn(7, layer.kv_input_dim, dtype=torch.float64) if layer.kv_input_dim != 30 else None
    traced = trace(layer, torch.randn(5, 30, dtype=torch.float64), memory, mask=Causal())
    tested = set()
    for step in traced:
        values = [operand.values for operand in step.operands]
        for operand in step.operands:
            assert not operand.values.requires_grad
            assert traced.labels(operand.rows, operand.values.shape[0])
        if step.how == "product":
            expected = values[0] @ values[1] + (values[2] if len(values) > 2 else 0)
            assert [operand.marks for operand in step.operands] == ["row", "column", "column"][: len(values)]
        elif step.how == "masked":
            expected = values[0] + values[1]
        elif step.how == "slice":
            expected = values[0][:, step.operands[0].shift :][:, : step.shape[1]]
        elif step.how == "concat":
            expected = torch.full(step.shape, torch.nan, dtype=torch.float64)
            for operand in step.operands:
                expected[:, -operand.shift : -operand.shift + operand.values.shape[1]] = operand.values
        elif step.how == "softmax":
            together = torch.cat([value.expand(len(values[0]), -1) for value in values], dim=1)
            expected = torch.softmax(together, dim=1)[:, : step.shape[1]]
            expected = torch.where((values[0] > -torch.inf).any(1, keepdim=True) | (len(values) > 1), expected, 0.0)
        elif step.how == "scaled":
            assert step.scaling in ("/ √5", "/ √7", "/ √8", "/ √3", "· 0.3", "/ √4")
            expected = values[0] * layer.scale if layer.scale else values[0] / layer.key_dim**0.5
        else:
            assert step.how == "input" or (step.how == "other" and step.name in ("query", "key", "scaled"))
            continue
        tested.add(step.how)
        torch.testing.assert_close(step.values, expected, rtol=1e-10, atol=1e-12)
    assert {"product", "masked", "concat", "softmax"} <= tested


class TestGiven:
    def test_given_matrix_is_used_in_later_steps(self):
        layer, x = MultiHeadAttention(4, 2), torch.randn(3, 4)
        key = torch.randn(3, 2)
        traced = trace(layer, x, given={("key", 1): key})
        plain = trace(layer, x)
        assert torch.equal(traced.step("key", 1).values, key)
        assert traced.step("key", 1).formula == "K₂ = given"
        assert traced.step("key", 1).shapes == "given: (3, 2)"
        assert traced.step("key", 1).operands == ()
        torch.testing.assert_close(traced.step("scores", 1).values, plain.step("query", 1).values @ key.T)
        assert torch.equal(traced.step("weights", 0).values, plain.step("weights", 0).values)
        assert not torch.equal(traced.output, plain.output)

    @pytest.mark.parametrize("name", STEP_NAMES[STEP_NAMES.index("slice") :])
    def test_every_step_can_be_given(self, name):
        layer, x = MultiHeadAttention(4, 2, split="slice"), torch.randn(3, 4)
        plain = trace(layer, x, mask=Causal())
        given = {(step.name, step.head): step.values for step in plain.named(name)}
        again = trace(layer, x, mask=Causal(), given=given)
        assert [step.formula.endswith("given") for step in again] == [step.name == name for step in again]
        torch.testing.assert_close(again.output, plain.output)
        changed = {where: values.nan_to_num(neginf=-1.0) + torch.rand(values.shape) for where, values in given.items()}
        assert not torch.allclose(trace(layer, x, mask=Causal(), given=changed).output, plain.output)


def test_each_head_has_its_own_mask():
    layer, x = MultiHeadAttention(4, 2, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)
    mask = torch.rand(2, 3, 3) < 0.5
    traced = trace(layer, x, mask=mask)
    torch.testing.assert_close(traced.output, layer(x[None], mask=mask[None])[0])
    for head in (0, 1):
        assert torch.equal(traced.step("masked", head).values > -torch.inf, mask[head])


def test_select_filters_steps_and_heads():
    traced = trace(MultiHeadAttention(4, 2), torch.randn(3, 4))
    assert [(step.name, step.head) for step in traced.select(["query", "output"])] == [
        ("query", 0),
        ("query", 1),
        ("output", None),
    ]
    assert {step.head for step in traced.select(heads=[1])} == {1}
    assert traced.select().steps == traced.steps


LAYER, X = MultiHeadAttention(4, 2), torch.randn(3, 4)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: trace(LAYER, X[:, :3]), ValueError, "x has shape (3, 3); expected one text, [length, 4]"),
        (lambda: trace(LAYER, [[1.0]]), TypeError, "x is a list; expected a tensor [length, 4]"),
        (lambda: trace(LAYER, X, X[None, None]), ValueError, "memory has shape (1, 1, 3, 4); expected one text"),
        (lambda: trace(LAYER, X, tokens=["a"]), ValueError, "tokens has 1 label; expected 3, one per row"),
        (lambda: trace(LAYER, X, memory_tokens=["a"]), ValueError, "memory_tokens is given without memory"),
        (lambda: trace(LAYER, X, mask="causal"), TypeError, "mask is a str; expected a mask such as Causal()"),
        (
            lambda: trace(LAYER, X).step("softmax"),
            ValueError,
            "step is 'softmax'; expected one of embedding, positions, input",
        ),
        (lambda: trace(LAYER, X).step("slice", 0), ValueError, "step 'slice' does not occur in this calculation"),
        (lambda: trace(LAYER, X).step("query"), ValueError, "step 'query' occurs once for each of 2 heads; pass head"),
        (lambda: trace(LAYER, X).step("query", 2), ValueError, "head has head 2, but there are 2"),
        (lambda: trace(LAYER, X).select(["slice"]), ValueError, "step 'slice' does not occur in this calculation"),
        (
            lambda: trace(LAYER, X).select(heads=[2]),
            ValueError,
            "head 3 does not occur; expected 1 to 2, counted from 1",
        ),
        (
            lambda: trace(LAYER, X, given={("key", 0): X}),
            ValueError,
            "given ('key', 0) has shape (3, 4); expected (3, 2), K₁ = X W_K₁ + b_K₁",
        ),
        (
            lambda: trace(LAYER, X, given={("masked", 0): X}),
            ValueError,
            "given has ('masked', 0), but this calculation has no such step and head",
        ),
    ],
)
def test_rejects_invalid_arguments(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert message in str(caught.value)
