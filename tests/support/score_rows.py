"""Scores of decoding steps, and a check of their softmax in place."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from clearhead.ops.triton.score_rows import softmax_in_place
from support.numerics import assert_lse_matches, assert_matches, poisoned


def random_scores(kv_lens: list[int], heads: int, keys: int, factor: float = 1.0, device: str = "cpu") -> Tensor:
    """Return scores of requests, with NaN beyond the keys of each, which must not be read."""
    generator = torch.Generator().manual_seed(sum(kv_lens))
    scores = factor * torch.randn(len(kv_lens), heads, keys, generator=generator)
    for row, kv_len in enumerate(kv_lens):
        scores[row, :, kv_len:] = torch.nan
    return scores.to(device)


def check_rows(scores: Tensor, kv_lens: Tensor, sinks: Tensor | None) -> None:
    """Assert that weights, log-sum-exp, entropy and peak match the plain formula."""
    before = scores.clone()
    with poisoned():
        rows = softmax_in_place(scores, kv_lens, sinks)
    beyond = torch.arange(scores.shape[2], device=scores.device) >= kv_lens[:, None, None]
    before = before.masked_fill(beyond, -torch.inf)
    exact, naive = (_plain(before.to(dtype), sinks) for dtype in (torch.float64, torch.float32))
    finite = before[before > -torch.inf].abs().max()
    size = float(finite) + math.log(scores.shape[2])
    assert_lse_matches(rows.lse.cpu(), exact["lse"].numpy(), naive["lse"], scale=size)
    assert torch.equal(rows.peak, before.amax(dim=-1))
    assert_matches(scores.cpu(), exact["weights"], naive["weights"], scale=size)
    assert (scores[before == -torch.inf] == 0).all()
    assert_matches(rows.entropy.cpu(), exact["entropy"], naive["entropy"], scale=size)


def _plain(scores: Tensor, sinks: Tensor | None) -> dict[str, Tensor]:
    rows, heads, _ = scores.shape
    sink = -torch.inf if sinks is None else sinks.to(scores)[:, None]
    logits = torch.cat([scores, torch.zeros(rows, heads, 1).to(scores) + sink], dim=-1)
    lse = torch.logsumexp(logits, dim=-1)
    logs = scores - torch.where(lse == -torch.inf, 0.0, lse)[..., None]
    weights = logs.exp()
    entropy = -torch.where(weights > 0, weights * logs, 0.0).sum(dim=-1)
    return {"lse": lse.cpu(), "weights": weights.cpu(), "entropy": entropy.cpu()}
