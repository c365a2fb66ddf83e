"""Pairs of torch's and clearhead's layers with the same weights, for each constructor option."""

import pytest
import torch
from torch import nn

from clearhead.torch_compat import MultiheadAttention

BATCH, HEADS, QUERIES, KEYS = 3, 2, 5, 7
OPTIONS = {
    "defaults": {},
    "batch_first": {"batch_first": True},
    "no bias": {"bias": False, "batch_first": True},
    "kdim, vdim": {"kdim": 11, "vdim": 13},
    "kdim alone": {"kdim": 11, "batch_first": True, "bias": False},
    "add_bias_kv": {"add_bias_kv": True, "batch_first": True},
    "add_zero_attn": {"add_zero_attn": True},
    "all": {"add_bias_kv": True, "add_zero_attn": True, "kdim": 11, "vdim": 13, "batch_first": True},
}
every_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


def pair(options: dict) -> tuple[nn.MultiheadAttention, MultiheadAttention]:
    """Return torch's layer and clearhead's with the same weights, none of them 0."""
    theirs = nn.MultiheadAttention(6, HEADS, **options)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    ours = MultiheadAttention(6, HEADS, **options)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours
