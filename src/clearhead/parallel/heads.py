"""Heads over ranks: a `parallelize_module` plan that gives each rank some of a layer's heads (tensor parallel)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from clearhead.heads import place
from clearhead.layer import MultiHeadAttention
from clearhead.parallel.collectives import copied, summed


def shard_heads(layer: MultiHeadAttention, mesh: DeviceMesh) -> MultiHeadAttention:
    """Give each rank of a mesh its share of a layer's heads, in place; all ranks must have the same layer.

        mesh = init_device_mesh("cpu", (4,))
        shard_heads(layer, mesh)
        output, weights = layer(x, mask=Causal(), return_weights=True)  # x and output whole, weights of own heads

    Outputs and gradients are those of the whole layer. `ablate` then counts a rank's own heads.
    """
    return parallelize_module(layer, mesh, head_plan(layer, mesh))  # pyright: ignore[reportReturnType]


def head_plan(layer: MultiHeadAttention, mesh: DeviceMesh) -> dict[str, ParallelStyle]:
    """The plan for `parallelize_module`: projections by columns, W_O by rows, whole heads to each rank.

    Where there are more ranks than key heads, ranks whose queries read the same key head each compute it.
    """
    ranks, heads, kv_heads = mesh.size(), layer.heads, layer.kv_heads
    if mesh.ndim != 1:
        raise ValueError(
            f"mesh has {mesh.ndim} axes, {mesh.mesh_dim_names}; expected one of them, such as mesh['heads']"
        )
    if layer.split == "slice":
        raise ValueError('layer has split="slice"; expected a projected one: layer.to_projected()')
    if heads % ranks:
        raise ValueError(f"{heads} heads cannot be shared equally by {ranks} ranks; expected a divisor of {heads}")
    if kv_heads % ranks and ranks % kv_heads:
        raise ValueError(
            f"{kv_heads} key heads cannot be shared equally by {ranks} ranks, nor {ranks} ranks by {kv_heads} key"
            " heads; expected one number to divide the other"
        )

    def keys() -> ParallelStyle:
        return _OneKeyHead(kv_heads) if kv_heads % ranks else _OwnHeads()

    plan: dict[str, ParallelStyle] = {"query": _OwnHeads(), "key": keys(), "value": keys(), "output": RowwiseParallel()}
    if layer.query_norm is not None:
        plan |= {"query_norm": _SharedByHeads(), "key_norm": _SharedByHeads()}
    if layer.sinks is not None:
        plan[""] = _OwnSinks()
    return plan


class _OwnHeads(ColwiseParallel):
    """A projection by columns, of no tokens too: what a cache is given once its keys are there."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        assert isinstance(module, nn.Linear)
        width = module.out_features // device_mesh.size()
        whole = module.forward

        def forward(input: Tensor) -> Tensor:  # noqa: A002, as Linear calls it
            if input.numel():
                return whole(input)
            nothing = torch.zeros(*input.shape[:-1], width, dtype=input.dtype, device=input.device)
            return DTensor.from_local(nothing, device_mesh, [Shard(-1)])

        module.forward = forward
        return super()._apply(module, device_mesh)


class _OneKeyHead(ParallelStyle):
    """A projection of which each rank computes the one head it reads. Its parameters stay whole on every rank."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        assert isinstance(module, nn.Linear)
        group, rank = device_mesh.get_group(), device_mesh.get_local_rank()
        dim = module.out_features // self.heads
        own = place(rank * self.heads // device_mesh.size(), dim)
        for parameter in module.parameters():
            _sum_gradient(parameter, group)

        def forward(input: Tensor) -> Tensor:  # noqa: A002, as Linear calls it
            bias = None if module.bias is None else module.bias[own]
            return nn.functional.linear(copied(input, group), module.weight[own], bias)

        module.forward = forward
        return module


class _SharedByHeads(ParallelStyle):
    """Parameters that all heads share: each rank's heads add their part to the gradient."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for parameter in module.parameters():
            _sum_gradient(parameter, device_mesh.get_group())
        return module


class _OwnSinks(ParallelStyle):
    """Of the layer's sinks those of the rank's heads."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        sinks = module.sinks
        assert isinstance(sinks, Tensor)
        share = place(device_mesh.get_local_rank(), len(sinks) // device_mesh.size())
        with torch.no_grad():
            module.sinks = nn.Parameter(sinks[share].clone(), requires_grad=sinks.requires_grad)
        return module


def _sum_gradient(parameter: Tensor, group: ProcessGroup) -> None:
    if parameter.requires_grad:
        parameter.register_hook(lambda gradient: summed(gradient, group))
