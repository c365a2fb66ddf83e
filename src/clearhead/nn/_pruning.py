"""Removal of heads from the parameters of a multi-head layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from clearhead.nn.head import heads_columns
from clearhead.ops.call import kv_heads_of


def drop_heads(
    options: Mapping[str, Any], parameters: Mapping[str, Tensor], dropped: Sequence[int]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the options and parameters of a layer with split="project" without the dropped heads."""
    heads, key_dim, value_dim = options["heads"], options["key_dim"], options["value_dim"]
    remaining = [index for index in range(heads) if index not in dropped]
    if not remaining:
        raise ValueError(f"heads has all {heads} heads of the layer; expected at least one to remain")
    kv_indices = kv_heads_of(remaining, heads // options["kv_heads"])
    smaller = dict(parameters)
    for projection, indices, dim in (
        ("query", remaining, key_dim),
        ("key", kv_indices, key_dim),
        ("value", kv_indices, value_dim),
    ):
        rows = heads_columns(indices, dim)
        smaller |= {name: tensor[rows] for name, tensor in smaller.items() if name.startswith(f"{projection}.")}
    smaller["output.weight"] = parameters["output.weight"][:, heads_columns(remaining, value_dim)]
    if "sinks" in parameters:
        smaller["sinks"] = parameters["sinks"][remaining]
    return {**options, "heads": len(remaining), "kv_heads": len(kv_indices)}, smaller
