"""Statistics of a matrix with one query, as in decoding.

There the matrix is small, and the time depends on the number of operations. So it is computed as a whole.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.ops import reference
from clearhead.ops._precision import without_autocast
from clearhead.ops.call import AttentionCall
from clearhead.ops.statistics import AttentionStatistics, StatisticsRequest, TopK


@without_autocast
def compute_statistics(
    call: AttentionCall, lse: Float[Tensor, "batch heads 1"], request: StatisticsRequest
) -> AttentionStatistics:
    """Compute every statistic of a request except pooling."""
    batch, _, _, kv_len = call.shape
    scores = reference.scores(call, call.lower()) if call.query.shape[3] else call.tensor_bias  # it holds scores
    assert scores is not None
    logs = scores - torch.where(lse == -torch.inf, 0.0, lse)[..., None]
    weights = logs.exp()
    distance = mass = None
    if request.distance:
        steps = (call.positions()[..., None] - torch.arange(kv_len, device=lse.device)).abs()
        distance = (weights * steps[:, None]).sum(dim=-1)
    if request.spans is not None:
        mass = weights @ request.spans.members(batch, kv_len, lse)[:, None]
    return AttentionStatistics(
        entropy=torch.special.entr(weights).sum(dim=-1) if request.entropy else None,
        received=weights.squeeze(-2) if request.received else None,
        distance=distance,
        mass=mass,
        top=_largest(logs, request.top) if request.top else None,
    )


def _largest(logs: Float[Tensor, "batch heads 1 kv_len"], top: int) -> TopK:
    # the first of equal values for one, as torch's argmax
    values, keys = logs.max(dim=-1, keepdim=True) if top == 1 else logs.topk(top, dim=-1)
    return TopK(values.exp(), torch.where(values > -torch.inf, keys, -1))
