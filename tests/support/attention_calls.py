"""Attention calls of an unwatched model, captured without clearhead, and the weights that follow from them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional

import clearhead
from support.numerics import assert_matches


@dataclass
class CapturedCall:
    """Arguments of one call of `scaled_dot_product_attention`."""

    query: Tensor
    key: Tensor
    mask: Tensor | None
    is_causal: bool
    scale: float | None

    def weights(self, dtype: torch.dtype) -> Tensor:
        """Return the attention weights by the plain formula."""
        return self._scores(dtype).softmax(dim=-1)

    @property
    def terms(self) -> float:
        """Size of the terms of exp(score − lse). The relative error of a weight is their absolute error."""
        scores = self._scores(torch.float64)
        visible = scores[self.weights(torch.float64) > 0]
        return max(1.0, float(scores.logsumexp(dim=-1).abs().max()), float(visible.abs().max()))

    def assert_equals(self, got: Tensor) -> None:
        """Assert that attention weights equal those of the call."""
        exact, naive = self.weights(torch.float64), self.weights(self.query.dtype)
        scale = self.terms * float(exact.max())
        assert_matches(got, exact.reshape(got.shape), naive.reshape(got.shape), scale=scale)

    def _scores(self, dtype: torch.dtype) -> Tensor:
        query, key = self.query.to(dtype), self.key.to(dtype)
        if query.ndim > 2:
            key = key.repeat_interleave(query.shape[-3] // key.shape[-3], dim=-3)
        scores = query @ key.mT * (query.shape[-1] ** -0.5 if self.scale is None else self.scale)
        if self.is_causal:
            scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -torch.inf)
        if self.mask is not None and self.mask.dtype == torch.bool:
            scores = scores.masked_fill(~self.mask, -torch.inf)
        elif self.mask is not None:
            scores = scores + self.mask.to(dtype)
        return scores


Calls = dict[str, list[CapturedCall]]


@contextmanager
def captured_calls(model: nn.Module) -> Iterator[Calls]:
    """Yield the calls of the model's modules, by name, in order of first execution.

    The module of a call is the innermost one whose `forward` is running, which forward hooks show.
    """
    calls: Calls = defaultdict(list)
    running: list[str] = []
    original = functional.scaled_dot_product_attention

    def capture(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, **kwargs):
        calls[running[-1]].append(CapturedCall(query.detach(), key.detach(), attn_mask, is_causal, scale))
        options: dict[str, Any] = {"attn_mask": attn_mask, "dropout_p": dropout_p, "is_causal": is_causal}
        return original(query, key, value, **options, scale=scale, **kwargs)

    with ExitStack() as stack:
        for name, module in model.named_modules():
            enter = module.register_forward_pre_hook(lambda module, inputs, name=name: running.append(name))
            leave = module.register_forward_hook(lambda module, inputs, output: (running.pop(), None)[1])
            stack.callback(enter.remove)
            stack.callback(leave.remove)
        stack.enter_context(mock.patch.object(functional, "scaled_dot_product_attention", capture))
        yield calls


def assert_watched_exactly(model: nn.Module, run: Callable[[], Tensor], watched: Any = None) -> clearhead.watching.Seen:
    """Assert that watching a run changes no bit of its output, and that all weights equal a direct computation.

    Args:
        model: the model.
        run: runs the model and returns its output.
        watched: what to pass to `watch`. Default: the model.

    Returns:
        What `watch` has seen.
    """
    with torch.no_grad():
        plain = run()
        with captured_calls(model) as calls:
            run()
        with clearhead.watch(model if watched is None else watched) as seen:
            output = run()
        again = run()
    assert torch.equal(output, plain)
    assert torch.equal(again, plain)
    assert_seen_equals(seen, calls)
    assert set(seen) <= dict(model.named_modules()).keys()
    return seen


def assert_seen_equals(seen: clearhead.watching.Seen, calls: Calls) -> None:
    """Assert that exactly these calls were seen, with exact weights."""
    assert list(seen) == list(calls)
    for name, captured in calls.items():
        assert len(seen[name].calls) == len(captured)
        for call, reference in zip(seen[name].calls, captured, strict=True):
            reference.assert_equals(call.weights.dense())
