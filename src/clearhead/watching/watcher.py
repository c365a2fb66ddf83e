"""`watch`: the attention of any model, observed while it runs."""

from __future__ import annotations

import fnmatch
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Unpack

import torch
from torch import nn

from clearhead._utils.checks import check_bool, check_int, describe, list_items
from clearhead._utils.text import count_noun, format_bytes
from clearhead.analysis.spans import SpansOfStacks
from clearhead.ops.spans import SpansLike
from clearhead.ops.statistics import StatisticsOptions, StatisticsRequest
from clearhead.watching import running
from clearhead.watching.model_adapters import attends_across
from clearhead.watching.model_observer import ModelObserver
from clearhead.watching.observed import KeptWeights, ObservedCall
from clearhead.watching.seen import Seen, Watched, WatchedCall
from clearhead.weights.indexing import index_list
from clearhead.weights.matrix import AttentionWeights, Choice

STATISTICS_OPTIONS = tuple(StatisticsOptions.__annotations__)  # the last, `reduce`, is not a statistic
RESULTS = ("entropy", "received", "distance", "peak", "mass", "top", "pooled")
MAX_BYTES = 2**33
Where = str | Callable[[str], bool]
Each = Callable[[str, AttentionWeights], Any]


class WatchedStatistics(StatisticsOptions, total=False):
    """Arguments of `AttentionWeights.observe`. Spans may be given by stack."""

    spans: SpansLike | Mapping[str, SpansLike] | None  # pyright: ignore[reportIncompatibleVariableOverride]


@contextmanager
def watch(
    model: Any,
    *,
    where: Where | None = None,
    layers: Choice | None = None,
    heads: Choice | None = None,
    queries: slice | None = None,
    keep: int | None = None,
    values: bool = False,
    each: Each | None = None,
    max_bytes: int | None = MAX_BYTES,
    **statistics: Unpack[WatchedStatistics],
) -> Iterator[Seen]:
    """Observe the attention of a model while it runs.

        with watch(model) as seen:
            model(x)
        seen["blocks.11.attn"].weights            # lazy matrix of its last call; seen[11] is the same

        with watch(model, entropy=True, spans={"image": (41, 617)}) as seen:
            model(**inputs)                       # or model.generate(**inputs): one call per new token
        seen[3].calls[0].entropy                  # [batch, heads, q_len]
        seen[3].means["mass"]                     # [heads, 1], over all queries that are not padding

    The model may be any `nn.Module` that computes attention with `scaled_dot_product_attention`,
    `nn.MultiheadAttention`, `nn.TransformerEncoderLayer`, `flex_attention` or `clearhead.attention`, or a transformers
    model on any implementation. Attention written out as matmul, softmax and matmul is not observed. PEFT models,
    DataParallel, DDP, SentenceTransformer and pipelines are unwrapped. So is the result of `torch.compile`, but calls
    in its compiled graph cannot be observed: an error is raised at the end of the block.

    A watched model computes what it computes unwatched, bit for bit. Weights are those before dropout, without
    gradients. Statistics are computed at each call, and then queries and keys are not kept. Padding queries are treated
    like queries without visible keys: their statistics are 0 (`peak`: −inf), and `means` and `maxima` exclude them.

    A `watch` observes the calls of the thread that entered it, and those of threads that have not entered a `watch` on
    the model.

    Args:
        model: a torch module, or a wrapper or pipeline that contains one.
        where: which modules: a pattern such as `"*.attn2"`, or a function of the name. Default: all.
        layers: which of these modules, by their index in the order of first execution among all attention modules of
            the model: an index, a slice or a list. `layers=3` keeps `seen[3]`, if `where` does not leave it out.
        heads: which heads: an index, a slice or a list.
        queries: which queries: a slice such as `slice(-32, None)`.
        keep: number of last calls to keep of each module. Default: all. Means cover all calls in any case.
        values: also keep the values of attention.
        each: function of the module's name and the weights of a call. It runs at each call, and then the weights are
            not kept. What it returns is `calls[i].result`.
        max_bytes: upper bound of the memory of everything that is kept; None for no bound.
        statistics: arguments of `AttentionWeights.observe`: entropy, received, distance, peak, spans, top, pool,
            reduce. If attention runs in several stacks, `spans` is a dict by stack, such as
            `{"decoder": {"image": (41, 617)}}`; "*" is any stack. Other stacks have no mass.

    Raises:
        ValueError: if the model ran and no attention was observed, if what is kept exceeds `max_bytes`, or if `spans`
            has no stack and several ran.
    """
    watcher = _Watcher(model, where, layers, heads, queries, keep, values, each, max_bytes, statistics)
    with watcher.attached(), running.observing(watcher):
        yield watcher.seen
    watcher.check()


