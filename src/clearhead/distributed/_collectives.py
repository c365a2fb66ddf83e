"""What ranks say to each other, with gradients: on torch.distributed's own collectives."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed import ProcessGroup


class _Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: ProcessGroup | None) -> Tensor:
        ctx.group = group
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return summed(gradients[0], ctx.group), None


def copied(tensor: Tensor, group: ProcessGroup | None) -> Tensor:
    """What all ranks have alike and each uses for a part of the work: its gradient is the sum of theirs."""
    return _Copied.apply(tensor, group)  # pyright: ignore[reportReturnType]


def summed(tensor: Tensor, group: ProcessGroup | None) -> Tensor:
    """Over all ranks; not in place, and without a gradient."""
    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    distributed.all_reduce(total, group=group)
    return total


def gathered(tensor: Tensor, group: ProcessGroup | None) -> list[Tensor]:
    """Every rank's tensor, which may differ in size along the axes; without a gradient."""
    shape = torch.tensor(tensor.shape, device=tensor.device)
    shapes = [torch.empty_like(shape) for _ in range(distributed.get_world_size(group))]
    distributed.all_gather(shapes, shape, group=group)
    sizes = [tuple(own.tolist()) for own in shapes]
    room = max(torch.Size(size).numel() for size in sizes)
    sent = tensor.detach().new_zeros(room)
    sent[: tensor.numel()] = tensor.detach().flatten()
    received = [torch.empty_like(sent) for _ in sizes]
    distributed.all_gather(received, sent, group=group)
    return [flat[: torch.Size(size).numel()].view(size) for flat, size in zip(received, sizes, strict=True)]
