"""`watch`: statistics of each layer's attention, computed while a model runs."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Unpack

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from clearhead.analysis.spans import SpansOfCalls
from clearhead.analysis.summary import AttentionSummary, LayerSummary
from clearhead.huggingface.lazy_mask import LazyMask
from clearhead.huggingface.modules import AttentionModule, attention_modules, hooked, layer_of, owner_of
from clearhead.ops.statistics import StatisticsOptions, StatisticsRequest
from clearhead.weights.matrix import AttentionWeights

STATISTICS_OPTIONS = tuple(StatisticsOptions.__annotations__)  # the last, `reduce`, is not a statistic
RESULTS = ("entropy", "received", "distance", "peak", "mass", "top", "pooled")


@contextmanager
def watch(
    model: nn.Module, *, keep_calls: bool = True, **statistics: Unpack[StatisticsOptions]
) -> Iterator[AttentionSummary]:
    """Compute statistics of every attention matrix of a model while it runs, without keeping queries and keys.

        with watch(model, entropy=True, top=8) as summary:
            model(**inputs)                       # or model.generate(**inputs): one call per new token
        summary[3].calls[0].entropy               # [batch, heads, q_len]
        summary[3].means["entropy"]               # [heads], over all queries that are not padding

        with watch(model, peak=True, spans={"system": (0, 40), "image": (41, 617)}) as summary:
            model(**inputs)
        summary[3].calls[0].mass                  # [batch, heads, q_len, 2]
        summary[3].means["mass"]                  # [heads, 2]: mean attention on each span
        summary[3].maxima["peak"]                 # [heads]: the largest score of all queries, as QK-clip uses it

    Padding queries are treated like queries without visible keys: their statistics are 0 (`peak`: −inf), and
    `received`, `pooled`, `means` and `maxima` exclude them.

    Spans apply to the keys of every layer. Keys that a call does not have receive no attention in it, such as those
    that are not yet in the KV cache. If no call has all keys of a span, an error is raised at the end of the block.

    Within the block the model uses the implementation "clearhead"; afterwards it uses the previous one again. A `watch`
    observes the calls of the thread that entered it, and those of threads that have not entered a `watch` on the model.

    Args:
        model: a transformers model.
        keep_calls: keep the statistics of each call, not only the means. Pass False for long runs over many batches.
        statistics: arguments of `AttentionWeights.observe`, except queries: entropy, received, distance, peak, spans,
            top, pool, reduce.
    """
    unknown = [name for name in statistics if name not in STATISTICS_OPTIONS]
    if unknown:
        raise TypeError(f"watch: {unknown[0]} is not a statistic; expected any of {', '.join(STATISTICS_OPTIONS)}")
    request = StatisticsRequest.checked(**statistics)
    if not any(request.requests(name) for name in RESULTS):
        raise ValueError(
            f"watch: no statistic is requested; pass any of {', '.join(STATISTICS_OPTIONS[:-1])}, such as entropy=True"
        )
    given_spans = statistics.pop("spans", None)
    spans = None if given_spans is None else SpansOfCalls(given_spans)
    modules = attention_modules(model)
    addresses = [(attention.stack, attention.layer) for attention in modules]
    summary = AttentionSummary(addresses, spans=() if spans is None else spans.names)
    lock = threading.Lock()
    with ExitStack() as stack:
        padding = _Padding(model, modules, stack)
        hooks = {a.module: _Observer(statistics, spans, summary, a, padding, keep_calls, lock) for a in modules}
        stack.enter_context(hooked(model, hooks))
        yield summary
    if spans is not None:
        spans.check()


@dataclass(frozen=True, eq=False)
class _Observer:
    """Hook that computes statistics of the weights of one module."""

    statistics: StatisticsOptions  # without spans
    spans: SpansOfCalls | None
    summary: AttentionSummary
    attention: AttentionModule
    padding: _Padding
    keep_calls: bool
    lock: threading.Lock  # several threads may run one model
    needs_weights = True
    retains_weights = False
    keep_qk = False

    def __call__(
        self, repeat: int | None, weights: AttentionWeights | None, output: Tensor, attention_mask: Tensor | None
    ) -> Tensor:
        assert weights is not None
        address = (self.attention.stack, layer_of(self.attention, repeat))
        with torch.no_grad():
            valid = weights.attending()
            padding = self.padding.query_padding(self.attention, valid.shape, attention_mask)
            if padding is not None:
                valid = valid & ~padding
                weights = weights.hiding_queries(padding)
            spans: Any = None if self.spans is None else self.spans.of_call(weights.shape[3])
            statistics: StatisticsOptions = {**self.statistics, "spans": spans}
            observed = weights.observe(**statistics)
        with self.lock:
            self.summary.layers.setdefault(address, LayerSummary()).add(observed, valid, keep=self.keep_calls)
        return output


class _Padding:
    """Padding queries of each call, from the attention mask of the call or of the submodel that makes it."""

    def __init__(self, model: nn.Module, modules: list[AttentionModule], stack: ExitStack) -> None:
        self.owners = {attention: owner_of(model, attention) for attention in modules}
        self.last: dict[tuple[int, nn.Module], Bool[Tensor, "batch positions"] | None] = {}  # by thread and part
        for owner in dict.fromkeys(self.owners.values()):
            if "attention_mask" in inspect.signature(owner.forward).parameters:
                stack.callback(owner.register_forward_pre_hook(self._remember, with_kwargs=True).remove)

    def __deepcopy__(self, memo: object) -> _Padding:
        return self  # copying a model copies its forward hooks, which refer to this object

    def _remember(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        arguments = inspect.signature(module.forward).bind_partial(*args, **kwargs).arguments
        valid = _valid_tokens(arguments.get("attention_mask"))
        # once per forward pass, because bool() synchronizes the device
        self.last[threading.get_ident(), module] = None if valid is None or bool(valid.all()) else ~valid

    def query_padding(
        self, attention: AttentionModule, shape: torch.Size, attention_mask: Tensor | None
    ) -> Bool[Tensor, "batch q_len"] | None:
        """Return which queries are padding; None if there is no padding, or if it is unknown.

        A cross-attention mask covers the other text, so the mask of the submodel that contains the queries is used.
        """
        batch, q_len = shape
        if isinstance(attention_mask, LazyMask) and attention_mask.query_start is not None and not attention.is_cross:
            padding = None if attention_mask.valid_queries is None else ~attention_mask.valid_queries
        else:
            padding = self.last.get((threading.get_ident(), self.owners[attention]))
            if padding is not None and padding.shape[1] > q_len and not attention.is_cross:
                padding = padding[:, -q_len:]  # with a KV cache the queries are the last tokens
        return padding if padding is not None and padding.shape == (batch, q_len) else None


def _valid_tokens(attention_mask: Any) -> Bool[Tensor, "batch positions"] | None:
    """Return the tokens that are not padding, from an attention mask of the user or of `generate`."""
    if isinstance(attention_mask, Mapping):  # one mask per layer type
        return next((valid for mask in attention_mask.values() if (valid := _valid_tokens(mask)) is not None), None)
    if isinstance(attention_mask, LazyMask):
        return attention_mask.valid_queries
    return attention_mask.bool() if isinstance(attention_mask, Tensor) and attention_mask.ndim == 2 else None
