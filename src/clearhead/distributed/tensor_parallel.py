"""Heads over ranks: a `parallelize_module` plan that gives each rank some of a layer's heads (tensor parallel)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from clearhead.distributed._collectives import copied
from clearhead.nn.attention import MultiHeadAttention
from clearhead.nn.head import head_columns
from clearhead.ops.alibi import ALiBi
from clearhead.ops.masks import And, Dense, Mask, Or


def shard_heads(layer: MultiHeadAttention, mesh: DeviceMesh) -> MultiHeadAttention:
    """Give each rank of a mesh its share of a layer's heads, in place; all ranks must have the same layer.

        mesh = init_device_mesh("cpu", (4,))
        shard_heads(layer, mesh)
        output, weights = layer(x, mask=Causal(), return_weights=True)  # x and output whole, weights of own heads

    Outputs and gradients are those of the whole layer. Parameters become DTensors. `ablate` then counts a rank's own
    heads. Dropout is drawn by each rank for its own heads.
    """
    return parallelize_module(layer, mesh, head_plan(layer, mesh))  # pyright: ignore[reportReturnType]


def head_plan(layer: MultiHeadAttention, mesh: DeviceMesh) -> dict[str, ParallelStyle]:
    """The plan for `parallelize_module`: projections by columns, W_O by rows, whole heads to each rank.

    Where there are more ranks than key heads, ranks whose queries read the same key head each compute it.
    """
    _check(layer, mesh)
    ranks, heads, kv_heads = mesh.size(), layer.heads, layer.kv_heads
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
    return {**plan, "": _OwnOptions()}


def _check(layer: object, mesh: object) -> None:
    if not isinstance(layer, MultiHeadAttention):
        raise TypeError(f"layer is a {type(layer).__name__}; expected a clearhead.MultiHeadAttention")
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(f"mesh is a {type(mesh).__name__}; expected a DeviceMesh, such as init_device_mesh(…) gives")
    if mesh.ndim != 1:
        raise ValueError(
            f"mesh has {mesh.ndim} axes, {mesh.mesh_dim_names}; expected one of them, such as mesh['heads']"
        )
    if layer.split == "slice":
        raise ValueError('layer has split="slice"; expected a projected one: layer.to_projected()')
    if isinstance(layer.query.weight, DTensor):
        raise ValueError("layer is shared out already; expected a whole one")


class _OwnHeads(ColwiseParallel):
    """A projection by columns."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        module.__class__ = _OwnHeadsLinear
        return super()._apply(module, device_mesh)


class _OwnHeadsLinear(nn.Linear):
    """Of no tokens too, which DTensor cannot lay out: what a cache is given once its keys are there."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002, as Linear calls it
        mesh = _mesh_of(self.weight)
        if input.numel():
            return super().forward(input)
        width = self.out_features // mesh.size()
        nothing = torch.zeros(*input.shape[:-1], width, dtype=input.dtype, device=input.device)
        return DTensor.from_local(nothing, mesh, [Shard(-1)])


class _OneKeyHead(ParallelStyle):
    """A projection of which each rank computes the one head it reads. Its parameters stay whole on every rank."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        module.__class__ = _OneKeyHeadLinear
        assert isinstance(module, _OneKeyHeadLinear)
        module.key_heads = self.heads
        return _distributed(module, device_mesh)


class _OneKeyHeadLinear(nn.Linear):
    key_heads: int

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002, as Linear calls it
        mesh = _mesh_of(self.weight)
        own = head_columns(mesh.get_local_rank() * self.key_heads // mesh.size(), self.out_features // self.key_heads)
        bias = None if self.bias is None else _shared(self.bias)[own]
        return nn.functional.linear(copied(input, mesh.get_group()), _shared(self.weight)[own], bias)


class _SharedByHeads(ParallelStyle):
    """A norm that all heads share: each rank's heads add their part to the gradient of its gains."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        module.__class__ = _SharedNorm
        return _distributed(module, device_mesh)


class _SharedNorm(nn.RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.rms_norm(x, self.normalized_shape, _shared(self.weight), self.eps)


class _OwnOptions(ParallelStyle):
    """Of the layer's sinks, and of what a call gives head by head, those of the rank's heads."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        assert isinstance(module, MultiHeadAttention)
        heads, ranks = module.heads, device_mesh.size()
        own = head_columns(device_mesh.get_local_rank(), heads // ranks)
        if module.sinks is not None:
            shared_out = distribute_tensor(module.sinks.detach(), device_mesh, [Shard(0)])
            module.sinks = nn.Parameter(shared_out, requires_grad=module.sinks.requires_grad)

        def before(_: nn.Module, given: tuple, options: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
            bias = _own_bias(options.get("bias"), heads, own, device_mesh)
            return given, {**options, "bias": bias, "mask": _own_mask(options.get("mask"), heads, own)}

        module.register_forward_pre_hook(before, with_kwargs=True)
        return module


def _own_bias(bias: Tensor | ALiBi | None, heads: int, own: slice, mesh: DeviceMesh) -> Tensor | ALiBi | None:
    if isinstance(bias, ALiBi):
        return ALiBi(copied(bias.slopes, mesh.get_group())[own])
    if not isinstance(bias, Tensor):
        return bias
    whole = copied(bias, mesh.get_group())
    return whole[..., own, :, :] if whole.ndim >= 3 and whole.shape[-3] == heads else whole


def _own_mask(mask: Mask | Tensor | None, heads: int, own: slice) -> Mask | Tensor | None:
    if isinstance(mask, Tensor) and mask.dtype == torch.bool:
        mask = Dense(mask)
    if isinstance(mask, Dense) and mask.allowed.shape[1] == heads:
        return Dense(mask.allowed[:, own])
    if isinstance(mask, And | Or):
        left, right = _own_mask(mask.left, heads, own), _own_mask(mask.right, heads, own)
        assert isinstance(left, Mask)
        assert isinstance(right, Mask)
        return type(mask)(left, right)
    return mask


def _distributed(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Every parameter whole on every rank, and as DTensors like all others: optimisers do not mix them."""
    for name, parameter in list(module.named_parameters(recurse=False)):
        everywhere = distribute_tensor(parameter.detach(), mesh, [Replicate()])
        module.register_parameter(name, nn.Parameter(everywhere, requires_grad=parameter.requires_grad))
    return module


def _mesh_of(parameter: Tensor) -> DeviceMesh:
    assert isinstance(parameter, DTensor)
    return parameter.device_mesh


def _shared(parameter: Tensor) -> Tensor:
    """A whole parameter as each rank uses it for its own heads: gradients are added up over the ranks."""
    assert isinstance(parameter, DTensor)
    return copied(parameter.to_local(), parameter.device_mesh.get_group())
