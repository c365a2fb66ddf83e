"""Tests of invalid arguments: errors name the argument, its value and the expected value."""

import numpy as np
import pytest
import torch

from clearhead import ALiBi, Causal, Dense, Documents, Padding, attention

X = torch.randn(2, 6, 5, 7)


def call(query=X, key=X, value=X, **options):
    return attention(query, key, value, **options)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"query": [1.0]}, TypeError, "query is a list; expected a tensor [batch, heads, length, dim]"),
        ({"key": X[0]}, ValueError, "key has 3 axes, shape (6, 5, 7); expected 4"),
        ({"query": X.long()}, TypeError, "query has dtype torch.int64; expected float64, float32, bfloat16 or float16"),
        ({"value": X.double()}, TypeError, "value has dtype torch.float64; expected query's torch.float32"),
        ({"key": X.to("meta")}, ValueError, "key is on meta, but query is on cpu"),
        ({"key": X[:1], "value": X[:1]}, ValueError, "query has batch 2, key 1 and value 1; expected the same"),
        ({"key": X[:, :4], "value": X[:, :4]}, ValueError, "key has 4 heads, but query's 6 heads are not a multiple"),
        ({"value": X[:, :3]}, ValueError, "value has 3 heads, but key has 6"),
        ({"value": X[:, :, :4]}, ValueError, "value has 4 positions, but key has 5"),
        ({"key": X[..., :4]}, ValueError, "key has key_dim 4 and query 7; expected the same"),
        ({"query": X[..., :0], "key": X[..., :0]}, ValueError, "expected the same, at least 1"),
        ({"mask": torch.ones(5, 5)}, TypeError, "mask is a tensor of dtype torch.float32; expected torch.bool"),
        ({"mask": "causal"}, TypeError, "mask is a str; expected a mask such as Causal(), or a bool tensor"),
        ({"mask": Padding([1, 2, 3])}, ValueError, "Padding has lengths for 3 sequences, but the batch is 2"),
        (
            {"mask": Causal() & Documents([[1]])},
            ValueError,
            "Documents has lengths for 1 sequences, but the batch is 2",
        ),
        ({"mask": Dense(torch.ones(4, 5) > 0)}, ValueError, "Dense has shape (1, 1, 4, 5), which does not broadcast"),
        ({"mask": Dense((torch.ones(5, 5) > 0).to("meta"))}, ValueError, "mask is on meta, but query is on cpu"),
        ({"bias": 1.0}, TypeError, "bias is a float; expected a float tensor or ALiBi(slopes)"),
        (
            {"bias": torch.ones(5, 5) > 0},
            TypeError,
            "bias has dtype torch.bool; expected a float dtype; pass a bool tensor as `mask`",
        ),
        (
            {"bias": torch.ones(3, 5, 5)},
            ValueError,
            "bias has shape (3, 5, 5), which does not broadcast to (2, 6, 5, 5)",
        ),
        ({"bias": torch.ones(5, 5).to("meta")}, ValueError, "bias is on meta, but query is on cpu"),
        ({"bias": ALiBi([0.5])}, ValueError, "ALiBi has 1 slopes, but query has 6 heads"),
        ({"scale": float("nan")}, ValueError, "scale is nan; expected a finite number"),
        ({"scale": "big"}, TypeError, "scale is 'big'; expected a finite number"),
        ({"softcap": 0.0}, ValueError, "softcap is 0.0; expected a finite number above 0"),
        ({"softcap": "no"}, TypeError, "softcap is 'no'; expected a finite number"),
        ({"sinks": torch.ones(5)}, ValueError, "sinks has shape (5,); expected (6,), one logit per head"),
        ({"sinks": [0.0] * 6}, TypeError, "sinks is a list; expected a float tensor [heads]"),
        ({"dropout": 1.0}, ValueError, "dropout is 1.0; expected a number in [0, 1)"),
        ({"dropout": -0.1}, ValueError, "dropout is -0.1; expected a number in [0, 1)"),
        ({"dropout": float("nan")}, ValueError, "dropout is nan; expected a number in [0, 1)"),
        ({"dropout": None}, TypeError, "dropout is None; expected a number in [0, 1)"),
        ({"query_start": 1.5}, TypeError, "query_start is 1.5; expected an int or an int tensor [batch]"),
        ({"query_start": 2**70}, ValueError, "query_start is 1180591620717411303424; expected a position between"),
        ({"query_start": torch.ones(2)}, TypeError, "query_start has dtype torch.float32; expected whole numbers"),
        ({"query_start": torch.ones(3).long()}, ValueError, "query_start has shape (3,); expected (2,)"),
        (
            {"backend": "fast"},
            ValueError,
            "backend is 'fast'; expected 'auto' or one of 'sdpa', 'triton', 'streaming', 'reference'",
        ),
        (
            {"backend": "sdpa", "softcap": 3.0},
            ValueError,
            "backend 'sdpa' does not support this call: softcap is not supported",
        ),
        (
            {"backend": "sdpa", "value": X[..., :3], "dropout": 0.5},
            ValueError,
            "does not support this call: value_dim is 3, but key_dim is 7; dropout",
        ),
    ],
)
def test_attention_rejects_invalid_arguments(arguments, error, message):
    with pytest.raises(error) as caught:
        call(**arguments)
    assert message in str(caught.value)


def test_alibi_rejects_invalid_slopes():
    for slopes, error, message in (
        ([[1.0]], ValueError, "shape (1, 1)"),
        (torch.ones(3).long(), TypeError, "int64"),
        ([float("inf")], ValueError, "finite"),
    ):
        with pytest.raises(error) as caught:
            ALiBi(slopes)
        assert message in str(caught.value)


