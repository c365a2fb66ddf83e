"""Tensor parallelism: a `parallelize_module` plan that shards the heads of a layer over ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from clearhead.distributed._collectives import copy_to_ranks
from clearhead.nn import MultiHeadAttention
from clearhead.nn.head import head_columns
from clearhead.ops.alibi import ALiBi
from clearhead.ops.masks import And, Dense, Mask, Or


def parallelize_heads(layer: MultiHeadAttention, mesh: DeviceMesh) -> MultiHeadAttention:
    """Shard a layer's heads over the ranks of a mesh, in place, and return the layer.

        mesh = init_device_mesh("cpu", (4,))
        parallelize_heads(layer, mesh)
        output, weights = layer(x, mask=Causal(), return_weights=True)  # weights of this rank's heads

    The layer must be equal on all ranks. Inputs and outputs are replicated; outputs and gradients equal those of the
    unsharded layer. Parameters become DTensors. `ablate` takes indices of this rank's heads, counted from 0. Each rank
    draws the dropout of its heads.

    Raises:
        ValueError: if the heads cannot be divided equally, or the layer has split="slice".
    """
    return parallelize_module(layer, mesh, tensor_parallel_plan(layer, mesh))  # pyright: ignore[reportReturnType]


def tensor_parallel_plan(layer: MultiHeadAttention, mesh: DeviceMesh) -> dict[str, ParallelStyle]:
    """Return the plan for `parallelize_module`: projections sharded by columns, W_O by rows, without splitting heads.

    If there are more ranks than key heads, ranks that share a key head each compute it.
    """
    _check(layer, mesh)
    ranks, heads, kv_heads = mesh.size(), layer.heads, layer.kv_heads
    if heads % ranks:
        raise ValueError(f"{heads} heads cannot be divided equally over {ranks} ranks; expected a divisor of {heads}")
    if kv_heads % ranks and ranks % kv_heads:
        raise ValueError(
            f"{kv_heads} key heads cannot be divided equally over {ranks} ranks, nor {ranks} ranks over {kv_heads} key"
            " heads; expected one number to divide the other"
        )

    def kv_style() -> ParallelStyle:
        return _ReplicatedKVHeadParallel(kv_heads) if kv_heads % ranks else _HeadwiseParallel()

    plan: dict[str, ParallelStyle] = {
        "query": _HeadwiseParallel(),
        "key": kv_style(),
        "value": kv_style(),
        "output": RowwiseParallel(),
    }
    if layer.query_norm is not None:
        plan |= {"query_norm": _ReplicatedNormParallel(), "key_norm": _ReplicatedNormParallel()}
    return {**plan, "": _HeadOptionsParallel()}


def _check(layer: object, mesh: object) -> None:
    if not isinstance(layer, MultiHeadAttention):
        raise TypeError(f"layer is a {type(layer).__name__}; expected a clearhead.MultiHeadAttention")
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(f"mesh is a {type(mesh).__name__}; expected a DeviceMesh, such as from init_device_mesh(…)")
    if mesh.ndim != 1:
        raise ValueError(f"mesh has {mesh.ndim} axes, {mesh.mesh_dim_names}; expected one axis, such as mesh['heads']")
    if layer.split == "slice":
        raise ValueError('layer has split="slice"; expected a projected one: layer.to_projected()')
    if isinstance(layer.query.weight, DTensor):
        raise ValueError("layer is already sharded; expected an unsharded layer")


# The styles below assign `module.__class__`, because sharded modules need another forward() than `nn.Linear` and
# `nn.RMSNorm`. The input and output functions of `distribute_module` can only wrap forward(). A style cannot return a
# new module either: `parallelize_module` ignores the module that a style returns for a submodule. Assigning the class
# also keeps the module's hooks, buffers and identity.


class _HeadwiseParallel(ColwiseParallel):
    """Style that shards the columns of a projection by heads."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        module.__class__ = _HeadwiseLinear
        return super()._apply(module, device_mesh)