class _Watcher(ModelObserver):
    """Observer of one `watch` block."""

    def __init__(
        self,
        model: Any,
        where: Where | None,
        layers: Choice | None,
        heads: Choice | None,
        queries: slice | None,
        keep: int | None,
        values: bool,
        each: Each | None,
        max_bytes: int | None,
        statistics: WatchedStatistics,
    ) -> None:
        super().__init__(model)
        unknown = [name for name in statistics if name not in STATISTICS_OPTIONS]
        if unknown:
            raise TypeError(f"watch: {unknown[0]} is not a statistic; expected {', '.join(STATISTICS_OPTIONS)}")
        given_spans = statistics.pop("spans", None)
        self.spans = None if given_spans is None else SpansOfStacks(given_spans)
        self.statistics: StatisticsOptions = statistics  # pyright: ignore[reportAttributeAccessIssue]
        request = StatisticsRequest.checked(**self.statistics)
        self.reduces_all = any(request.requests(name) for name in RESULTS)  # also stacks without spans
        self.reduces = self.reduces_all or self.spans is not None
        self.given_where, self.where = where, name_predicate(where, self)
        self.layers, self.heads, self.queries = _layer_choice(layers), heads, _check_queries(queries)
        self.keep = None if keep is None else check_int("keep", keep, least=0)
        if each is not None and not callable(each):
            raise TypeError(f"each is {describe(each)}; expected a function of the module's name and the weights")
        self.values, self.each = check_bool("values", values), each
        self.max_bytes = None if max_bytes is None else check_int("max_bytes", max_bytes, most=None)
        addresses = {} if self.adapter is None else self.adapter.addresses()
        self.seen = Seen(type(self.model).__name__, addresses, self.spans)
        self.missed: dict[str, str] = {}  # reasons why calls were not observed, by module
        self.bytes = 0
        self._lock = threading.Lock()  # several threads may run one model

    def miss(self, module: nn.Module, reason: str) -> None:
        self.missed.setdefault(self.names[id(module)], reason)

    def receive(self, module: nn.Module, observed: ObservedCall) -> None:
        name = self.names[id(module)]
        with self._lock:
            layer = self.seen.index_of(name)
        if not self.where(name) or not self.layers(layer):
            return
        with self._lock:
            if name not in self.seen:
                crosses = attends_across(self.model, name, module)
                watched = Watched(name, layer, module, self.keep, crosses=crosses)
                if self.spans is not None:
                    stack = self.seen.stack_of(name)
                    self.spans.enter(stack, map(self.seen.stack_of, filter(self.where, self.seen.known)))
                    watched.summary.spans = self.spans.names_of(stack)
                self.seen.add(watched)
        watched = self.seen[name]
        with torch.no_grad():
            call = self._call(name, module, observed)
            if self.heads is not None and watched.heads is None:
                watched.summary.heads = index_list(self.heads, observed.call.shape[1], 1)
        with self._lock:
            if self.reduces:
                watched.summary.add(call, call.valid)
            self._append(watched, call)

    def _call(self, name: str, module: nn.Module, observed: ObservedCall) -> WatchedCall:
        if not self.reduces and self.each is None:
            return WatchedCall(self._kept(observed))
        weights = observed.weights
        padding, valid = self.valid_queries(module, observed)
        if padding is not None:
            weights = weights.hiding_queries(padding)
        if self.heads is not None or self.queries is not None:
            weights = weights.part(heads=self.heads, queries=self.queries)
            valid = valid if valid is None or self.queries is None else valid[:, self.queries]
        if valid is None:
            valid = weights.shape[0] * weights.shape[2]
        result = None if self.each is None else self.each(name, weights)
        group = None if self.spans is None else self.spans.of_stack(self.seen.stack_of(name))
        if group is None and not self.reduces_all:
            return WatchedCall(valid=valid, result=result)
        spans: Any = None if group is None else group.of_call(weights.shape[3])
        options: StatisticsOptions = {**self.statistics, "spans": spans}
        return WatchedCall(None, weights.observe(**options), valid, result)

    def _kept(self, observed: ObservedCall) -> KeptWeights:
        kept = observed.kept(values=self.values)
        if self.heads is None and self.queries is None:
            return kept
        return kept.part(heads=self.heads, queries=self.queries)

    def _append(self, watched: Watched, call: WatchedCall) -> None:
        calls = watched.calls
        if calls.maxlen == 0:
            return
        if calls.maxlen == len(calls):
            self.bytes -= calls[0].nbytes
        self.bytes += call.nbytes
        if self.max_bytes is not None and self.bytes > self.max_bytes:
            count = sum(len(other.calls) for other in self.seen.values()) + 1
            kind = type(watched.module)
            modules = sum(isinstance(module, kind) for module in self.model.modules())
            remedies = "C" if self.reduces else "Request statistics such as entropy=True, c"
            raise ValueError(
                f"watch keeps {format_bytes(self.bytes)} of {count_noun(count, 'call')}, more than"
                f" max_bytes={self.max_bytes} ({format_bytes(self.max_bytes)}); one pass through {modules} ×"
                f" {kind.__name__} keeps about {format_bytes(self.bytes / count * modules)}. {remedies}hoose modules"
                " with where= or layers=, pass keep=1, or a larger max_bytes"
            )
        calls.append(call)

    def check(self) -> None:
        """Raise if nothing was observed, or if a span does not exist. Warn about calls that were not observed."""
        self.check_compiled()
        kind = type(self.model).__name__
        if not self.seen:
            raise ValueError(f"watch observed no attention of {kind}: {self.reason_for_none()}")
        for name, reason in self.missed.items():
            warnings.warn(f"a call of {name or kind} was not observed: {reason}", stacklevel=4)
        if self.spans is not None:
            self.spans.check()

    def reason_for_none(self) -> str:
        if self.missed:
            return next(iter(self.missed.values()))
        ran = self.seen.ran
        if not ran:
            return super().reason_for_none()
        chosen = [name for name in ran if self.where(name)]
        if chosen:
            if len(chosen) < len(ran):
                return f"layers= excludes all modules that where= chooses, such as layer {ran.index(chosen[0])}"
            return f"layers= excludes all {len(ran)} modules with attention"
        if isinstance(self.given_where, str):
            return (
                f"where={self.given_where!r} matches modules that did not run, or that ran without attention; attention"
                f" ran in {ran[0]!r}"
            )
        return f"where= excludes all modules with attention, such as {ran[0]!r}"


