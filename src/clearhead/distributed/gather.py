"""Statistics of heads that live on different ranks, brought together; matrices never are."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from clearhead._utils.tensor_checks import FLOAT_DTYPES, check_dense_tensor
from clearhead.distributed._collectives import gathered
from clearhead.ops.statistics import AttentionStatistics, TopK

Statistics = TypeVar("Statistics", Tensor, TopK, AttentionStatistics)


def gather(seen: Statistics, mesh: DeviceMesh) -> Statistics:
    """What every rank has seen of its own heads, for all heads, on every rank.

        gather(weights.entropy(), mesh)                 # [batch, heads, q_len]
        gather(weights.observe(top=8, received=True), mesh)

    Args:
        seen: of a layer that `shard_heads` has shared out: a statistic with heads on axis 1, or several.
    """
    if not isinstance(mesh, DeviceMesh) or mesh.ndim != 1:
        raise ValueError(f"mesh is {mesh!r}; expected the DeviceMesh, of one axis, that heads are shared out over")
    if isinstance(seen, AttentionStatistics):
        return AttentionStatistics(**{name: gather(getattr(seen, name), mesh) for name in seen})
    if isinstance(seen, TopK):
        return TopK(gather(seen.weights, mesh), gather(seen.keys, mesh))
    expected = "a statistic such as weights.entropy(), or weights.observe(…)"
    seen = check_dense_tensor("seen", seen, expected)
    if seen.ndim < 2:
        raise TypeError(f"seen is a tensor {tuple(seen.shape)}; expected {expected}")
    if seen.is_meta or seen.dtype not in (*FLOAT_DTYPES, torch.int64):
        raise TypeError(f"seen is a tensor in {seen.dtype} on {seen.device}; expected {expected}")
    return torch.cat(gathered(seen, mesh.get_group()), dim=1)
