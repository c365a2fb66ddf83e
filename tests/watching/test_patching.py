"""Tests of `patching`: exact against attention written out, and its estimate against exact small changes."""

import threading

import numpy as np
import pytest
import torch
from torch import nn

from clearhead.watching import patching
from support.watched_models import HEADS, MODEL_DIM, OwnModel
from support.written_out import BATCH, CALLS, LENGTH, model_and_input, plain, with_head, written_out


def metric(output):
    return output[:, -1].square().sum()


def clean_calls(model, x):
    """Return scores, values and outputs of every attention call."""
    calls = []

    def keep(index, scores, value):
        calls.append((scores.detach(), value.detach(), plain(scores, value).detach()))
        return calls[-1][2]

    with written_out(keep), torch.no_grad():
        model(x)
    return calls


def restored(what, clean, scores, value, head, positions):
    """Return the output of a call with one head restored at some positions, written out."""
    clean_scores, clean_value, clean_output = clean
    output = plain(scores, value)
    if what == "output":
        return with_head(output, head, clean_output[:, head, positions], positions)
    if what == "pattern":
        return with_head(output, head, plain(clean_scores, value)[:, head, positions], positions)
    mixed = value.clone()
    mixed[:, :, positions] = clean_value[:, :, positions]
    return with_head(output, head, plain(scores, mixed)[:, head])


@pytest.mark.parametrize("positions", [None, [-1, 2]])
@pytest.mark.parametrize("what", ["output", "pattern", "value"])
def test_each_head_is_restored_alone(what, positions):
    model, x = model_and_input()
    corrupted = x.flip(1)
    got = patching(model, x, corrupted, metric, what, positions=positions, progress=False)
    assert got.shape == (2 * CALLS, HEADS)
    assert not got.requires_grad
    calls = clean_calls(model, x)
    rows = slice(None) if positions is None else [2, LENGTH - 1]
    for layer in range(2 * CALLS):
        for head in range(HEADS):

            def change(index, scores, value, layer=layer, head=head):
                if index != layer:
                    return plain(scores, value)
                return restored(what, calls[index], scores, value, head, rows)

            with written_out(change), torch.no_grad():
                torch.testing.assert_close(got[layer, head], metric(model(corrupted)))


@pytest.mark.parametrize("what", ["output", "pattern", "value"])
def test_estimates_are_exact_for_small_changes(what):
    model, x = model_and_input()
    corrupted = x + 1e-4 * torch.randn_like(x)
    with torch.no_grad():
        before = metric(model(corrupted))
    exact, estimate = (
        patching(model, x, corrupted, metric, what, estimate=estimate, progress=False) - before
        for estimate in (False, True)
    )
    torch.testing.assert_close(estimate, exact, rtol=0.01, atol=1e-3 * float(exact.abs().max()))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_layers_with_different_numbers_of_heads():
    torch.manual_seed(0)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.MultiheadAttention(MODEL_DIM, heads, batch_first=True) for heads in (4, 2))

        def forward(self, x):
            for layer in self.layers:
                x = x + layer(x, x, x)[0]
            return x

    model, x = Model(), torch.randn(BATCH, LENGTH, MODEL_DIM)
    got = patching(model, x, -x, metric, progress=False)
    assert got.shape == (2, 4)
    assert got.isnan().tolist() == [[False] * 4, [False, False, True, True]]
    only = patching(model, (x,), {"x": -x}, metric, where="layers.1", progress=False)
    assert torch.equal(only, got[1:, :2])


@pytest.mark.parametrize("estimate", [False, True])
def test_metrics_may_run_the_model(estimate):
    model, x = model_and_input()
    with torch.no_grad():
        target = model(x)

    def by_constant(output):
        return (output - target).square().sum()

    def by_model(output):
        return (output - model(x).detach()).square().sum()

    options = {"estimate": estimate, "progress": False}
    expected = patching(model, x, -x, by_constant, **options)
    torch.testing.assert_close(patching(model, x, -x, by_model, **options), expected)


def test_metrics_may_be_counts():
    model, x = model_and_input()
    got = patching(model, x, -x, lambda output: (output > 0).sum(), progress=False)
    assert got.dtype == torch.float32
    assert patching(model, x, -x, lambda output: np.float32(2), progress=False).eq(2).all()


def test_another_thread_may_run_the_model():
    model, x = model_and_input()
    expected = patching(model, x, -x, metric, progress=False)
    stop, errors = threading.Event(), []

    def work():
        while not stop.is_set():
            try:
                model(x[:, :3])
            except ValueError as error:
                errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    got = patching(model, x, -x, metric, progress=False)
    stop.set()
    thread.join()
    assert not errors
    torch.testing.assert_close(got, expected)


def test_rejects_wrong_arguments():
    model, x = model_and_input()
    with pytest.raises(ValueError, match="expected inputs of the same length"):
        patching(model, x, x[:, 1:], metric, progress=False)
    with pytest.raises(ValueError, match=r"the metric has shape \(2, 7, 32\); expected one number"):
        patching(model, x, x, lambda output: output, progress=False)
    with pytest.raises(ValueError, match="the metric has no gradient"):
        patching(model, x, x, lambda output: output.detach().sum(), estimate=True, progress=False)
    with pytest.raises(ValueError, match="found no attention of Linear"):
        patching(nn.Linear(3, 3), torch.zeros(1, 3), torch.zeros(1, 3), metric, progress=False)
    with pytest.raises(ValueError, match="what is 'key'; expected"):
        patching(model, x, x, metric, "key", progress=False)
    with pytest.raises(TypeError, match="clean is 3; expected a tensor, a tuple of arguments, or a dict"):
        patching(model, 3, x, metric, progress=False)
    with pytest.raises(TypeError, match="metric is 3; expected a function"):
        patching(model, x, x, 3, progress=False)
    with pytest.raises(ValueError, match="where is 'nothing', which matches none"):
        patching(model, x, x, metric, where="nothing", progress=False)


def test_progress_is_not_written_to_stdout(capsys):
    model = OwnModel()
    x = torch.randn(1, 3, MODEL_DIM)
    patching(model, x, x, metric)
    assert capsys.readouterr().out == ""
