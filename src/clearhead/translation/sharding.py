"""Tensor parallelism for a Transformer: each rank has some heads of every layer, and some feed-forward columns."""

from __future__ import annotations

from clearhead.distributed.module_plan import DeviceMesh, shard_modules
from clearhead.translation._layers import FeedForward
from clearhead.translation.model import Transformer


def shard_model(model: Transformer, mesh: DeviceMesh) -> Transformer:
    """Shard a model over the ranks of a mesh, in place; all ranks must have the same one.

    Outputs and gradients are those of the whole model. Embeddings and norms stay whole on every rank. In training
    dropout of what is whole has to be drawn alike: give all ranks the same seed.
    """
    width, ranks = model.config.feed_forward, mesh.size()
    if width % ranks:
        raise ValueError(f"feed_forward is {width} wide, which {ranks} ranks cannot share equally; expected a multiple")
    names = [name for name, module in model.named_modules() if isinstance(module, FeedForward)]
    shard_modules(
        model,
        mesh,
        column_parallel=[f"{name}.0" for name in names],
        row_parallel=[f"{name}.3" for name in names],
    )
    return model
