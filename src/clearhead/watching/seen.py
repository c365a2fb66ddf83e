"""`Seen`: what `watch` has seen of a model, by module."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from clearhead._utils.checks import describe
from clearhead._utils.extras import missing_packages
from clearhead._utils.text import count_noun
from clearhead.analysis.spans import SpansOfStacks
from clearhead.analysis.summary import AttentionSummary, LayerSummary, check_span_names
from clearhead.ops.statistics import AttentionStatistics
from clearhead.watching.joining import join
from clearhead.watching.model_adapters import Address
from clearhead.watching.observed import KeptWeights
from clearhead.weights import notebook
from clearhead.weights.matrix import AttentionWeights

if TYPE_CHECKING:
    from clearhead.recording.media import Media
    from clearhead.recording.recording import Recording
    from clearhead.watching._stack_tokens import TokensOfStacks


class WatchedCall(AttentionStatistics):
    """One call of an attention module: its statistics as fields, or its lazy weights if none were requested.

    Attributes:
        valid: False for queries that are padding or have no visible keys; or the number of queries, if all are valid.
        result: what the function `each` returned.
    """

    def __init__(
        self,
        kept: KeptWeights | None = None,
        statistics: AttentionStatistics | None = None,
        valid: Bool[Tensor, "batch q_len"] | int = 0,
        result: Any = None,
    ) -> None:
        super().__init__(**({} if statistics is None else statistics.results()))
        self.valid, self.result, self._kept = valid, result, kept

    def _get(self, name: str, request: str) -> Any:
        if name not in self:
            raise AttributeError(f"{name} was not requested; pass {request} to watch()")
        return super()._get(name, request)

    @property
    def weights(self) -> AttentionWeights:
        """Lazy attention matrix of the call."""
        return self.kept.weights()

    @property
    def output(self) -> Float[Tensor, "batch heads q_len value_dim"]:
        """Output of each head before the output projection: the weights times the values."""
        weights = self.weights
        if weights.value is None:
            raise AttributeError("values were not kept; pass values=True to watch()")
        with torch.no_grad():
            return weights @ weights.value

    @property
    def kept(self) -> KeptWeights:
        """Arguments from which the weights are computed, or the weights."""
        if self._kept is None:
            raise AttributeError("weights were not kept, because statistics or `each` were requested from watch()")
        return self._kept

    @property
    def nbytes(self) -> int:
        """Memory of what is kept of the call."""
        tensors = [tensor for result in self.results().values() for tensor in _tensors(result)]
        return sum(t.nbytes for t in tensors) + (0 if self._kept is None else self._kept.nbytes)


class Watched:
    """Calls of one attention module.

    Attributes:
        name: name of the module, as in `named_modules()`.
        layer: index of the module in the order of first execution, among all attention modules of the model.
        module: the module.
        crosses: True if queries and keys are known to be different sequences, as in cross-attention.
        calls: its calls in order, the last `keep` of them.
        summary: sums and maxima over all calls.
    """

    def __init__(
        self, name: str, layer: int, module: nn.Module, keep: int | None = None, *, crosses: bool = False
    ) -> None:
        self.name, self.layer, self.module, self.crosses = name, layer, module, crosses
        self.calls: deque[WatchedCall] = deque(maxlen=keep)
        kind = type(module).__name__
        self.summary = LayerSummary(module=layer, name=name or kind, kept=self.calls)  # pyright: ignore[reportArgumentType]

    @property
    def weights(self) -> AttentionWeights:
        """Lazy attention matrix of the last call."""
        return self._last_call().weights

    @property
    def output(self) -> Float[Tensor, "batch heads q_len value_dim"]:
        """Output of each head in the last call, before the output projection. Requires `watch(values=True)`."""
        return self._last_call().output

    def joined(self) -> AttentionWeights:
        """Return one matrix of all calls of a generation, in which each call continues the one before.

        Row i is the attention of token i when the model read it. Later keys did not exist then, so they are masked.

        Raises:
            ValueError: if a call does not continue the one before, as for another text.
        """
        if not self.calls:
            raise ValueError(f"{self.name}: no call was kept; expected the calls of a generation")
        try:
            return join([call.kept for call in self.calls])
        except ValueError as error:
            raise ValueError(f"{self.name or type(self.module).__name__}: {error}") from None

    @property
    def means(self) -> dict[str, Float[Tensor, "heads ..."]]:
        """Means per head over the queries of all calls, padding excluded: entropy, distance, largest and mass.

        They are nan if there were no queries.
        """
        return self.summary.means

    @property
    def maxima(self) -> dict[str, Float[Tensor, " heads"]]:
        """Maxima per head over the queries of all calls, padding excluded: peak."""
        self.summary.warn_of_nan()
        return self.summary.maxima

    @property
    def heads(self) -> Sequence[int] | None:
        """Indices of the heads that `watch(heads=...)` chose; None for all heads."""
        return self.summary.heads

    @property
    def queries(self) -> int:
        """Number of queries in the means."""
        return self.summary.queries

    def _last_call(self) -> WatchedCall:
        if not self.calls:
            raise AttributeError(f"{self.name}: no call was kept, because keep=0 was passed to watch()")
        return self.calls[-1]

    def __repr__(self) -> str:
        return f"Watched({self.name!r}, layer {self.layer}, {count_noun(len(self.calls), 'call')})"


class Seen(Mapping[str, Watched]):
    """Attention of a watched model: a mapping from module names to `Watched`, in order of first execution.

    `seen["blocks.3.attn"]` and `seen[3]` are the module of that name and the fourth attention module that ran;
    `seen[-1]` is the last one. For models with several stacks, `seen["encoder", 3]` is layer 3 of one of them. Modules
    that `where=` or `layers=` leave out count too, so that a module has the same index under any choice.

    Attributes:
        model: name of the model's class.
        spans: names of the spans of keys. Those of one stack are in the order of "mass".
    """

    def __init__(self, model: str, addresses: Mapping[str, Address], spans: SpansOfStacks | None = None) -> None:
        groups = [] if spans is None else [group.names for group in spans.groups]
        for names in groups:
            check_span_names(names)
        self.model, self.spans = model, tuple(dict.fromkeys(name for names in groups for name in names))
        self._addresses = addresses
        self._modules: dict[str, Watched] = {}
        self._warned: list[str] = []
        self._ran: dict[str, int] = {}  # index of each attention module that ran, also of those left out

    def index_of(self, name: str) -> int:
        """Return the index of a module in the order of first execution. A new name is the next in that order."""
        return self._ran.setdefault(name, len(self._ran))

    @property
    def ran(self) -> Sequence[str]:
        """Names of all attention modules that ran, in order of first execution, also of those left out."""
        return list(self._ran)

    @property
    def known(self) -> Iterable[str]:
        """Names of the modules whose stacks are known from the library of the model."""
        return self._addresses

    def is_known(self, watched: Watched) -> bool:
        """Return whether the stack of a module is known from the library of the model."""
        return watched.name in self._addresses

    def check_numbering(self) -> None:
        """Raise if layers or heads are missing, so that a recording, which counts from 0, would show wrong indices."""
        recorded: dict[str, list[int]] = {}
        for watched in self.values():
            stack, index = self.address(watched)
            recorded.setdefault(stack, []).append(index)
            if watched.heads is not None and list(watched.heads) != list(range(len(watched.heads))):
                raise ValueError(
                    f"{watched.name or self.model}: watch kept heads {list(watched.heads)}; expected all heads, or the"
                    " first ones, because a recording numbers heads from 0: call watch() without heads="
                )
        for name in self._ran:
            stack, index = self._address_of(name)
            if name not in self and index < max(recorded.get(stack, [0])):
                raise ValueError(
                    f"watch kept layers {sorted(recorded[stack])} of {stack!r}; expected all layers, or the first ones,"
                    " because a recording numbers layers from 0: call watch() without where= and layers="
                )

    def add(self, watched: Watched) -> None:
        """Add a module after its first call. The modules share one warning of NaN."""
        watched.summary.warned = self._warned
        self._modules[watched.name] = watched

    def __getitem__(self, key: str | int | Address) -> Watched:
        if isinstance(key, str) and key in self._modules:
            return self._modules[key]
        if type(key) is int and -len(self) <= key < 0:
            return [*self._modules.values()][key]
        for watched in self._modules.values():
            if (type(key) is int and watched.layer == key) or (isinstance(key, tuple) and self.address(watched) == key):
                return watched
        raise KeyError(self._unknown(key))

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)

    def address(self, watched: Watched) -> Address:
        """Return the stack of a module, and its index in the stack.

        The stack is "encoder", "decoder" or "cross" if it is known from the library of the model. Otherwise it is
        the name of the module without the indices of layers.
        """
        return self._address_of(watched.name)

    def stack_of(self, name: str) -> str:
        """Return the stack of a module; see `address`."""
        return self._addresses[name][0] if name in self._addresses else _stack_of(name)

    def summary(self) -> AttentionSummary:
        """Return means and maxima of all heads, which can be shown as a table.

        Layers are numbered in their stack. The column "module" is the index in `seen[3]`, over all stacks.
        """
        summary = AttentionSummary()
        for watched in self._modules.values():
            summary.layers[self.address(watched)] = watched.summary
        return summary

    def recording(
        self, tokens: TokensOfStacks = None, *, batch: int | None = None, media: Media | None = None
    ) -> Recording:
        """Return the attention of one input as a recording, which can be viewed, reported, analyzed and saved.

        The calls of a generation become one matrix. Other calls of one module become layers of their stack.

        Args:
            tokens: the text of each token: a list for all sequences of that length, or a dict of lists by stack, or of
                pairs (tokens of the queries, tokens of the keys). Cross-attention takes pairs. Default: positions are
                numbered.
            batch: which sequence of the batch. Required if there are several.
            media: pictures and sounds to which the regions of the tokens refer, as those of `patch_tokens`.

        Raises:
            ValueError: if `watch` chose heads or layers that do not start at 0, if a list of tokens fits several
                sequences, or if the calls of several texts are joined and `tokens` is a list.
        """
        from clearhead.watching.recordings import recording_of

        return recording_of(self, tokens, batch=batch, media=media)

    def save(self, path: str | os.PathLike[str], tokens: TokensOfStacks = None, *, batch: int | None = None) -> None:
        """Write the recording of one input to a safetensors file, which `Recording.load` and `clearhead view` read."""
        self.recording(tokens, batch=batch).save(path)

    def __repr__(self) -> str:
        calls = sum(len(watched.calls) for watched in self._modules.values())
        summaries = [watched.summary for watched in self.values()]
        statistics = dict.fromkeys(name for summary in summaries for name in summary.sums | summary.maxima)
        names = f"; {', '.join(statistics)}" if statistics else ""
        modules = count_noun(len(self), "attention module")
        return f"Seen({self.model}: {modules}, {count_noun(calls, 'call')}{names})"

    def _repr_html_(self) -> str | None:
        means = self.summary()._repr_html_()
        if means is None or missing_packages("view"):  # notebooks then show repr()
            return None
        last = {self.address(watched): watched.calls[-1] for watched in self.values() if watched.calls}
        maps = {address: call.pooled[0].float().cpu().numpy() for address, call in last.items() if "pooled" in call}
        heads = {self.address(watched): watched.heads for watched in self.values()}
        return means + notebook.heatmaps_html(maps, heads)

    def _address_of(self, name: str) -> Address:
        if name in self._addresses:
            return self._addresses[name]
        stack = _stack_of(name)
        others = [other for other in self._ran if other not in self._addresses and _stack_of(other) == stack]
        return stack, others.index(name)

    def _unknown(self, key: object) -> str:
        if not self._modules:
            return f"{key!r}: no attention of {self.model} was observed yet"
        names = list(self._modules)
        shown = ", ".join(map(repr, names if len(names) <= 4 else names[:3]))
        shown += f", … {names[-1]!r}" if len(names) > 4 else ""
        layers = [watched.layer for watched in self.values()]
        if layers == list(range(layers[0], layers[-1] + 1)):
            expected = f"a layer from {layers[0]} to {layers[-1]}"
        else:
            expected = f"layer {', '.join(map(str, sorted(layers)[:12]))}{', …' if len(layers) > 12 else ''}"
        return (
            f"{describe(key)} is not an attention module that ran; expected one of {len(names)} names ({shown}), or"
            f" {expected}"
        )


def _stack_of(name: str) -> str:
    """Return the name of a module without the indices of layers, such as "blocks.attn" for "blocks.3.attn"."""
    return ".".join(part for part in name.split(".") if not re.fullmatch(r"\d+", part)) or "attention"


def _tensors(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else [tensor for tensor in result if isinstance(tensor, Tensor)]
