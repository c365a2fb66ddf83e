"""Tests of `patch` against attention written out."""

import pytest
import torch

from clearhead.watching import patch, watch
from support.watched_models import HEADS, MODEL_DIM, WIDTH
from support.written_out import BATCH, LENGTH, in_layer, model_and_input, plain, with_head, written_out


def weights_like(weights):
    """Return random weights of the same shape whose rows sum to 1."""
    return torch.rand(weights.shape, dtype=torch.float64).softmax(dim=-1)


def test_outputs_of_another_input():
    model, x = model_and_input()
    with torch.no_grad(), watch(model, values=True) as seen:
        model(x.flip(1))
    source = seen[1].output
    assert source.shape == (BATCH, HEADS, LENGTH, WIDTH)
    rows = [3, LENGTH - 1]
    change = in_layer(1, lambda scores, value: with_head(plain(scores, value), 2, source[:, 2][:, rows], rows))
    with written_out(change):
        expected = model(x)
    for given in (source, source[:, 2]):
        with patch(model, {(1, 2): given}, positions=[-1, 3]):
            torch.testing.assert_close(model(x), expected)


def test_rows_of_a_source_follow_the_order_of_positions():
    model, x = model_and_input()
    given = torch.randn(2, WIDTH, dtype=torch.float64)
    with patch(model, {(0, 1): given}, positions=[-1, 2]):
        got = model(x)
    change = in_layer(0, lambda scores, value: with_head(plain(scores, value), 1, given, [LENGTH - 1, 2]))
    with written_out(change):
        torch.testing.assert_close(got, model(x))


def test_outputs_of_some_positions():
    model, x = model_and_input()
    given = torch.randn(2, WIDTH, dtype=torch.float64)
    with patch(model, {(0, 1): given}, positions=slice(2, 4)):
        got = model(x)
    with written_out(in_layer(0, lambda scores, value: with_head(plain(scores, value), 1, given, slice(2, 4)))):
        torch.testing.assert_close(got, model(x))


@pytest.mark.parametrize("form", ["weights", "tensor", "batch", "heads"])
def test_patterns(form):
    model, x = model_and_input()
    with torch.no_grad(), watch(model) as seen:
        model(x.flip(1))
    weights = seen[1].weights if form == "weights" else weights_like(seen[1].weights)
    pattern = weights[:, 2] if form != "tensor" else weights[0, 2]
    given = {"weights": weights, "tensor": pattern, "batch": pattern, "heads": weights}[form]
    with watch(model) as patched, patch(model, {(1, 2): given}, positions=slice(1, None)):
        got = model(x)
    rows = slice(1, None)
    with written_out(
        in_layer(1, lambda scores, value: with_head(plain(scores, value), 2, pattern[..., rows, :] @ value[:, 2], rows))
    ):
        torch.testing.assert_close(got, model(x))
    # `watch` observes the pattern that the output follows from
    observed = patched[1].calls[0].weights
    torch.testing.assert_close(observed[:, 2, 1:], pattern[..., 1:, :].expand(BATCH, -1, -1))
    assert bool((observed[:, 2, 0] != pattern[..., 0, :]).any())
    torch.testing.assert_close(observed.sum(-1), torch.ones(BATCH, HEADS, LENGTH, dtype=torch.float64))


def test_gradients_of_values():
    model, x = model_and_input()
    pattern = torch.rand(LENGTH, LENGTH, dtype=torch.float64).softmax(dim=-1)
    change = in_layer(0, lambda scores, value: with_head(plain(scores, value), 1, pattern @ value[:, 1]))
    gradients = []
    for block in (patch(model, {(0, 1): pattern}), written_out(change)):
        model.zero_grad()
        with block:
            model(x).square().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(*gradients)


def test_rejects_sources_that_do_not_fit():
    model, x = model_and_input()
    with torch.no_grad(), watch(model) as seen:
        model(x[:, 1:])
    for source, message in (
        (torch.zeros(LENGTH, 3), r"expected \[..., head_dim = 8\] or \[q_len, kv_len = 7\]"),
        (torch.zeros(3, LENGTH, WIDTH), r"leading axes \[batch = 2\]"),
        (torch.zeros(5, WIDTH), r"\[q_len = 7, head_dim = 8\]"),
        (seen[0].weights, r"expected that of the call, \[2, 4 or 1, 7, 7\]"),
    ):
        with pytest.raises(ValueError, match=message), patch(model, {(0, 1): source}):
            model(x)
    with pytest.raises(TypeError, match=r"patches\[\(0, 1\)\] is .* expected a tensor or the weights"):
        patch(model, {(0, 1): [1.0]}).__enter__()
    with pytest.raises(TypeError, match="patches is .*; expected a dict"):
        patch(model, [(0, 1)]).__enter__()


def test_ambiguous_tensors_require_what():
    model, _ = model_and_input()
    x = torch.randn(BATCH, WIDTH, MODEL_DIM, dtype=torch.float64)
    given = torch.rand(WIDTH, WIDTH, dtype=torch.float64).softmax(dim=-1)
    with pytest.raises(ValueError, match="pass what='output' or what='pattern'"), patch(model, {(0, 1): given}):
        model(x)
    changes = {
        "output": lambda scores, value: with_head(plain(scores, value), 1, given),
        "pattern": lambda scores, value: with_head(plain(scores, value), 1, given @ value[:, 1]),
    }
    for what, change in changes.items():
        with patch(model, {(0, 1): given}, what=what):
            got = model(x)
        with written_out(in_layer(0, change)):
            torch.testing.assert_close(got, model(x))
