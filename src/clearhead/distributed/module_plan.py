"""Tensor parallelism for a whole model: the heads of its attention layers, and pairs of Linears around them."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from clearhead.distributed.tensor_parallel import head_plan
from clearhead.nn.attention import MultiHeadAttention


def shard_modules(
    model: nn.Module, mesh: DeviceMesh, *, column_parallel: Iterable[str] = (), row_parallel: Iterable[str] = ()
) -> None:
    """Shard the heads of every `MultiHeadAttention` in a model, and the named Linears, in place."""
    parallelize_module(model, mesh, module_plan(model, mesh, column_parallel, row_parallel))


def module_plan(
    model: nn.Module, mesh: DeviceMesh, column_parallel: Iterable[str] = (), row_parallel: Iterable[str] = ()
) -> dict[str, ParallelStyle]:
    """Return a plan for `parallelize_module`.

    Args:
        column_parallel: names of Linears whose outputs are shared out over the ranks.
        row_parallel: names of Linears that take such outputs, and whose outputs are added up over the ranks.
    """
    plan: dict[str, ParallelStyle] = {}
    for name, module in model.named_modules():
        if isinstance(module, MultiHeadAttention):
            plan |= {f"{name}.{part}".strip("."): style for part, style in head_plan(module, mesh).items()}
    plan |= {name: ColwiseParallel() for name in column_parallel}
    return plan | {name: RowwiseParallel() for name in row_parallel}
