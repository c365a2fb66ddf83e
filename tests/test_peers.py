"""The rule for whole models finds errors, and judges by float64 where a model casts to float32."""

import pytest
import torch
from torch import nn

from peers import assert_agrees, gradients, truth_of


def test_an_error_of_the_formula_is_found():
    layer, x = nn.Linear(7, 5).requires_grad_(False), torch.randn(3, 7)
    call = nn.Module.__call__
    assert_agrees({"y": layer(x)}, lambda layer, x: {"y": call(layer, x)}, layer, x)
    with pytest.raises(AssertionError, match=r"\['y'\]: "):
        assert_agrees({"y": layer(x) * (1 + 1e-5)}, lambda layer, x: {"y": call(layer, x)}, layer, x)
    with pytest.raises(AssertionError, match="not finite"):
        assert_agrees(layer(x) * torch.nan, call, layer, x)
    with pytest.raises(AssertionError):
        assert_agrees({"z": layer(x)}, lambda layer, x: {"y": call(layer, x)}, layer, x)


def test_the_truth_has_no_float32_in_it():
    def peer(x):
        return torch.softmax(x, dim=-1, dtype=torch.float32) + x.float() + x.to(torch.float32)

    x = torch.randn(3, 7)
    wide = x.double()
    assert torch.equal(truth_of(peer, x), torch.softmax(wide, dim=-1) + wide + wide)


def test_a_peer_that_is_exact_by_luck_is_judged_by_its_neighbors():
    x = torch.tensor([1.0, 1.0 - 2.0**-24, 0.5])

    def peer(x):
        return (x[0] - x[1]) / x[2]

    got = peer(x) * 3  # one last place of x away
    assert_agrees(got, peer, x)
    with pytest.raises(AssertionError):
        assert_agrees(got * 9, peer, x)


def test_a_bias_is_judged_with_its_weight():
    layer = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2, bias=False))
    layer(torch.randn(5, 3)).sum().backward()
    assert {name: vector.shape for name, vector in gradients(layer).items()} == {"0": (8,), "1": (4,)}
