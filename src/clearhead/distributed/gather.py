"""`gather`: collection of the statistics of sharded heads; matrices are never gathered."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from clearhead._utils.tensor_checks import FLOAT_DTYPES, check_dense_tensor
from clearhead.distributed._collectives import all_gather_tensors
from clearhead.ops.statistics import AttentionStatistics, TopK

StatisticsT = TypeVar("StatisticsT", Tensor, TopK, AttentionStatistics)


def gather(statistics: StatisticsT, mesh: DeviceMesh) -> StatisticsT:
    """Gather the statistics of each rank's heads, and return those of all heads on every rank.

        gather(weights.entropy(), mesh)                 # [batch, heads, q_len]
        gather(weights.observe(top=8, peak=True, spans={"system": (0, 40)}), mesh)

    Args:
        statistics: statistics of this rank's heads, after `parallelize_heads`: a tensor with heads on axis 1, a `TopK`
            or an `AttentionStatistics`.
        mesh: the one-dimensional mesh that the heads are sharded over.
    """
    if not isinstance(mesh, DeviceMesh) or mesh.ndim != 1:
        raise ValueError(f"mesh is {mesh!r}; expected the DeviceMesh with one axis that the heads are sharded over")
    if isinstance(statistics, AttentionStatistics):
        return AttentionStatistics(**{name: gather(getattr(statistics, name), mesh) for name in statistics})
    if isinstance(statistics, TopK):
        return TopK(gather(statistics.weights, mesh), gather(statistics.keys, mesh))
    expected = "a statistic such as weights.entropy(), or weights.observe(…)"
    tensor = check_dense_tensor("statistics", statistics, expected)
    if tensor.ndim < 2:
        raise TypeError(f"statistics is a tensor {tuple(tensor.shape)}; expected {expected}")
    if tensor.is_meta or tensor.dtype not in (*FLOAT_DTYPES, torch.int64):
        raise TypeError(f"statistics is a tensor in {tensor.dtype} on {tensor.device}; expected {expected}")
    return torch.cat(all_gather_tensors(tensor, mesh.get_group()), dim=1)
