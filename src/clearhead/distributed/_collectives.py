"""Collectives with the gradients and shapes that sharded attention requires."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed import ProcessGroup


class _CopyToRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: ProcessGroup | None) -> Tensor:
        ctx.group = group
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return all_reduce_sum(gradients[0], ctx.group), None


def copy_to_ranks(tensor: Tensor, group: ProcessGroup | None) -> Tensor:
    """Return a tensor that is equal on all ranks; in the backward pass its gradient is summed over the ranks."""
    return _CopyToRanks.apply(tensor, group)  # pyright: ignore[reportReturnType]


def all_reduce_sum(tensor: Tensor, group: ProcessGroup | None) -> Tensor:
    """Return the sum over all ranks, out of place and without a gradient."""
    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    distributed.all_reduce(total, group=group)
    return total


def all_gather_tensors(tensor: Tensor, group: ProcessGroup | None) -> list[Tensor]:
    """Return the tensors of all ranks, without gradients. Their shapes may differ."""
    shape = torch.tensor(tensor.shape, device=tensor.device)
    shapes = [torch.empty_like(shape) for _ in range(distributed.get_world_size(group))]
    distributed.all_gather(shapes, shape, group=group)
    sizes = [torch.Size(rank_shape.tolist()) for rank_shape in shapes]
    padded = tensor.detach().new_zeros(max(size.numel() for size in sizes))
    padded[: tensor.numel()] = tensor.detach().flatten()
    received = [torch.empty_like(padded) for _ in sizes]
    distributed.all_gather(received, padded, group=group)
    return [flat[: size.numel()].view(size) for flat, size in zip(received, sizes, strict=True)]