def name_predicate(where: Where | None, observer: ModelObserver) -> Callable[[str], bool]:
    """Return a function that returns whether a module is chosen, from a pattern or a function of the name.

    A module that is shared has several names. It is chosen if one of them is. The function takes its first name.
    """
    if where is None:
        return lambda name: True
    if not callable(where) and not isinstance(where, str):
        raise TypeError(f"where is {describe(where)}; expected a pattern such as '*.attn', or a function of the name")
    names: dict[nn.Module, list[str]] = {}
    for name, module in observer.model.named_modules(remove_duplicate=False):
        names.setdefault(module, []).append(name)
    every = [name for each in names.values() for name in each]
    if isinstance(where, str) and not fnmatch.filter(every, where):
        likely = observer.likely_attention()
        example = f", such as {likely[0]!r}" if likely else ""
        raise ValueError(f"where is {where!r}, which matches none of {len(names)} modules{example}")
    chooses = where if callable(where) else lambda name: fnmatch.fnmatchcase(name, where)
    names_of = {each[0]: each for each in names.values()}
    return lambda name: any(chooses(each) for each in names_of[name])


def _check_queries(queries: object) -> slice | None:
    """Return `queries` unchanged if it is None or a slice of step 1; raise otherwise."""
    if queries is None or (isinstance(queries, slice) and queries.step in (None, 1)):
        return queries
    kind = ValueError if isinstance(queries, slice) else TypeError
    raise kind(f"queries is {describe(queries)}; expected a slice of step 1, such as slice(-32, None)")


def _layer_choice(layers: Choice | None) -> Callable[[int], bool]:
    if layers is None:
        return lambda layer: True
    if isinstance(layers, slice):
        start, stop, step = layers.start or 0, layers.stop, layers.step or 1
        if min(start, stop or 0) < 0 or step < 1:
            raise ValueError(f"layers is {layers}; expected indices of at least 0: the last layer is not known yet")
        return lambda layer: layer >= start and (stop is None or layer < stop) and (layer - start) % step == 0
    chosen = {check_int("layers", index, least=0) for index in list_items("layers", layers)}
    return lambda layer: layer in chosen