@pytest.mark.parametrize(
    ("use", "error", "message"),
    [
        (lambda w: w[2], IndexError, "index 2 is out of range for batch of size 2"),
        (lambda w: w[0, 0, 0, 0, 0], IndexError, "too many indices: 5"),
        (lambda w: w[..., ...], IndexError, "single ellipsis"),
        (lambda w: w[0, 0, ::-1], ValueError, "the slice of q_len has step -1; expected 1 or more"),
        (lambda w: w[0, ["x"]], TypeError, "the index of heads is a list; expected an integer, a slice, None, a list"),
        (lambda w: w[0, [1, 6]], IndexError, "index 6 is out of range for heads of size 6"),
        (lambda w: w[..., torch.tensor([-6, 0])], IndexError, "index -6 is out of range for kv_len of size 5"),
        (lambda w: w.mT[0, 0, 7], IndexError, "index 7 is out of range for kv_len of size 5"),
        (lambda w: w[0, torch.ones(2)], TypeError, "the index of heads has dtype torch.float32; expected integers"),
        (
            lambda w: w[0, torch.ones(2).byte()],
            TypeError,
            "the index of heads has dtype torch.uint8; expected integers",
        ),
        (lambda w: w[0, torch.tensor(1.0)], TypeError, "the index of heads has dtype torch.float32; expected integers"),
        (lambda w: w[0, torch.ones(2).bool()], IndexError, "the mask of heads has length 2; expected 6"),
        (lambda w: w[torch.ones(2, 5).bool()], IndexError, "the mask of heads has length 5; expected 6"),
        (lambda w: w[0, 0, [0, 1], [0, 1, 2]], IndexError, "shapes q_len (2,), kv_len (3,); expected shapes that"),
        (lambda w: w[torch.ones(2, 6, 5, 5, 1).bool()], IndexError, "too many indices: 5"),
        (lambda w: w[0, 0, 0, 0, torch.tensor(True)], IndexError, "too many indices: 5"),
        (lambda w: w[0, torch.tensor([1]).to_sparse()], TypeError, "the index of heads is a sparse or nested tensor"),
        (lambda w: w[0, torch.tensor([1], device="meta")], ValueError, "the index of heads stores no values"),
        (lambda w: w[0, 1.0], TypeError, "the index of heads is a float"),
        (lambda w: w[True], TypeError, "the index of batch is True"),
        (lambda w: w.dense(limit=10), ValueError, "2 × 6 × 5 × 5 = 300 weights are more than the limit of 10"),
        (lambda w: w.topk(0), ValueError, "k is 0; expected a whole number of at least 1"),
        (lambda w: w.observe(top=-1), ValueError, "top is -1; expected a whole number of at least 1"),
        (lambda w: w.observe(top=0), ValueError, "top is 0; expected a whole number of at least 1"),
        (lambda w: w.diagonal(0.5), TypeError, "offset is 0.5; expected an int"),
        (lambda w: w.pool(0, 3), ValueError, "rows is 0; expected a whole number of at least 1"),
        (lambda w: w.pool(3, 3, reduce="sum"), ValueError, "reduce is 'sum'; expected 'mean' or 'max'"),
        (lambda w: w.observe(pool=(3, 3), reduce="sum"), ValueError, "reduce is 'sum'; expected 'mean' or 'max'"),
        (lambda w: w.observe(pool=3), TypeError, "pool is 3; expected (rows, cols)"),
        (lambda w: w.observe(pool=(0, 3)), ValueError, "rows is 0; expected a whole number of at least 1"),
        (
            lambda w: w.pool(3, 3, window=((0, 9), (0, 5))),
            ValueError,
            "window takes rows 0 to 9; expected 0 ≤ start < end ≤ 5",
        ),
        (
            lambda w: w.pool(3, 3, window=(1, 2)),
            TypeError,
            "window is (1, 2); expected ((row, row_end), (key, key_end))",
        ),
        (lambda w: w.topk(2**40), ValueError, "weights are more than the limit"),
        (lambda w: w.to(1.5), TypeError, "device is 1.5; expected a device"),
        (lambda w: w.to(device=torch.float16), TypeError, "device is torch.float16; expected a device"),
        (lambda w: w.to("cpu", "cpu"), TypeError, "dtype is 'cpu'; expected a torch.dtype"),
        (lambda w: w.to("cpu", device="cpu"), TypeError, "device is 'cpu' and 'cpu'; expected it once"),
        (lambda w: w.to("cpu", None, False, True), TypeError, "to() has 4 positional arguments; expected at most"),
        (lambda w: w[np.array(["x"])], TypeError, "the index of batch is a ndarray"),
        (lambda w: w.save("/no/such/folder/w"), FileNotFoundError, "/no/such/folder/w: there is no folder"),
        (lambda w: w.part(heads=6), IndexError, "index 6 is out of range for heads of size 6"),
        (lambda w: w.part(batch=slice(2, 2)), ValueError, "expected at least one of 2 indices"),
        (lambda w: w.part(queries=3), TypeError, "q_len is 3; expected a slice, such as slice(100, 200)"),
        (lambda w: w.part(queries=slice(0, 4, 2)), ValueError, "the slice of q_len has step 2; expected step 1"),
        (lambda w: w.hiding(99), IndexError, "index 99 is out of range for kv_len"),
        (lambda w: w.no_such_thing, AttributeError, "no attribute 'no_such_thing'"),
        (lambda w: w.zero_(), AttributeError, "no attribute 'zero_'"),
    ],
)
def test_weights_reject_invalid_arguments(use, error, message):
    _, weights = call(return_weights=True)
    with pytest.raises(error) as caught:
        use(weights)
    assert message in str(caught.value)
