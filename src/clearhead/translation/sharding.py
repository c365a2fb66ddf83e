"""Tensor parallelism of a Transformer: attention heads and feed-forward columns are split across ranks."""

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
    """Shard a model over the ranks of a mesh, in place, and return it. All ranks must pass the same weights.

    Outputs and gradients equal those of the unsharded model. Embeddings and norms are replicated. For training, give
    all ranks the same seed, so that they draw the same dropout masks for replicated tensors.
    """
    return parallelize_module(model, mesh, model_plan(model, mesh))  # pyright: ignore[reportReturnType]


def model_plan(model: Transformer, mesh: DeviceMesh) -> dict[str, ParallelStyle]:
    """Return the plan for `parallelize_module`: attention and feed-forward of every layer."""
    width, ranks = model.config.feed_forward, mesh.size()
    if width % ranks:
        raise ValueError(f"feed_forward is {width}; expected a multiple of the {ranks} ranks")
    plan: dict[str, ParallelStyle] = {}
    for name, module in model.named_modules():
        if isinstance(module, MultiHeadAttention):
            plan |= {f"{name}.{part}".rstrip("."): style for part, style in tensor_parallel_plan(module, mesh).items()}
        elif isinstance(module, FeedForward):
            plan |= {f"{name}.0": ColwiseParallel(), f"{name}.3": RowwiseParallel()}
    return plan
