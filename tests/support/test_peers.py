"""Tests of the numerics rule for whole models: it finds errors and compares with float64."""

import pytest
import torch
from torch import nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from support.peers import assert_agrees, gradients, truth_of


def test_errors_of_the_formula_are_found():
    layer, x = nn.Linear(7, 5).requires_grad_(False), torch.randn(3, 7)
    call = nn.Module.__call__
    assert_agrees({"y": layer(x)}, lambda layer, x: {"y": call(layer, x)}, layer, x)
    with pytest.raises(AssertionError, match=r"\['y'\]: "):
        assert_agrees({"y": layer(x) * (1 + 1e-5)}, lambda layer, x: {"y": call(layer, x)}, layer, x)
    with pytest.raises(AssertionError, match="not finite"):
        assert_agrees(layer(x) * torch.nan, call, layer, x)
    with pytest.raises(AssertionError):
        assert_agrees({"z": layer(x)}, lambda layer, x: {"y": call(layer, x)}, layer, x)


def test_truth_of_a_transformers_model_avoids_float32():
    def peer(norm, x):
        return norm(x) + torch.softmax(x, dim=-1, dtype=torch.float32) + x.float()

    norm, x = LlamaRMSNorm(7).requires_grad_(False), torch.randn(3, 7)
    wide = x.double()
    expected = nn.functional.rms_norm(wide, (7,), eps=1e-6) + torch.softmax(wide, dim=-1) + wide
    assert (truth_of(peer, norm, x) - expected).abs().max() < 1e-14


def test_rejects_a_peer_that_computes_something_else_in_float64():
    with pytest.raises(AssertionError, match="something else in float64"):
        assert_agrees(torch.ones(3), lambda x: x + (x.dtype == torch.float64), torch.ones(3))


def test_peer_that_is_exact_by_luck_is_run_on_neighboring_inputs():
    x = torch.tensor([1.0, 1.0 - 2.0**-24, 0.5])

    def peer(x):
        return [(x[0] - x[1]) / x[2], x]

    assert_agrees([peer(x)[0] * 3, x], peer, x)  # one ulp of x away
    with pytest.raises(AssertionError, match=r"\[0\]: "):
        assert_agrees([peer(x)[0] * 30, x], peer, x)


def test_gradients_of_bias_and_weight_are_joined():
    layer = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2, bias=False))
    layer(torch.randn(5, 3)).sum().backward()
    assert {name: vector.shape for name, vector in gradients(layer).items()} == {"0": (8,), "1": (4,)}
