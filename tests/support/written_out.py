"""Attention written out as matmul, softmax and matmul, in which tests change weights and outputs directly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional

from support.attention_calls import CapturedCall
from support.watched_models import MODEL_DIM, OwnModel

LENGTH, BATCH = 7, 2
CALLS = 2  # of each layer of OwnModel

# index of the call, its scores −inf where masked, and its values with a head for each query head -> the output
Attend = Callable[[int, Tensor, Tensor], Tensor]


def plain(scores: Tensor, value: Tensor) -> Tensor:
    return scores.softmax(dim=-1).nan_to_num(0.0) @ value


@contextmanager
def written_out(attend: Attend) -> Iterator[None]:
    """Replace `scaled_dot_product_attention` by a function of scores and values within a `with` block."""
    count = 0

    def replaced(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False):
        nonlocal count
        count += 1
        assert not dropout_p
        scores = CapturedCall(query, key, attn_mask, is_causal, scale)._scores(query.dtype)
        return attend(count - 1, scores, value.repeat_interleave(query.shape[-3] // value.shape[-3], dim=-3))

    with mock.patch.object(functional, "scaled_dot_product_attention", replaced):
        yield


def with_head(output: Tensor, head: int, part: Tensor, rows: slice | list[int] = slice(None)) -> Tensor:
    """Return the output with some rows of a head replaced."""
    changed = output.clone()
    changed[:, head, rows] = part
    return changed


def without_edges(scores: Tensor, head: int | slice, rows: object, keys: object) -> Tensor:
    """Return the scores without the edges of some heads from rows to keys."""
    edges = torch.zeros(scores.shape[-2:], dtype=torch.bool)
    edges[rows, keys] = True
    changed = scores.clone()
    changed[:, head] = changed[:, head].masked_fill(edges, -torch.inf)
    return changed


def model_and_input():
    """Return a model with two layers, each of which calls attention twice, and its input."""
    torch.manual_seed(0)
    return OwnModel().double(), torch.randn(BATCH, LENGTH, MODEL_DIM, dtype=torch.float64)


def in_layer(layer, change):
    """Return how calls of one layer are computed. The others are computed by the plain formula."""
    return lambda index, scores, value: change(scores, value) if index // CALLS == layer else plain(scores, value)
