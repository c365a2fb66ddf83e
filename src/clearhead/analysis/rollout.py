"""Attention rollout: how much each input token contributes to chosen tokens after all layers."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead._utils.checks import describe
from clearhead.recording.recording import Recording, Stack, is_self_attention
from clearhead.weights.cells import MAX_CELLS
from clearhead.weights.indexing import index_list
from clearhead.weights.matrix import Choice

QUERIES_AT_A_TIME = 64  # bounds the memory of a product, heads × tokens × queries


def rollout(
    recording: Recording, queries: Choice | None = None, *, stack: str | None = None
) -> Float[Tensor, "queries tokens"]:
    """Return the attention rollout of chosen queries (Abnar & Zuidema, 2020), without n × n matrices.

    A is the mean over the heads of a layer. The residual connection makes it ½ A + ½ I, and rollout multiplies these
    matrices from the last layer to the first. Only the chosen rows of the product are computed.

    Rows sum to 1 and are not renormalized. They sum to less if attention is lost in a layer: to a sink, or in a query
    that may attend to no key. The self-attention of an encoder–decoder does not include cross-attention.

    Args:
        recording: a recording of self-attention, from `record(model, text)`.
        queries: an index, a slice or a sequence of indices. An index keeps its axis, with size 1. Default: all.
        stack: name of the stack, such as "decoder". Default: the only stack of self-attention.

    Returns:
        One row per query, with the share of each token; float32, or float64 for float64 recordings. Differentiable.

    Examples:
        >>> from clearhead import Causal, Recording, attention
        >>> from clearhead.recording import Stack, Tokens
        >>> x = torch.randn(1, 4, 5, 8)
        >>> _, weights = attention(x, x, x, mask=Causal(), return_weights=True)
        >>> tokens = Tokens(tuple("abcde"), (False,) * 5, (None,) * 5)
        >>> recording = Recording("model", {"decoder": Stack((weights, weights), tokens, tokens)})
        >>> rows = rollout(recording, queries=[2, -1])
        >>> rows.shape, rows[0, 3:].tolist(), round(float(rows[1].sum()), 4)
        (torch.Size([2, 5]), [0.0, 0.0], 1.0)
    """
    chosen = _self_attention(recording, stack)
    tokens = len(chosen.keys)
    rows = _query_indices(queries, tokens)
    if len(rows) * tokens > MAX_CELLS:
        raise ValueError(
            f"queries has {len(rows):,} of {tokens:,} tokens; expected at most {MAX_CELLS // tokens:,}, because the"
            f" result has a limit of {MAX_CELLS:,} cells"
        )
    parts = [rows[first : first + QUERIES_AT_A_TIME] for first in range(0, len(rows), QUERIES_AT_A_TIME)]
    return torch.cat([_rollout_rows(chosen, part) for part in parts])


def _rollout_rows(stack: Stack, queries: list[int]) -> Float[Tensor, "queries tokens"]:
    """Multiply one-hot columns by the transposed matrices, from the last layer to the first."""
    last = stack.layers[-1]
    columns = torch.zeros(len(stack.keys), len(queries), dtype=last.dtype, device=last.device)
    columns[queries, list(range(len(queries)))] = 1
    for weights in reversed(stack.layers):
        columns = columns.to(weights.device)  # layers of a large model may be on several devices
        columns = 0.5 * (weights.mean_heads().mT @ columns)[0, 0] + 0.5 * columns
    return columns.mT.contiguous()


def _self_attention(recording: Recording, name: str | None) -> Stack:
    """Return a stack of self-attention by its name; None is the only one."""
    if not isinstance(recording, Recording):
        raise TypeError(f"recording is {describe(recording)}; expected a Recording, from record(model, text)")
    names = [each for each, stack in recording.stacks.items() if is_self_attention(each, stack)]
    printed = ", ".join(map(repr, names))
    if not names:
        raise ValueError(
            f"recording has the stacks {', '.join(map(repr, recording.stacks))}; expected self-attention, because"
            " rollout multiplies matrices whose queries and keys are the same tokens"
        )
    if name is None:
        if len(names) > 1:
            raise ValueError(f"stack is None, but the recording has {printed}; expected the name of one of them")
        name = names[0]
    if not isinstance(name, str) or name not in recording.stacks:
        raise ValueError(f"stack is {describe(name)}; expected one of {printed}")
    if name not in names:
        raise ValueError(f"stack is {name!r}, which is cross-attention; expected self-attention: one of {printed}")
    return recording.stacks[name]


def _query_indices(queries: Choice | None, length: int) -> list[int]:
    try:
        return index_list(queries, length, 2)
    except (TypeError, ValueError, IndexError) as error:
        raise type(error)(
            f"queries is {describe(queries)}; expected an index, a slice or a sequence of indices of {length} tokens"
        ) from None
