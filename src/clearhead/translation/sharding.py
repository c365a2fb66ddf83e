"""Tensor parallelism for a Transformer: each rank has some heads of every layer, and some feed-forward columns."""

from __future__ import annotations

from clearhead.distributed.tensor_parallel import (
    ColwiseParallel,
    DeviceMesh,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
    tensor_parallel_plan,
)
from clearhead.nn import MultiHeadAttention
from clearhead.translation._layers import FeedForward
from clearhead.translation.model import Transformer


def shard_model(model: Transformer, mesh: DeviceMesh) -> Transformer:
    """Shard a model over the ranks of a mesh, in place; all ranks must have the same one.

    Outputs and gradients are those of the whole model. Embeddings and norms stay whole on every rank. In training
    dropout of what is whole has to be drawn alike: give all ranks the same seed.
    """
    return parallelize_module(model, mesh, model_plan(model, mesh))  # pyright: ignore[reportReturnType]


def model_plan(model: Transformer, mesh: DeviceMesh) -> dict[str, ParallelStyle]:
    """Return the plan for `parallelize_module`: that of every layer's attention, and of its feed-forward."""
    width, ranks = model.config.feed_forward, mesh.size()
    if width % ranks:
        raise ValueError(f"feed_forward is {width} wide, which {ranks} ranks cannot share equally; expected a multiple")
    plan: dict[str, ParallelStyle] = {}
    for name, module in model.named_modules():
        if isinstance(module, MultiHeadAttention):
            plan |= {f"{name}.{part}".rstrip("."): style for part, style in tensor_parallel_plan(module, mesh).items()}
        elif isinstance(module, FeedForward):
            plan |= {f"{name}.0": ColwiseParallel(), f"{name}.3": RowwiseParallel()}
    return plan
