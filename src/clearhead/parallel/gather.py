"""Statistics of heads that live on different ranks, brought together; matrices never are."""

from __future__ import annotations

from dataclasses import fields
from typing import TypeVar

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from clearhead.kernels.sweep import Observation, TopK
from clearhead.parallel.collectives import gathered

Statistics = TypeVar("Statistics", Tensor, TopK, Observation)


def gather(seen: Statistics, mesh: DeviceMesh) -> Statistics:
    """What every rank has seen of its own heads, for all heads, on every rank.

        gather(weights.entropy(), mesh)                 # [batch, heads, q_len]
        gather(weights.observe(top=8, received=True), mesh)

    Args:
        seen: of a layer that `shard_heads` has shared out: a statistic with heads on axis 1, or several.
    """
    if not isinstance(mesh, DeviceMesh) or mesh.ndim != 1:
        raise ValueError(f"mesh is {mesh!r}; expected the DeviceMesh, of one axis, that heads are shared out over")
    if isinstance(seen, Observation):
        found = {field.name: getattr(seen, field.name) for field in fields(seen)}
        return Observation(**{name: gather(own, mesh) for name, own in found.items() if own is not None})
    if isinstance(seen, TopK):
        return TopK(gather(seen.weights, mesh), gather(seen.keys, mesh))
    if not isinstance(seen, Tensor) or seen.ndim < 2:
        what = f"a tensor {tuple(seen.shape)}" if isinstance(seen, Tensor) else type(seen).__name__
        raise TypeError(f"seen is {what}; expected a statistic such as weights.entropy(), or weights.observe(…)")
    return torch.cat(gathered(seen, mesh.get_group()), dim=1)
