"""A Transformer over ranks: each has some of the heads of every layer, and of the feed-forward's columns."""

from __future__ import annotations

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from clearhead.distributed import head_plan
from clearhead.nn.attention import MultiHeadAttention
from clearhead.translation.model import FeedForward, Transformer


def shard_model(model: Transformer, mesh: DeviceMesh) -> Transformer:
    """Share a model out over the ranks of a mesh, in place; all ranks must have the same one.

    Outputs and gradients are those of the whole model. Embeddings and norms stay whole on every rank. In training
    dropout of what is whole has to be drawn alike: give all ranks the same seed.
    """
    return parallelize_module(model, mesh, model_plan(model, mesh))  # pyright: ignore[reportReturnType]


def model_plan(model: Transformer, mesh: DeviceMesh) -> dict[str, ParallelStyle]:
    """The plan for `parallelize_module`: that of every layer's attention, and of its feed-forward."""
    width, ranks = model.config.feed_forward, mesh.size()
    if width % ranks:
        raise ValueError(f"feed_forward is {width} wide, which {ranks} ranks cannot share equally; expected a multiple")
    plan: dict[str, ParallelStyle] = {}
    for name, module in model.named_modules():
        if isinstance(module, MultiHeadAttention):
            plan |= {f"{name}.{part}".rstrip("."): style for part, style in head_plan(module, mesh).items()}
        elif isinstance(module, FeedForward):
            plan |= {f"{name}.0": ColwiseParallel(), f"{name}.3": RowwiseParallel()}
    return plan
