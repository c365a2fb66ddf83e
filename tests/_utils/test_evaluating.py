"""Evaluation mode for the length of a block."""

import pytest
from torch import nn

from clearhead._utils.evaluating import evaluating


def test_submodules_keep_their_modes():
    model = nn.Sequential(nn.Dropout(), nn.Sequential(nn.Dropout()))
    model[1].eval()
    before = [module.training for module in model.modules()]
    with evaluating(model):
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == before == [True, True, False, False]


def test_an_exception_leaves_the_model_in_training_mode():
    model = nn.Sequential(nn.Dropout())
    with pytest.raises(RuntimeError, match="lost"), evaluating(model):
        raise RuntimeError("lost")
    assert all(module.training for module in model.modules())
