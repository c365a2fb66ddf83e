"""Small models that compute attention in different ways, and the attention that they compute."""

import torch
from torch import nn
from torch.nn import functional

from support.attention_calls import CapturedCall, captured_calls

HEADS, KV_HEADS, WIDTH, MODEL_DIM = 4, 2, 8, 32


class OwnAttention(nn.Module):
    """Attention with grouped heads that runs twice in each forward pass: causal, then with a mask."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.query = nn.Linear(MODEL_DIM, HEADS * WIDTH)
        self.key = nn.Linear(MODEL_DIM, KV_HEADS * WIDTH)
        self.value = nn.Linear(MODEL_DIM, KV_HEADS * WIDTH)
        self.dropout = dropout

    def forward(self, x, mask=None):
        query, key, value = (
            layer(x).unflatten(-1, (-1, WIDTH)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        dropout = self.dropout if self.training else 0.0
        first = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, dropout_p=dropout, enable_gqa=True, scale=0.5
        )
        second = functional.scaled_dot_product_attention(first, key, value, mask, dropout_p=dropout, enable_gqa=True)
        return second.transpose(1, 2).flatten(2)


class OwnModel(nn.Module):
    """Two layers of `OwnAttention`."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.layers = nn.ModuleList(OwnAttention(dropout) for _ in range(2))

    def forward(self, x, mask=None):
        for layer in self.layers:
            x = x + layer(x, mask)
        return x


def direct_weights(query, key, attn_mask=None, is_causal=False, scale=None):
    """Return softmax(scale · Q Kᵀ + mask) in float64, 0 in rows without keys."""
    return _weights(CapturedCall(query.detach(), key.detach(), attn_mask, is_causal, scale))


def weights_of_calls(model, run):
    """Return the weights of every call of `scaled_dot_product_attention` that a model makes, by module."""
    with captured_calls(model) as calls:
        run()
    return [_weights(call) for captured in calls.values() for call in captured]


def _weights(call):
    return call.weights(torch.float64).detach().nan_to_num(0.0)
