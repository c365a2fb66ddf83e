"""Gradients of the weights and scores of one tile in Triton, shared by the backward kernels."""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from clearhead.ops.triton.dropout import dropout_multiplier
from clearhead.ops.triton.logits import (
    LN_2,
    deferred_scale,
    distance,
    finish_logits,
    query_length,
    query_offset,
    row_indices,
    tanh,
)


class CellTerms(NamedTuple):
    """Further terms of the gradient of each weight: log[i] · ln A[i, j] + distance[i] · |i − j|."""

    log: Any = None  # [batch, heads, q_len], like `distance`
    distance: Any = None


NO_TERMS = CellTerms()  # Triton 3.6 cannot compare a tuple that contains None with None, so kernels compare its fields


@triton.jit
def cell_gradients(
    products,
    grad_weights,
    shift,
    delta,
    logit_params,
    dropout,
    terms,
    batch,
    head,
    rows,
    keys,
    first,
    last,
    MASKED: tl.constexpr,
):
    """Return for each cell of a tile the weight after dropout, the gradient of the score and the slope of softcap.

    The tile may have either orientation.
    """
    logits = finish_logits(products, logit_params, batch, head, rows, keys, first, last, MASKED)
    logarithms = logits * deferred_scale(logit_params) - shift
    weights = tl.exp2(logarithms)
    if terms.log is not None or terms.distance is not None:
        grad_weights = add_terms(grad_weights, weights, logarithms, terms, logit_params, batch, head, rows, keys)
    used = weights
    if dropout is not None:
        multiplier = dropout_multiplier(dropout, row_indices(logit_params, batch, head, rows), keys)
        used = weights * multiplier
        grad_weights = grad_weights * multiplier
    slope = 1.0
    if logit_params.softcap is not None:
        capped = tanh(products * logit_params.scale)
        slope = 1 - capped * capped
    return used, weights * (grad_weights - delta), slope


@triton.jit
def add_terms(grad_weights, weights, logarithms, terms, logit_params, batch, head, rows, keys):
    """Return the gradient of each weight with its `CellTerms`; `logarithms` are in base 2."""
    indices, inside = row_indices(logit_params, batch, head, rows), rows < query_length(logit_params)
    if terms.log is not None:
        factors = tl.load(terms.log + indices, inside, other=0.0)
        grad_weights += factors * tl.where(weights > 0, logarithms, 0.0) * LN_2  # 0 · −inf would be nan
    if terms.distance is not None:
        factors = tl.load(terms.distance + indices, inside, other=0.0)
        grad_weights += factors * distance(query_offset(logit_params, batch), rows, keys)
    return grad_weights
