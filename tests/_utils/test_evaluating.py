"""Tests of the context manager for evaluation mode."""

import pytest
from torch import nn

from clearhead._utils.evaluating import evaluating


def test_submodules_get_their_modes_back():
    model = nn.Sequential(nn.Dropout(), nn.Sequential(nn.Dropout()))
    model[1].eval()
    before = [module.training for module in model.modules()]
    with evaluating(model):
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == before == [True, True, False, False]


def test_modes_are_restored_after_an_exception():
    model = nn.Sequential(nn.Dropout())
    with pytest.raises(RuntimeError, match="lost"), evaluating(model):
        raise RuntimeError("lost")
    assert all(module.training for module in model.modules())