class _HeadwiseLinear(nn.Linear):
    """Column-parallel Linear that also accepts empty inputs, which DTensor rejects.

    Decoding with a cache passes `memory[:, :0]`.
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002, the name in nn.Linear
        mesh = _mesh_of(self.weight)
        if input.numel():
            return super().forward(input)
        width = self.out_features // mesh.size()
        empty = torch.zeros(*input.shape[:-1], width, dtype=input.dtype, device=input.device)
        return DTensor.from_local(empty, mesh, [Shard(-1)])


class _ReplicatedKVHeadParallel(ParallelStyle):
    """Style of a replicated projection of which each rank computes only the key head that it uses."""

    def __init__(self, kv_heads: int) -> None:
        super().__init__()
        self.kv_heads = kv_heads

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        module.__class__ = _ReplicatedKVHeadLinear
        assert isinstance(module, _ReplicatedKVHeadLinear)
        module.kv_heads = self.kv_heads
        return _replicate_parameters(module, device_mesh)


class _ReplicatedKVHeadLinear(nn.Linear):
    kv_heads: int

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002, the name in nn.Linear
        mesh = _mesh_of(self.weight)
        kv_head = mesh.get_local_rank() * self.kv_heads // mesh.size()
        rows = head_columns(kv_head, self.out_features // self.kv_heads)
        bias = None if self.bias is None else _local_copy(self.bias)[rows]
        return nn.functional.linear(copy_to_ranks(input, mesh.get_group()), _local_copy(self.weight)[rows], bias)


class _ReplicatedNormParallel(ParallelStyle):
    """Style of a replicated norm shared by all heads: the gradients of its gains are summed over the ranks."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        module.__class__ = _ReplicatedRMSNorm
        return _replicate_parameters(module, device_mesh)


class _ReplicatedRMSNorm(nn.RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.rms_norm(x, self.normalized_shape, _local_copy(self.weight), self.eps)


class _HeadOptionsParallel(ParallelStyle):
    """Style that shards the sinks, and slices per-head masks and biases to the heads of each rank."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        assert isinstance(module, MultiHeadAttention)
        heads, ranks = module.heads, device_mesh.size()
        local_heads = head_columns(device_mesh.get_local_rank(), heads // ranks)
        if module.sinks is not None:
            sharded = distribute_tensor(module.sinks.detach(), device_mesh, [Shard(0)])
            module.sinks = nn.Parameter(sharded, requires_grad=module.sinks.requires_grad)

        def slice_options(_: nn.Module, inputs: tuple, options: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
            bias = _bias_of_heads(options.get("bias"), heads, local_heads, device_mesh)
            return inputs, {**options, "bias": bias, "mask": _mask_of_heads(options.get("mask"), heads, local_heads)}

        module.register_forward_pre_hook(slice_options, with_kwargs=True)
        return module


def _bias_of_heads(
    bias: Tensor | ALiBi | None, heads: int, local_heads: slice, mesh: DeviceMesh
) -> Tensor | ALiBi | None:
    if isinstance(bias, ALiBi):
        return ALiBi(copy_to_ranks(bias.slopes, mesh.get_group())[local_heads])
    if not isinstance(bias, Tensor):
        return bias
    bias = copy_to_ranks(bias, mesh.get_group())
    return bias[..., local_heads, :, :] if bias.ndim >= 3 and bias.shape[-3] == heads else bias


def _mask_of_heads(mask: Mask | Tensor | None, heads: int, local_heads: slice) -> Mask | Tensor | None:
    if isinstance(mask, Tensor) and mask.dtype == torch.bool:
        mask = Dense(mask)
    if isinstance(mask, Dense) and mask.allowed.shape[1] == heads:
        return Dense(mask.allowed[:, local_heads])
    if isinstance(mask, And | Or):
        left, right = (_mask_of_heads(part, heads, local_heads) for part in (mask.left, mask.right))
        assert isinstance(left, Mask)
        assert isinstance(right, Mask)
        return type(mask)(left, right)
    return mask


def _replicate_parameters(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Replicate every parameter as a DTensor, because optimizers cannot mix DTensors and plain tensors."""
    for name, parameter in list(module.named_parameters(recurse=False)):
        replicated = distribute_tensor(parameter.detach(), mesh, [Replicate()])
        module.register_parameter(name, nn.Parameter(replicated, requires_grad=parameter.requires_grad))
    return module


def _mesh_of(parameter: Tensor) -> DeviceMesh:
    assert isinstance(parameter, DTensor)
    return parameter.device_mesh


def _local_copy(parameter: Tensor) -> Tensor:
    """Return the local tensor of a replicated parameter; its gradients are summed over the ranks."""
    assert isinstance(parameter, DTensor)
    return copy_to_ranks(parameter.to_local(), parameter.device_mesh.get_group())
