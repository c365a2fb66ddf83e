"""Weights of single heads, and the columns of heads in projected tensors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from clearhead._utils.checks import check_int, list_items


@dataclass(frozen=True, eq=False)
class Head:
    """Weights of one head, as views of the layer's parameters, each used as `x @ W + b`.

    `columns` are the input columns of its queries, `kv_columns` those of its keys and values: all columns, or the
    head's slice. Heads that share a key head have the same key and value weights.
    """

    index: int
    columns: slice
    kv_columns: slice
    query_weight: Float[Tensor, "input key_dim"]
    key_weight: Float[Tensor, "kv_input key_dim"]
    value_weight: Float[Tensor, "kv_input value_dim"]
    output_weight: Float[Tensor, "value_dim output_dim"]
    query_bias: Float[Tensor, " key_dim"] | None
    key_bias: Float[Tensor, " key_dim"] | None
    value_bias: Float[Tensor, " value_dim"] | None


def split_heads(x: Float[Tensor, "batch n width"], dim: int) -> Float[Tensor, "batch heads n dim"]:
    """Split the last axis into `width / dim` heads and move them to axis 1."""
    return x.unflatten(-1, (-1, dim)).transpose(1, 2)


def join_heads(x: Float[Tensor, "batch heads n dim"]) -> Float[Tensor, "batch n width"]:
    """Concatenate the heads along the last axis: the inverse of `split_heads`."""
    return x.transpose(1, 2).flatten(2)


def head_columns(index: int, dim: int) -> slice:
    """Return the columns of one head in a concatenation of heads of `dim` columns each."""
    return slice(index * dim, (index + 1) * dim)


def heads_columns(indices: Iterable[int], dim: int) -> list[int]:
    """Return the columns of several heads in a concatenation of heads, in the order of `indices`."""
    return [column for index in indices for column in range(index * dim, (index + 1) * dim)]


def check_head_indices(name: str, chosen: int | Iterable[int] | Tensor, heads: int) -> list[int]:
    """Return head indices sorted and without repeats. Errors contain `name`, the name of the argument."""
    indices = sorted({check_int(name, index, least=0) for index in list_items(name, chosen)})
    if indices and indices[-1] >= heads:
        raise ValueError(f"{name} has head {indices[-1]}, but there are {heads}, numbered from 0 to {heads - 1}")
    return indices
